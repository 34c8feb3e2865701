"""Runs the script of an invitation, or parts of it, below a scratch directory."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path

from pydantic import SecretStr

from meshd.bootstrap import assets
from meshd.bootstrap.invitation import Invitation, render

INVITATION = Invitation(
    host="tower", heads=("100.64.0.1", "fd7a:115c:a1e0::1"), port=7677, token=SecretStr("T" * 64),
    expires_at=datetime(2030, 1, 1, tzinfo=UTC), agent_sha256="0" * 64, slurm_version="24.11.5",
    auth_key=SecretStr("tskey-auth-k-'quote"), tailnet="mine.ts.net",
    slurmd=("23.02", "24.11"),
)  # fmt: skip
PLACES = (
    "/var/lib/", "/opt/meshd-host", "/etc/", "/run/systemd", "/run/meshd-host", "/usr/local/etc", "/var/cache",
    "/usr/share", "/proc/[0-9]",
)  # fmt: skip
CALM = """
id() { echo 0; }
tailscale() { :; }
command() { return 1; }
date() { echo 1; }
check_slurm() { :; }
check_room() { :; }
"""


def script(root: Path, then: str, invitation: Invitation = INVITATION) -> subprocess.CompletedProcess[str]:
    """Run lines after the script's functions, without its call of main, below a scratch directory."""
    words = ["dash", "-c", text(root, then, invitation)]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


def text(root: Path, then: str, invitation: Invitation = INVITATION) -> str:
    """The script that `script` runs."""
    body, main, rest = render(invitation, assets.invitation_template()).rpartition("\nmain\n")
    assert main and not rest
    for path in PLACES:
        body = body.replace(path, f"{root}{path}")
    return f"{body}\n{then}\n"
