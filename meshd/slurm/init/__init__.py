"""`meshctl init`: changes a head's Slurm files so that meshd can work with them. `plan` decides, `apply` writes."""
