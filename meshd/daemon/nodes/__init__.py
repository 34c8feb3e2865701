"""Nodes: the API for node agents, what the agents report, the roster, devices and tokens."""
