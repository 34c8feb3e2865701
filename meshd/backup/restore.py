"""Puts the files of an archive, or a copy of the journal alone, onto this head.

The state comes first: there it shows whether meshd runs, and whether the journal can be used. Each file that is
replaced is kept aside. A restore that was killed is repeated as a whole.
"""

from __future__ import annotations

import io
import json
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from meshd.backup.archive import (
    MUNGE_KEY,
    PROGRAM_TIMEOUT_S,
    STATE,
    TAILSCALED,
    BackupRefused,
    HeadPlaces,
    Manifest,
    as_owner,
)
from meshd.runtime.aside import aside, forget_old
from meshd.runtime.atomicfile import write_atomic
from meshd.runtime.root_path import others_decide
from meshd.runtime.strict_tar import write_end, write_member

SQLITE = b"SQLite format 3\0"
"""How a copy of the journal begins."""
SOURCE_MAX_BYTES = 6 << 30
_UNIT = "meshd.service"


@dataclass(slots=True)
class Restored:
    """What a restore did.

    Attributes:
        aside: the folders with what was replaced.
        forgotten: the folders of earlier restores that were removed.
        munge_key: the munge key is another one than before.
    """

    aside: list[str] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    munge_key: bool = False


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A copy of a file that nobody can change any more while it is used; "-" is stdin.

    Where others than root decide what is at the path, its owner reads it, and not root.

    Raises:
        OSError: it cannot be read. BackupRefused: it is no file, or is too long.
    """
    with tempfile.TemporaryFile() as copy:
        if str(path) == "-":
            _fill(copy, sys.stdin.buffer)
        elif others_decide(path.absolute()):
            uid, gid = _owner(path.parent)
            other = {} if uid == os.geteuid() else {"user": uid, "group": gid, "extra_groups": []}
            with subprocess.Popen(["cat", "--", str(path)], stdout=subprocess.PIPE, cwd="/", **other) as process:  # type: ignore[call-overload]
                _fill(copy, process.stdout)
            if process.returncode != 0:
                raise BackupRefused(
                    f"{path} cannot be read by the owner of its folder", "move it into a folder of root's"
                )
        else:
            with path.open("rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise BackupRefused(f"{path} is no file")
                _fill(copy, file)
        copy.seek(0)
        yield copy


def is_journal(source: BinaryIO) -> bool:
    """Whether it is a copy of the journal alone."""
    start = source.read(len(SQLITE))
    source.seek(0)
    return start == SQLITE


def restore_journal(source: BinaryIO, state_dir: Path) -> Restored:
    """Put the copy that an older meshd left of the journal in the journal's place.

    Raises:
        BackupRefused: meshd runs, the copy is no journal, or machines have come since it was made. Nothing was changed.
        OSError: no space, no permission.
    """
    return _import("back", state_dir, _owner(state_dir), {"journal.db": _sized(source)})


def check_journal(source: BinaryIO, state_dir: Path) -> None:
    """Look whether `restore_journal` would refuse the copy; meshd may run. Raises BackupRefused, OSError."""
    _as_owner("check", state_dir, _owner(state_dir), {"journal.db": _sized(source)})


def restore(unpacked: Path, manifest: Manifest, state_dir: Path, *, tailnet: bool, places: HeadPlaces) -> Restored:
    """Put all files of an unpacked archive in their place.

    Args:
        unpacked: where `archive.read` has put and checked them.
        manifest: of the archive.
        state_dir: meshd's, by the settings of the archive.
        tailnet: the head's tailnet device too; tailscaled does not run.
        places: of the head's files.

    Raises:
        BackupRefused: the state cannot be put back; nothing was changed.
        OSError: no space, no permission.
    """
    names = sorted(name for name in manifest.files if name.startswith(f"{STATE}/"))
    owner = state_owner(state_dir)
    if not state_dir.exists():
        state_dir.mkdir(mode=0o755, parents=True)
        os.chown(state_dir, *owner)
    files = {n.removeprefix(f"{STATE}/"): ((unpacked / n).open("rb"), manifest.files[n].size) for n in names}
    done = _import("import", state_dir, owner, files)  # type: ignore[arg-type]
    kept = aside(places.aside, datetime.now(UTC))
    for name, entry in manifest.files.items():
        path = places.path(name)
        if path is None or (name == TAILSCALED and not tailnet):
            continue
        data = (unpacked / name).read_bytes()
        if path.is_file() and not path.is_symlink() and path.read_bytes() == data:
            continue
        _replace(path, data, entry.mode, kept / name)
        if name == MUNGE_KEY:
            done.munge_key = True
            with suppress(KeyError):
                user = pwd.getpwnam("munge")
                os.chown(path, user.pw_uid, user.pw_gid)
    if kept.exists():
        done.aside.append(str(kept))
        done.forgotten += map(str, forget_old(places.aside))
    return done


def daemon_runs() -> bool:
    """Whether systemd runs meshd."""
    return _systemctl("is-active", "--quiet", _UNIT)


@contextmanager
def daemon_stopped() -> Iterator[None]:
    """Stop meshd, and start it again, also when what happens between has failed. Raises BackupRefused."""
    if not _systemctl("stop", _UNIT):
        raise BackupRefused("meshd could not be stopped", f"systemctl stop {_UNIT}")
    try:
        yield
    finally:
        started = _systemctl("start", _UNIT)
    if not started:
        raise BackupRefused("the restored meshd does not start", "journalctl -u meshd")


@contextmanager
def tailscaled_stopped() -> Iterator[None]:
    """While its state is replaced."""
    ran = _systemctl("is-active", "--quiet", "tailscaled.service")
    if ran and not _systemctl("stop", "tailscaled.service"):
        raise BackupRefused("tailscaled could not be stopped", "systemctl stop tailscaled")
    try:
        yield
    finally:
        if ran:
            _systemctl("start", "tailscaled.service")


def state_owner(state_dir: Path) -> tuple[int, int]:
    """Whose the state is: who has the folder, else as whom the unit runs."""
    if state_dir.exists():
        return _owner(state_dir)
    shown = subprocess.run(
        ["systemctl", "show", "--value", "-p", "User", _UNIT], capture_output=True, text=True, timeout=30, check=False
    )
    user = shown.stdout.strip() or "slurm"
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise BackupRefused(f"there is no user {user}, as whom meshd runs", "install meshd first") from None
    return entry.pw_uid, entry.pw_gid


def _import(verb: str, directory: Path, owner: tuple[int, int], files: dict[str, tuple[BinaryIO, int]]) -> Restored:
    told = json.loads(_as_owner(verb, directory, owner, files))
    return Restored([told["aside"]] if told["aside"] else [], told["forgotten"])


def _sized(source: BinaryIO) -> tuple[BinaryIO, int]:
    size = source.seek(0, os.SEEK_END)
    source.seek(0)
    return source, size


def _as_owner(verb: str, directory: Path, owner: tuple[int, int], files: dict[str, tuple[BinaryIO, int]]) -> bytes:
    """Give files to the program that runs as the owner of the state; what it printed. Raises BackupRefused."""
    with tempfile.TemporaryFile() as stream, tempfile.TemporaryFile() as errors:
        for name, (file, size) in files.items():
            with file:
                write_member(stream, name, file, size)
        write_end(stream)
        stream.seek(0)
        streams = {"stdin": stream, "stdout": subprocess.PIPE, "stderr": errors}
        with as_owner(verb, directory, owner, **streams) as process:
            out, _ = process.communicate(timeout=PROGRAM_TIMEOUT_S)
        if process.returncode != 0:
            errors.seek(0)
            text = errors.read().decode("utf-8", "replace").strip()
            cure = "systemctl stop meshd, or give --restart" if daemon_runs() and verb != "check" else ""
            raise BackupRefused(f"the state was not restored: {text}", cure)
    return out


def _replace(path: Path, data: bytes, mode: int, aside: Path) -> None:
    path.parent.mkdir(mode=0o700 if "credentials" in path.parts or "ssh" in path.parts else 0o755, parents=True,
                      exist_ok=True)  # fmt: skip
    if path.is_symlink() or path.exists():
        aside.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.is_symlink():
            aside.symlink_to(path.readlink())
            path.unlink()
        else:
            shutil.copy2(path, aside)
    # Group and others never write what root reads.
    write_atomic(path, data, mode=mode & 0o755)


def _owner(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_uid, found.st_gid


def _fill(copy: io.BufferedRandom | BinaryIO, source: BinaryIO) -> None:
    total = 0
    while chunk := source.read(1 << 20):
        total += len(chunk)
        if total > SOURCE_MAX_BYTES:
            raise BackupRefused(f"it has more than {SOURCE_MAX_BYTES} bytes, so it is no archive of meshd")
        copy.write(chunk)


def _systemctl(*words: str) -> bool:
    try:
        return subprocess.run(["systemctl", *words], capture_output=True, timeout=300, check=False).returncode == 0
    except FileNotFoundError:
        return False
