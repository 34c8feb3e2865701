"""Slurm's files: what they say, when they are written, and how Slurm answers."""
