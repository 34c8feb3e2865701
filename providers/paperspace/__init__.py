"""The adapter for Paperspace."""
