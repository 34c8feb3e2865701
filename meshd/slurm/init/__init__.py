"""`meshctl init`: makes the Slurm files of a head fit for meshd. `plan` decides, `apply` writes."""
