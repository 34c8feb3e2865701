"""The files of a pod (deploy/container): in our own image they are there, elsewhere the agent lays them out."""

from __future__ import annotations

from .files import write_atomic
from .paths import Paths


def lay_out(paths: Paths) -> bool:
    """Copy the files from the agent's archive where there are none. Returns whether it did.

    An image's own files are never replaced: its services run by them already.
    """
    entry = paths.pod / "entrypoint"
    if entry.exists():
        return False
    source = paths.agent / "pod"
    found = [path for path in sorted(source.rglob("*")) if path.is_file()]
    # the entry point comes last: where it is, all is
    for path in sorted(found, key=lambda one: one.name == entry.name):
        data = path.read_bytes()
        write_atomic(paths.pod / path.relative_to(source), data, 0o755 if data.startswith(b"#!") else 0o644)
    return entry.exists()
