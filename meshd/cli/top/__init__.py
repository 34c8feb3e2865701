"""`meshctl top`: a live view of the cluster in a terminal."""
