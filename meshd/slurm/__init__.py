"""Slurm: its files, its commands, and bringing changes into force."""
