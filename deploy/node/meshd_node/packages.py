"""Packages that the image lacks, by apt. Nothing they bring is started: the agent starts what is needed."""

from __future__ import annotations

import os
from collections.abc import Sequence

from .console import say
from .errors import NotPossible, ToolFailed, ToolTimeout
from .files import write_atomic
from .paths import Paths
from .tools import find, run

APT_TIMEOUT_S = 600.0
_QUIET = ["-q", "-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300"]


def ensure(paths: Paths, names: Sequence[str]) -> None:
    """Install those of `names` that are not installed.

    Raises:
        NotPossible: there is no apt here, or it failed: the reason is apt's own last words.
    """
    missing = [name for name in names if not _installed(name)]
    if not missing:
        return
    wanted = " ".join(missing)
    if not find("apt-get"):
        raise NotPossible(
            f"this image lacks {wanted}, and there is no apt-get to install them", "use an image with Slurm and munge"
        )
    say(f"installing {wanted}", urgent=True)
    os.environ["DEBIAN_FRONTEND"] = "noninteractive"
    held = not paths.policy_rc_d.exists()
    if held:
        write_atomic(paths.policy_rc_d, b"#!/bin/sh\nexit 101\n", 0o755)
    try:
        run(["apt-get", "update", "-q"], APT_TIMEOUT_S, check=False)
        run(["apt-get", "install", *_QUIET, *missing], APT_TIMEOUT_S)
    except (ToolFailed, ToolTimeout) as error:
        raise NotPossible(f"cannot install {wanted}: {error}", "use an image with Slurm and munge") from error
    finally:
        if held:
            paths.policy_rc_d.unlink()


def _installed(name: str) -> bool:
    if not find("dpkg-query"):
        return False
    result = run(["dpkg-query", "-W", "-f", "${db:Status-Status}", name], 15.0, check=False)
    return result.returncode == 0 and result.stdout.strip() == "installed"
