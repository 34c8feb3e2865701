"""Prices: what providers charge, kept on disk, and how people see them."""
