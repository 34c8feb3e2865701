"""The demonstration: a cluster in a box that grows to some GPUs, runs a job on them, and gives them back."""
