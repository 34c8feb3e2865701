"""PURE: the script that makes a machine the master of an image. POSIX sh, run by root. It holds no secret."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from meshd.bootstrap.stage1 import filled

TAILSCALE_PACKAGES = "https://pkgs.tailscale.com/stable"


@dataclass(frozen=True, slots=True)
class BakeScript:
    """The values in the script.

    Attributes:
        node_packages: apt's names: for an image without Slurm or munge.
        pool_packages: the same, for every image.
        slurm_uid, slurm_gid, munge_uid, munge_gid: the head's.
    """

    node_packages: tuple[str, ...]
    pool_packages: tuple[str, ...]
    slurm_uid: int
    slurm_gid: int
    munge_uid: int
    munge_gid: int


def render(script: BakeScript, template: str) -> str:
    """The script. Every value is quoted for the shell.

    Args:
        script: the values.
        template: the text of deploy/node/bake.sh (`assets.bake_template`).
    """
    values = {
        "PACKAGES": TAILSCALE_PACKAGES,
        "NODE_PACKAGES": " ".join(script.node_packages),
        "POOL_PACKAGES": " ".join(script.pool_packages),
        "SLURM_UID": str(script.slurm_uid),
        "SLURM_GID": str(script.slurm_gid),
        "MUNGE_UID": str(script.munge_uid),
        "MUNGE_GID": str(script.munge_gid),
    }
    return filled(template, values)


def parts_of(text: str) -> str:
    """A digest of a script: another one makes another image."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
