"""The munge key and credentials made with it."""
