"""I/O: the two files that meshd owns, the last good pair, and who wrote what.

The directory holds `nodes.conf` and `gres.conf` (what slurmctld reads, through links in Slurm's own directory), each
with a `.good` copy of what was last in force, and `written`, the digest of what meshd wrote last.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from meshd.runtime.atomicfile import write_atomic
from meshd.slurm.nodes import GRES, NODES, digest_of

FILE_MODE = 0o644
"""Every user's Slurm commands on the head read them."""


@dataclass(frozen=True, slots=True)
class Texts:
    """Both files' content."""

    nodes: str = ""
    gres: str = ""

    @property
    def digest(self) -> str:
        """What they are compared by."""
        return digest_of(self.nodes, self.gres)


class SlurmFiles:
    """The files in `directory`. One writer only."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
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
        if not (self.directory / f"{NODES}.good").exists():
            return None
        return Texts(self._read(f"{NODES}.good"), self._read(f"{GRES}.good"))

    def hand_edited(self) -> bool:
        """Somebody else wrote to the files since meshd did."""
        written = self._read("written").strip()
        return bool(written) and self.current_digest() != written

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
        return (self.directory / f"{NODES}.edited").exists()

    def install(self, texts: Texts) -> None:
        """Put both files in place, or neither: everything that needs space is done before the first rename.

        Raises:
            OSError: no space or permission; the old files are still there.
        """
        self._write(f"{NODES}.new", texts.nodes)
        self._write(f"{GRES}.new", texts.gres)
        self._write("written", texts.digest)
        (self.directory / f"{GRES}.new").replace(self.directory / GRES)
        (self.directory / f"{NODES}.new").replace(self.directory / NODES)

    def mark_good(self, texts: Texts) -> None:
        """Record that these are in force.

        Raises:
            OSError: no space or permission.
        """
        self._write(f"{NODES}.good", texts.nodes)
        self._write(f"{GRES}.good", texts.gres)

    def _read(self, name: str) -> str:
        with suppress(FileNotFoundError):
            return (self.directory / name).read_bytes().decode("utf-8", "surrogateescape")
        return ""

    def _mark(self, name: str) -> tuple[int, int, int] | None:
        """What differs after any write."""
        with suppress(FileNotFoundError):
            seen = (self.directory / name).stat()
            return seen.st_ino, seen.st_size, max(seen.st_mtime_ns, seen.st_ctime_ns)
        return None

    def _write(self, name: str, text: str) -> None:
        write_atomic(self.directory / name, text.encode("utf-8", "surrogateescape"), mode=FILE_MODE)
