"""The files of meshd's state, out of a head and onto one. `meshctl backup` and `restore` run this as their owner.

    python -I -m meshd.store.state_copy export DIRECTORY    writes an archive of them to stdout
    python -I -m meshd.store.state_copy import DIRECTORY    puts those of the archive on stdin in their place
    python -I -m meshd.store.state_copy back DIRECTORY      the same, for the way back to an older meshd
    python -I -m meshd.store.state_copy check DIRECTORY     says what keeps `back` from it, and changes nothing

`import` and `back` print a JSON object: `aside`, the folder with what was replaced (null: nothing was), and
`forgotten`, older such folders that were removed.

Root opens none of these files: their owner could put a link in the place of each. The journal is copied with SQLite's
own backup, so that it is whole while meshd runs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, LiteralString

from meshd.errors import MeshdError, StoreError
from meshd.runtime.aside import PREFIX, aside, forget_old
from meshd.runtime.strict_tar import unpack, write_end, write_member
from meshd.store.database import take_lock
from meshd.store.migrations import MIGRATIONS, form
from meshd.store.restored_mark import mark

JOURNAL = "journal.db"
UNFINISHED = ".restore-"
FILES = re.compile(
    r"journal\.db|machines\.key|machines\.key\.generations|ledger\.json|accounts\.json|hosts\.json"
    r"|tailscale-auth-key[A-Za-z0-9_.-]{0,80}\.json|munge-keys/[A-Za-z0-9_-][A-Za-z0-9_.-]{0,60}"
)
"""What is copied."""
LEFT_BEHIND = re.compile(
    r"journal\.db-(wal|shm)|journal\.lock|journal\.db\.form-[0-9]+|(logs|prices|slurm)/.+"
    rf"|({PREFIX}|{re.escape(UNFINISHED)})[^/]+/.+|(.+/)?\.[^/]+|tailscaled?\.log\.conf"
)
"""What a new head can do without: logs, prices, what meshd last wrote for Slurm, files that were not finished, and the
id of its logs that a program of tailscale leaves in its home."""
FILE_MAX_BYTES = 16 << 20
"""Of each file but the journal."""


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import did.

    Attributes:
        aside: the folder with what was replaced; None: nothing was.
        forgotten: older such folders, which were removed.
    """

    aside: Path | None
    forgotten: tuple[Path, ...]


def export(directory: Path, out: BinaryIO) -> None:
    """Write an archive of the state. Raises StoreError, TarRefused or OSError."""
    with tempfile.TemporaryDirectory() as work:
        copy = Path(work) / JOURNAL
        if (directory / JOURNAL).exists():
            _copy_journal(directory / JOURNAL, copy)
            _put(out, JOURNAL, copy, None)
        for name in sorted(_names(directory)):
            if name != JOURNAL:
                _put(out, name, directory / name, FILE_MAX_BYTES)
    write_end(out)
    out.flush()


def unlisted(directory: Path) -> list[str]:
    """Files that are in neither list: somebody must decide whether a new head needs them."""
    files = (path for path in directory.rglob("*") if not path.is_dir() or path.is_symlink())
    names = sorted(str(path.relative_to(directory)) for path in files)
    return [name for name in names if not FILES.fullmatch(name) and not LEFT_BEHIND.fullmatch(name)]


def check(directory: Path, source: BinaryIO) -> None:
    """Look whether an older meshd can go on with the journal of an archive. Raises as `import_` does."""
    with tempfile.TemporaryDirectory() as work:
        unpack(source, Path(work), lambda name: name == JOURNAL)
        _check_journal(Path(work) / JOURNAL)
        _check_newcomers(directory / JOURNAL, Path(work) / JOURNAL)


def import_(directory: Path, source: BinaryIO, now: datetime, *, back: bool = False) -> Imported:
    """Put the files of an archive in their place; what was there goes into a folder.

    Args:
        directory: of the state.
        source: the archive.
        now: UTC.
        back: the journal in it is for the older meshd that wrote it, which does not know machines that came since.

    Raises:
        StoreError: meshd runs, the journal of the archive is damaged or of a newer form, or machines have come since.
            Nothing was changed.
        TarRefused: the archive is not what it should be. Nothing was changed.
        OSError: no space, or no permission.
    """
    lock = take_lock((directory / JOURNAL).with_suffix(".lock"))
    try:
        for old in directory.glob(f"{UNFINISHED}*"):
            shutil.rmtree(old)
        new = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=directory))
        try:
            names = [member.name for member in unpack(source, new, lambda name: FILES.fullmatch(name) is not None)]
            if JOURNAL in names:
                _check_journal(new / JOURNAL)
                if back:
                    _check_newcomers(directory / JOURNAL, new / JOURNAL)
                mark(new / JOURNAL, now)
            found = _exchange(directory, new, names, now)
        finally:
            shutil.rmtree(new, ignore_errors=True)
        return Imported(found, tuple(forget_old(directory)))
    finally:
        os.close(lock)


def _exchange(directory: Path, new: Path, names: list[str], now: datetime) -> Path | None:
    # With another journal, what belongs to the old one alone has to go: SQLite would apply its log to the new one.
    gone = [f"{JOURNAL}-wal", f"{JOURNAL}-shm"] if JOURNAL in names else []
    kept = aside(directory, now)
    for name in [*gone, *names]:
        if (directory / name).is_symlink() or (directory / name).exists():
            (kept / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            (directory / name).rename(kept / name)
    for name in names:
        (directory / name).parent.mkdir(mode=0o700, exist_ok=True)
        (new / name).rename(directory / name)
    os.sync()
    return kept if kept.exists() else None


def _names(directory: Path) -> Iterator[str]:
    """The files that there are; links and other things that are no files are not taken."""
    for path in [*directory.glob("*"), *directory.glob("munge-keys/*")]:
        name = str(path.relative_to(directory))
        if FILES.fullmatch(name) and stat.S_ISREG(path.lstat().st_mode):
            yield name


def _put(out: BinaryIO, name: str, path: Path, most: int | None) -> None:
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if most is not None and size > most:
            raise StoreError(f"{path} has {size} bytes, and more than {most} are not copied")
        write_member(out, name, file, size)


def _copy_journal(path: Path, copy: Path) -> None:
    copy.touch(mode=0o600)
    try:
        with (
            closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)) as source,
            closing(sqlite3.connect(copy)) as target,
        ):
            source.backup(target)
            # One file: what is restored needs no log beside it.
            target.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error as error:
        raise StoreError(f"the journal {path} cannot be copied: {error}") from error


def _check_journal(path: Path) -> None:
    """Raises StoreError when a file is no journal, is damaged, or is of a newer form."""
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as db:
            # A trigger or a view of a file that somebody else made could run when it is used.
            strange = db.execute("SELECT count(*) FROM sqlite_master WHERE type IN ('trigger', 'view')").fetchone()[0]
            words = db.execute("PRAGMA quick_check(1)").fetchone()[0]
            found = form(db)
            there = db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'machines'").fetchone()[0]
    except sqlite3.Error as error:
        raise StoreError(f"the journal is damaged: {error}") from error
    if words != "ok" or not there or strange or found < 1:
        raise StoreError(f"this is no journal of meshd, or it is damaged ({words})")
    if found > len(MIGRATIONS):
        raise StoreError(
            f"the journal has form {found}, this meshd knows up to {len(MIGRATIONS)}: install a newer meshd"
        )


def _check_newcomers(present: Path, older: Path) -> None:
    """Raises StoreError when the present journal is of a newer form, and has machines that the older one lacks.

    One that cannot be read has no say: it is damaged, and the older one may be all that there is.
    """
    try:
        form_now, now = _machines_of(
            present, "mode=ro", "SELECT name FROM machines WHERE phase NOT IN ('requested', 'gone')"
        )
        form_then, then = _machines_of(older, "immutable=1", "SELECT name FROM machines")
    except sqlite3.Error:
        return
    if form_now > form_then and (came := sorted(now - then)):
        raise StoreError(
            f"machines have come since the copy was made, and the meshd that wrote it does not know them: it would end "
            f"those that were rented together, with their jobs. Nothing was changed. First let meshd run and give them "
            f"back; each goes when its jobs have ended: `meshctl remove {' '.join(came)}` (docs/operations.md, Upgrade)"
        )


def _machines_of(path: Path, how: str, query: LiteralString) -> tuple[int, set[str]]:
    """The form of a journal, and names of its machines. Every form has these columns."""
    with closing(sqlite3.connect(f"file:{path}?{how}", uri=True, timeout=30)) as db:
        return form(db), {str(name) for (name,) in db.execute(query)}


def main(argv: list[str]) -> int:
    """Run one of the verbs."""
    verb, path = argv[0], Path(argv[1])
    try:
        if verb == "export":
            export(path, sys.stdout.buffer)
        elif verb == "check":
            check(path, sys.stdin.buffer)
        else:
            done = import_(path, sys.stdin.buffer, datetime.now(UTC), back=verb == "back")
            told = {"aside": done.aside and str(done.aside), "forgotten": list(map(str, done.forgotten))}
            sys.stdout.write(json.dumps(told))
    except (MeshdError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main(sys.argv[1:]))
