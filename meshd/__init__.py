"""meshd: one Slurm cluster out of GPU machines rented anywhere."""

__version__ = "0.1.0"
