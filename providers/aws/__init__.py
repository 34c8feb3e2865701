"""The adapter for AWS EC2."""
