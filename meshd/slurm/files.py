"""I/O: the two files that Slurm reads, their last good copies, and the detection of edits by hand.

`nodes.conf` and `gres.conf` lie in a directory that root owns; Slurm's own directory links to them. A unit that runs as
root writes them (`headfiles`). meshd's own directory holds `.good` copies of the content that was last in force,
`.edited` copies of edits by hand, and `written`, the digests of the last two contents that meshd wrote. No program that
runs as root reads meshd's directory.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from meshd.errors import SlurmError
from meshd.plan.slurm_lines import Allowed, LineRefused, check
from meshd.runtime.atomicfile import write_atomic
from meshd.slurm.headfiles import FILE_MODE, put
from meshd.slurm.nodes import GRES, NODES, digest_of


@dataclass(frozen=True, slots=True)
class Texts:
    """Both files' content."""

    nodes: str = ""
    gres: str = ""

    @property
    def digest(self) -> str:
        """SHA-256 over both, hex."""
        return digest_of(self.nodes, self.gres)


class Writer(Protocol):
    """Replaces both files."""

    async def __call__(self, texts: Texts) -> None:
        """Return when both files are in place.

        Raises:
            SlurmError: root's unit refused them, or does not run; the old files are still there.
            OSError: no space or permission; the old files are still there.
        """
        ...


class DirectWriter:
    """Writes the files in this process, by the rules of root's unit. For tests, where that unit does not run."""

    def __init__(self, directory: Path, allowed: Allowed | None = None) -> None:
        self._directory = directory
        self._allowed = allowed

    async def __call__(self, texts: Texts) -> None:
        """See Writer."""
        try:
            check(texts.nodes, texts.gres, self._allowed)
        except LineRefused as error:
            raise SlurmError(str(error)) from error
        put(self._directory, texts.nodes, texts.gres)


class SlurmFiles:
    """The files in `directory`, and meshd's copies and digests in `own`. One writer only."""

    def __init__(self, directory: Path, own: Path | None = None, write: Writer | None = None) -> None:
        """Use root's `directory`, meshd's `own` (None: the same), and `write` (None: DirectWriter) for root's."""
        self.directory = directory
        self.own = own or directory
        self._put = write or DirectWriter(directory)
        self._seen: tuple[object, str] = (None, "")

    def current(self) -> Texts:
        """The content that slurmctld would read; "" for a missing file."""
        return Texts(self._read(NODES), self._read(GRES))

    def current_digest(self) -> str:
        """The digest of `current()`. Cheap to call often: it reads the files only when they have changed."""
        marks = [self._mark(name) for name in (NODES, GRES)]
        if marks != self._seen[0]:
            self._seen = marks, self.current().digest
        return self._seen[1]

    def good(self) -> Texts | None:
        """The content that was last in force; None before the first one."""
        if not (self.own / f"{NODES}.good").exists():
            return None
        return Texts(self._read_own(f"{NODES}.good"), self._read_own(f"{GRES}.good"))

    def hand_edited(self) -> bool:
        """Whether another program or a person wrote to the files after meshd did."""
        written = self._read_own("written").split()
        return bool(written) and self.current_digest() not in written

    def keep_edit(self) -> None:
        """Copy an edit by hand to `nodes.conf.edited` and `gres.conf.edited`.

        Raises:
            OSError: no space or permission.
        """
        current = self.current()
        self._write(f"{NODES}.edited", current.nodes)
        self._write(f"{GRES}.edited", current.gres)

    def edit_kept(self) -> bool:
        """Whether such a copy is still there. A person removes it after reading it."""
        return (self.own / f"{NODES}.edited").exists()

    async def install(self, texts: Texts) -> None:
        """Have both files written, or neither.

        Raises:
            SlurmError: root's unit refused them, or does not run.
            OSError: no space or permission; the old files are still there.
        """
        # After a crash in between either content may be there: meshd wrote both.
        self._write("written", f"{texts.digest}\n{self.current_digest()}\n")
        await self._put(texts)

    def mark_good(self, texts: Texts) -> None:
        """Record that this content is in force.

        Raises:
            OSError: no space or permission.
        """
        self._write(f"{NODES}.good", texts.nodes)
        self._write(f"{GRES}.good", texts.gres)

    def _read(self, name: str) -> str:
        return _read(self.directory / name)

    def _read_own(self, name: str) -> str:
        return _read(self.own / name)

    def _mark(self, name: str) -> tuple[int, int, int] | None:
        """Inode, size and time of change: at least one differs after any write. None for a missing file."""
        with suppress(FileNotFoundError):
            seen = (self.directory / name).stat()
            return seen.st_ino, seen.st_size, max(seen.st_mtime_ns, seen.st_ctime_ns)
        return None

    def _write(self, name: str, text: str) -> None:
        write_atomic(self.own / name, text.encode("utf-8", "surrogateescape"), mode=FILE_MODE)


def _read(path: Path) -> str:
    with suppress(FileNotFoundError):
        return path.read_bytes().decode("utf-8", "surrogateescape")
    return ""
