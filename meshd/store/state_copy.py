"""The files of meshd's state, out of a head and onto one. `meshctl backup` and `restore` run this as their owner.

    python -I -m meshd.store.state_copy export DIRECTORY    writes an archive of them to stdout
    python -I -m meshd.store.state_copy import DIRECTORY    puts those of the archive on stdin in their place

Root opens none of these files: their owner could put a link in the place of each. The journal is copied with SQLite's
own backup, so that it is whole while meshd runs.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from meshd.errors import MeshdError, StoreError
from meshd.runtime.strict_tar import unpack, write_end, write_member
from meshd.store.database import take_lock
from meshd.store.migrations import MIGRATIONS, form

JOURNAL = "journal.db"
FILES = re.compile(
    r"journal\.db|machines\.key|machines\.key\.generations|ledger\.json|accounts\.json|hosts\.json"
    r"|tailscale-auth-key[A-Za-z0-9_.-]{0,80}\.json|munge-keys/[A-Za-z0-9_-][A-Za-z0-9_.-]{0,60}"
)
"""What is copied. Not the logs of machines, which a head can do without."""
FILE_MAX_BYTES = 16 << 20
"""Of each file but the journal."""
ASIDE = "before-restore-"
_UNFINISHED = ".restore-"


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


def import_(directory: Path, source: BinaryIO, now: datetime) -> str:
    """Put the files of an archive in their place; what was there goes into a folder, whose path is returned ("": none).

    Raises:
        StoreError: meshd runs, or the journal of the archive is damaged or of a newer form. Nothing was changed.
        TarRefused: the archive is not what it should be. Nothing was changed.
        OSError: no space, or no permission.
    """
    lock = take_lock((directory / JOURNAL).with_suffix(".lock"))
    try:
        for old in directory.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(old)
        new = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=directory))
        try:
            names = [member.name for member in unpack(source, new, lambda name: FILES.fullmatch(name) is not None)]
            if JOURNAL in names:
                _check_journal(new / JOURNAL)
            return _exchange(directory, new, names, now)
        finally:
            shutil.rmtree(new, ignore_errors=True)
    finally:
        os.close(lock)


def _exchange(directory: Path, new: Path, names: list[str], now: datetime) -> str:
    # With another journal, what belongs to the old one alone has to go: SQLite would apply its log to the new one.
    gone = [f"{JOURNAL}-wal", f"{JOURNAL}-shm"] if JOURNAL in names else []
    aside = directory / f"{ASIDE}{now:%Y%m%dT%H%M%S%fZ}"
    for name in [*gone, *names]:
        if (directory / name).is_symlink() or (directory / name).exists():
            (aside / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            (directory / name).rename(aside / name)
    for name in names:
        (directory / name).parent.mkdir(mode=0o700, exist_ok=True)
        (new / name).rename(directory / name)
    os.sync()
    return str(aside) if aside.exists() else ""


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


def main(argv: list[str]) -> int:
    """Run one of the verbs."""
    verb, path = argv[0], Path(argv[1])
    try:
        if verb == "export":
            export(path, sys.stdout.buffer)
        else:
            sys.stdout.write(import_(path, sys.stdin.buffer, datetime.now(UTC)))
    except (MeshdError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main(sys.argv[1:]))
