"""I/O: the two files that Slurm reads, the last good pair, and who wrote what.

`nodes.conf` and `gres.conf` lie in a directory of root's, behind links in Slurm's own; root's unit writes them
(`headfiles`). meshd's own directory holds a `.good` copy of what was last in force, `.edited` ones of what others
wrote, and `written`, the digests of what meshd wrote last and before. No program of root's reads these.
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
        """What they are compared by."""
        return digest_of(self.nodes, self.gres)


class Writer(Protocol):
    """Replaces both files."""

    async def __call__(self, texts: Texts) -> None:
        """Return when they are in place.

        Raises:
            SlurmError: they were refused, or nobody writes them; the old files are still there.
            OSError: no space or permission; the old files are still there.
        """
        ...


class DirectWriter:
    """Writes by itself what root's unit would: by the same rules. For where root's unit is not, as in tests."""

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
    """The files in `directory`, and what meshd remembers of them in `own`. One writer only."""

    def __init__(self, directory: Path, own: Path | None = None, write: Writer | None = None) -> None:
        """Use root's directory, meshd's own one (the same when None), and who writes the former."""
        self.directory = directory
        self.own = own or directory
        self._put = write or DirectWriter(directory)
        self._seen: tuple[object, str] = (None, "")

    def current(self) -> Texts:
        """What slurmctld would read; a missing file reads as empty."""
        return Texts(self._read(NODES), self._read(GRES))

    def current_digest(self) -> str:
        """The digest of what slurmctld would read. The files are read only when they have changed: ask often."""
        marks = [self._mark(name) for name in (NODES, GRES)]
        if marks != self._seen[0]:
            self._seen = marks, self.current().digest
        return self._seen[1]

    def good(self) -> Texts | None:
        """What was last in force; None before the first time."""
        if not (self.own / f"{NODES}.good").exists():
            return None
        return Texts(self._read_own(f"{NODES}.good"), self._read_own(f"{GRES}.good"))

    def hand_edited(self) -> bool:
        """Somebody else wrote to the files since meshd did."""
        written = self._read_own("written").split()
        return bool(written) and self.current_digest() not in written

    def keep_edit(self) -> None:
        """Put what somebody else wrote aside, as `nodes.conf.edited` and `gres.conf.edited`.

        Raises:
            OSError: no space or permission.
        """
        current = self.current()
        self._write(f"{NODES}.edited", current.nodes)
        self._write(f"{GRES}.edited", current.gres)

    def edit_kept(self) -> bool:
        """Such an edit still lies there: nobody has looked at it and removed it."""
        return (self.own / f"{NODES}.edited").exists()

    async def install(self, texts: Texts) -> None:
        """Have both files put in place, or neither.

        Raises:
            SlurmError: they were refused, or nobody writes them.
            OSError: no space or permission; the old files are still there.
        """
        # Whichever of the two is there after a crash in between, meshd wrote it.
        self._write("written", f"{texts.digest}\n{self.current_digest()}\n")
        await self._put(texts)

    def mark_good(self, texts: Texts) -> None:
        """Record that these are in force.

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
        """What differs after any write."""
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
