"""The man pages."""
