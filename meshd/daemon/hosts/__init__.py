"""Owned machines: invitations, the polls of hosts, and the provider `static`."""
