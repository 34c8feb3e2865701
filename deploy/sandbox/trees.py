"""Trees of files that become layers of images."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path


def contents(files: Path, without: Collection[str] = ()) -> list[str | bytes]:
    """What a folder holds, but for files of some names, for the key of a recipe."""
    parts: list[str | bytes] = []
    for source in (source for source in sources(files) if source.name not in without):
        parts += [str(source.relative_to(files)), source.read_bytes()]
    return parts


def copy(files: Path, root: Path, mode: int = 0o644) -> None:
    """Copy a tree. Files are of this mode, and those in a directory `bin` are programs."""
    for source in sources(files):
        target = root / source.relative_to(files)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        target.chmod(0o755 if target.parent.name == "bin" else mode)


def sources(files: Path) -> list[Path]:
    """The files of a tree, in order."""
    return sorted(path for path in files.rglob("*") if path.is_file())
