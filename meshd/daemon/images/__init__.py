"""Baked images: makes, lists, chooses and deletes them."""
