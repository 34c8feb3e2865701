"""Folders in which a restore keeps what it has replaced: named by their time, and the newest few alone stay."""

from __future__ import annotations

import re
import shutil
from datetime import datetime
from pathlib import Path

KEPT = 3
"""How many stay in a place: what was there before the last restores. Each may have a journal."""
PREFIX = "before-restore-"
_NAME = re.compile(rf"{PREFIX}[0-9]{{8}}T[0-9]{{12}}Z")


def aside(place: Path, now: datetime) -> Path:
    """Where what is replaced now goes. The folder is not made."""
    return place / f"{PREFIX}{now:%Y%m%dT%H%M%S%fZ}"


def forget_old(place: Path) -> list[Path]:
    """Remove all such folders but the newest few; returns those that are removed. Raises OSError."""
    found = sorted(path for path in place.glob(f"{PREFIX}*") if _NAME.fullmatch(path.name))
    old = [path for path in found[:-KEPT] if path.is_dir() and not path.is_symlink()]
    for path in old:
        shutil.rmtree(path)
    return old
