"""The munge key and its rotation."""
