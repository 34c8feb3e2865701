"""Where things are unless the settings say otherwise: apart from the settings, which take a while to import."""

from __future__ import annotations

from pathlib import Path
from typing import Final

SETTINGS: Final = Path("/etc/meshd/meshd.toml")
"""meshd's settings file."""
SOCKET: Final = Path("/run/meshd/meshd.sock")
"""On which meshd listens."""
SSH_KEY: Final = Path("/etc/meshd/ssh/id_ed25519")
"""Root's key on the head for its nodes."""
