"""The Google Compute Engine adapter."""
