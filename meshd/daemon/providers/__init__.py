"""Providers: which are enabled, and the guards around their calls."""
