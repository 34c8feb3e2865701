"""meshd-node: makes a rented machine a node of the cluster. Python 3.9, standard library only."""

from __future__ import annotations

VERSION = "0.1.0"
