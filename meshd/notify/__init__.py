"""Sends notices to receivers: webhooks and mail."""
