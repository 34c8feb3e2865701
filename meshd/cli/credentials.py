"""The credentials as systemd gives them to the daemon, for checks that run outside of it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from meshd.runtime.secretfile import VARIABLE


@contextmanager
def lent(directory: Path) -> Iterator[bool]:
    """While it lasts, `directory/NAME/KEY` is the credential `NAME_KEY`, as LoadCredential= in meshd.service has it.

    Yields:
        Whether the credentials can be read; a directory that is not there has none.
    """
    if os.environ.get(VARIABLE):
        yield True
        return
    try:
        found = {f"{path.parent.name}_{path.name}": path for path in directory.glob("*/*")} if _open(directory) else {}
        there = [directory, *(path for path in found.values() if path.exists())]
        readable = not directory.exists() or all(os.access(path, os.R_OK) for path in there)
    except OSError:
        found, readable = {}, False
    with tempfile.TemporaryDirectory(prefix="meshctl-") as made:
        for name, path in found.items():
            (Path(made) / name).symlink_to(path.absolute())
        os.environ[VARIABLE] = made
        try:
            yield readable
        finally:
            del os.environ[VARIABLE]


def _open(directory: Path) -> bool:
    return os.access(directory, os.R_OK | os.X_OK)
