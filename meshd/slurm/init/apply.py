"""I/O: carries out an InitPlan. Needs root, who owns Slurm's directory.

All steps that need disk space or permission come before the first file is replaced. slurm.conf comes last: the files
before it have no effect on a Slurm that does not include them yet. So a run that is killed leaves the old state or the
new one, and the next run continues.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path, PurePosixPath

from meshd.plan.slurm_lines import LineRefused
from meshd.runtime.rootfs import Kind, RootFs
from meshd.slurm.headfiles import adopt
from meshd.slurm.init.accounting import SLURMDBD_CONF
from meshd.slurm.init.codes import InitRefused, Refusal
from meshd.slurm.init.replace import TEMPORARY, copy_beside, immutable, put, remove_unfinished, stage
from meshd.slurm.init.types import CGROUP_CONF, GRES_CONF, SLURM_CONF, FileChange, InitPlan, Link
from meshd.slurm.nodes import HEADER

CHANGES = "changes"
"""The folder in root's directory with a record of each change."""

_ORDER = {GRES_CONF: 1, CGROUP_CONF: 2, SLURM_CONF: 3}


def check_init(plan: InitPlan, fs: RootFs) -> None:
    """Check before any write whether the plan can be carried out.

    Raises:
        InitRefused: a file changed since the plan was made, or a path is taken or not writable.
        OSError: a directory cannot be read.
    """
    for path, text in plan.read.items():
        _same_text(fs, path, text)
    for change in plan.files:
        place = fs.locate(change.path)
        _writable(place.parent, change.path)
        if immutable(place) or immutable(place.parent):
            raise InitRefused(
                Refusal.IMMUTABLE,
                f"{place} cannot be replaced, not even by root: it or its directory has the immutable flag",
                f"chattr -i -a {place} {place.parent}",
            )
    for link in plan.links:
        place = fs.locate(link.path, follow_last=False)
        _writable(place.parent, link.path)
        former = fs.is_link(link.path) and fs.link_target(link.path) == plan.former_dir / link.target.name
        if not former and (place.exists() or place.is_symlink()):
            raise InitRefused(Refusal.FILE_NAME_TAKEN, f"{link.path} exists already", f"mv {link.path} {link.path}.old")


def apply_init(plan: InitPlan, now: datetime, fs: RootFs | None = None) -> dict[PurePosixPath, Path]:
    """Make the directory, the links, a copy of each old file, then the new files: slurm.conf last.

    Args:
        plan: the changes.
        now: for the names of the copies; UTC.
        fs: the root of the file system, for another machine's image.

    Returns:
        The copy of each changed file, by the file's path.

    Raises:
        InitRefused: as `check_init`, or another run is active. Nothing was written.
        OSError: no space or permission. All files are unchanged.
    """
    fs = fs or RootFs()
    with _alone(plan, fs):
        check_init(plan, fs)
        changes = sorted(plan.files, key=lambda change: _ORDER.get(change.path.name, 0))
        _fill_directory(plan, fs)
        undo: list[tuple[Path, bytes | None]] = []
        staged: dict[PurePosixPath, Path] = {}
        copies: dict[PurePosixPath, Path] = {}
        links: list[Path] = []
        records: list[Path] = []
        try:
            for change in changes:
                _stage(change, fs, now, staged, copies)
            for link in plan.links:
                _link(link, fs, links)
            for change in changes:
                _same_text(fs, change.path, change.old)
                place = fs.locate(change.path)
                undo.append((place, None if change.old is None else _bytes(change.old)))
                _record(change, place, fs.locate(plan.slurm_dir) / CHANGES, records)
                put(staged.pop(change.path), place)
        except BaseException:
            _undo(undo, [*staged.values(), *copies.values(), *links])
            for record in records:
                shutil.rmtree(record, ignore_errors=True)
            raise
        return copies


def take_back(plan: InitPlan, fs: RootFs) -> None:
    """Put slurm.conf back as it was before `apply_init`.

    Raises:
        OSError: it cannot be written.
    """
    for change in plan.files:
        if change.path.name == SLURM_CONF and change.old is not None:
            place = fs.locate(change.path)
            put(stage(place, _bytes(change.old), place), place)


def read_files(conf_dir: Path) -> tuple[dict[str, str], dict[str, str]]:
    """The texts of the *.conf files in Slurm's directory, and the targets of its links, both by name.

    `surrogateescape` keeps bytes that are not UTF-8.

    Raises:
        OSError: the directory or a file cannot be read.
    """
    texts: dict[str, str] = {}
    links: dict[str, str] = {}
    for path in sorted(conf_dir.glob("*.conf")) if conf_dir.is_dir() else []:
        if path.is_symlink():
            links[path.name] = str(path.readlink())
        if path.is_file():
            texts[path.name] = path.read_bytes().decode("utf-8", "surrogateescape")
    return texts, links


def _stage(
    change: FileChange,
    fs: RootFs,
    now: datetime,
    staged: dict[PurePosixPath, Path],
    copies: dict[PurePosixPath, Path],
) -> None:
    fs.locate(change.path.parent).mkdir(parents=True, exist_ok=True)
    place = fs.locate(change.path)
    like = place if change.old is not None else None
    staged[change.path] = stage(place, _bytes(change.new), like, mode=change.mode)
    if like is None and change.owner:
        os.chown(staged[change.path], *fs.ids(change.owner))
    if change.old is not None:
        directory = fs.locate(change.path.parent)
        name = f"{change.path.name}.meshd-{now:%Y%m%dT%H%M%SZ}"
        copies[change.path] = copy_beside(place, _bytes(change.old), name, directory)


def _record(change: FileChange, place: Path, changes: Path, made: list[Path]) -> None:
    """Keep the file as it is before and after a change, so that a purge can undo it: `restore_slurm_files` in
    deploy/head/steps.sh. slurmdbd.conf holds a password, and stays when meshd goes.
    """
    if change.path.name == SLURMDBD_CONF:
        return
    content = {"after": _bytes(change.new), "path": os.fsencode(place)}
    if change.old is not None:
        content["before"] = _bytes(change.old)
    known = sorted(changes.glob("[0-9]*"))
    if any({part.name: part.read_bytes() for part in record.iterdir()} == content for record in known):
        return  # of a run that was killed before it changed the file
    record = changes / f"{int(known[-1].name) + 1 if known else 1:06}"
    unfinished = changes / ".new"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(mode=0o700, parents=True)
    for name, data in content.items():
        put(stage(unfinished / name, data, mode=0o600), unfinished / name)
    unfinished.rename(record)
    made.append(record)


def _undo(undo: list[tuple[Path, bytes | None]], made: list[Path]) -> None:
    """Restore replaced files, and remove new ones."""
    for place, old in reversed(undo):
        if old is None:
            place.unlink(missing_ok=True)
        elif place.read_bytes() != old:
            put(stage(place, old, place), place)
    for path in made:
        path.unlink(missing_ok=True)


@contextmanager
def _alone(plan: InitPlan, fs: RootFs) -> Iterator[None]:
    """Lock out other runs. The lock is on meshd's directory, or the nearest existing one above it."""
    directory = fs.locate(plan.slurm_dir)
    while not directory.is_dir():
        directory = directory.parent
    lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InitRefused(
                Refusal.BUSY, "another `meshctl init` is running", "wait for it, then `meshctl init` again"
            ) from None
        for change in plan.files:
            for place in {fs.locate(change.path).parent, fs.locate(change.path.parent)}:
                with suppress(FileNotFoundError):
                    remove_unfinished(place)
        yield
    finally:
        os.close(lock)


def _fill_directory(plan: InitPlan, fs: RootFs) -> None:
    """Fill root's directory for meshd's files. Writes nothing below directories of meshd's user."""
    try:
        adopt(fs.locate(plan.former_dir), fs.locate(plan.slurm_dir), (plan.first_nodes_conf, HEADER))
    except LineRefused as error:
        raise InitRefused(
            Refusal.FORMER_FILES,
            f"{plan.former_dir}: {error}",
            # Not as root: a user who can write there could redirect root's write through a link.
            f'cd {plan.former_dir} && for f in nodes gres; do runuser -u "$(stat -c %U .)" -- '
            "cp $f.conf.good $f.conf; done",
        ) from error


def _link(link: Link, fs: RootFs, made: list[Path]) -> None:
    """Make a link, or replace one of an older meshd's atomically: Slurm's commands always find one of the two."""
    path = fs.locate(link.path, follow_last=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_symlink():
        made.append(path)
    new = path.with_name(f"{TEMPORARY}{path.name}")
    new.unlink(missing_ok=True)
    new.symlink_to(link.target)
    new.replace(path)


def _same_text(fs: RootFs, path: PurePosixPath, text: str | None) -> None:
    now = fs.read_text(path) if fs.kind(path) is Kind.FILE else None
    if now != text:
        raise InitRefused(
            Refusal.CHANGED_MEANWHILE, f"{path} has changed since the plan was made", "`meshctl init` again"
        )


def _writable(directory: Path, path: PurePosixPath) -> None:
    """Refuse a directory on a read-only file system, for example where another program generates /etc."""
    while not directory.exists():
        directory = directory.parent
    read_only = os.statvfs(directory).f_flag & os.ST_RDONLY
    if read_only or (os.geteuid() == 0 and not os.access(directory, os.W_OK)):
        raise InitRefused(
            Refusal.READ_ONLY,
            f"{path}: {directory} cannot be written ({os.strerror(errno.EROFS)})",
            "make it writable, or, where another program generates that file, have it write what --dry-run shows",
        )


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
