"""Root's key for the nodes: `meshctl init` makes it, `meshctl ssh` and `run` use it."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path, PurePosixPath

from meshd.runtime.rootfs import Kind, RootFs
from meshd.runtime.run import run

KEYGEN_S = 30.0
COMMENT = "root on the head of meshd"


def needs_key(fs: RootFs, path: PurePosixPath) -> bool:
    """Whether one of the two halves is missing, and ssh-keygen can make them. A key that is there stays.

    Raises:
        OSError: a directory cannot be read.
    """
    halves = (path, path.with_name(path.name + ".pub"))
    return any(fs.kind(half) is Kind.MISSING for half in halves) and shutil.which("ssh-keygen") is not None


def make_key(fs: RootFs, path: PurePosixPath) -> str:
    """Make the key, 0600, and its public half, 0644; returns its fingerprint.

    Both are made beside their places first: a run that is killed leaves no half of a new key that the other does not
    fit.

    Raises:
        MeshdError: ssh-keygen fails.
        OSError: a file cannot be written.
    """
    place: Path = fs.locate(path)
    place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{place.name}.", dir=place.parent) as name:
        new = Path(name) / "key"
        _keygen("-q", "-t", "ed25519", "-N", "", "-C", COMMENT, "-f", str(new))
        public = new.with_name("key.pub")
        public.chmod(0o644)
        shown = _keygen("-l", "-f", str(public))
        place.unlink(missing_ok=True)
        public.replace(place.with_name(place.name + ".pub"))
        new.replace(place)
    return shown.split()[1] if len(shown.split()) > 1 else ""


def _keygen(*words: str) -> str:
    return asyncio.run(run(["ssh-keygen", *words], timeout_s=KEYGEN_S)).stdout
