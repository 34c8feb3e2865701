"""A store of things that are slow to build: shared by all clones, safe against two builders and against Ctrl-C.

Every entry is `<root>/<kind>/<name>-<key>`, where the key is a hash of its recipe. An entry is built in a directory
beside its final place and renamed when complete, so whatever carries the final name is whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from deploy.sandbox.progress import say

_PARTIAL = ".partial"
_POLL_S = 0.2


def cache_root() -> Path:
    """Where entries live: $MESHD_CACHE, or /var/cache/meshd-sandbox."""
    return Path(os.environ.get("MESHD_CACHE") or "/var/cache/meshd-sandbox")


def recipe_key(*parts: str | bytes) -> str:
    """A short name for a recipe: the same parts give the same key, any change another one."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()[:12]


@contextlib.asynccontextmanager
async def lock(name: str, root: Path | None = None) -> AsyncIterator[None]:
    """Hold the lock `name` against every other process that uses the same cache; wait for it as long as it takes."""
    folder = (root or cache_root()) / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    # Python opens files close-on-exec: a program that a builder starts cannot keep the lock after the builder's death.
    with (folder / f"{name}.lock").open("w") as file:
        waiting = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not waiting:
                    say(f"{name}: another run is building it, waiting for that")
                    waiting = True
                await asyncio.sleep(_POLL_S)
        yield


async def ensure(
    kind: str, name: str, key: str, build: Callable[[Path], Awaitable[None]], root: Path | None = None
) -> Path:
    """Return the directory of an entry, built first if this cache has none yet.

    Args:
        kind: group of entries, a folder of the cache ("images", "tools").
        name: what a person calls it.
        key: hash of the recipe; entries of the same name with other keys are left for clones of other versions.
        build: fills the empty directory it is given.
        root: the cache; None stands for `cache_root()`.
    """
    folder = (root or cache_root()) / kind
    entry = folder / f"{name}-{key}"
    if entry.is_dir():
        return entry
    folder.mkdir(parents=True, exist_ok=True)
    async with lock(f"{kind}-{name}", root):
        if entry.is_dir():
            return entry
        partial = folder / f"{name}-{key}{_PARTIAL}"
        # We hold the lock, so whatever lies here is what an interrupted run left.
        if partial.exists():
            shutil.rmtree(partial)
        partial.mkdir()
        try:
            await build(partial)
            partial.rename(entry)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    return entry


def log_file(name: str) -> Path:
    """An empty file for the output of a long build; it stays until the next build of that name."""
    folder = cache_root() / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.log"
    path.write_bytes(b"")
    return path
