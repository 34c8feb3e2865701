"""meshctl."""
