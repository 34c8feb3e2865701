"""Fetches an image's Python packages on the host: the host's own pip settings serve, and the image needs no network."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from deploy.sandbox import proc

_TIMEOUT_S = 900.0


def image_python(base: Path) -> str:
    """The version of an image's python3, such as "3.13"."""
    return (base / "usr/bin/python3").readlink().name.removeprefix("python")


async def download(packages: Sequence[str], store: Path, base: Path, log: Path) -> None:
    """Put wheels of the packages and of all they depend on, built for the image's Python, into a folder.

    Args:
        packages: requirements as pip takes them.
        store: the folder; what it has already is not fetched again.
        base: the image's root.
        log: receives pip's output.
    """
    machine = platform.machine()
    tags = [word for minor in (40, 36, 34, 31, 28, 17) for word in ("--platform", f"manylinux_2_{minor}_{machine}")]
    await proc.run(
        [
            *(sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-input"),
            *("--dest", store, "--only-binary=:all:", "--python-version", image_python(base)),
            *("--platform", f"manylinux2014_{machine}", *tags, *packages),
        ],
        timeout_s=_TIMEOUT_S,
        log=log,
    )
