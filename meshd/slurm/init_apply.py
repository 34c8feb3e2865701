"""I/O: carry out what `plan_init` planned. Needs root: Slurm's directory is root's."""

from __future__ import annotations

import os
import pwd
from datetime import datetime
from pathlib import Path, PurePosixPath

from meshd.errors import SlurmError
from meshd.runtime.atomicfile import write_atomic
from meshd.slurm.files import FILE_MODE
from meshd.slurm.init import CGROUP_CONF, GRES_CONF, GRES_INCLUDE, SLURM_CONF, InitPlan, Link
from meshd.slurm.nodes import GRES, HEADER, NODES

DIR_MODE = 0o755
"""Every user's Slurm commands read the files through it."""

PASS_THROUGH = 0o011
"""So they must get through the directory above it too (StateDirectoryMode=0711 or wider)."""


def read_files(conf_dir: Path) -> tuple[dict[str, str], dict[str, str]]:
    """What is in Slurm's directory: texts of its *.conf files and targets of its links, by name.

    Bytes that are not UTF-8 are kept by `surrogateescape`.

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


def apply_init(plan: InitPlan, now: datetime, *, root: Path = Path("/")) -> tuple[Path, ...]:
    """Write everything: meshd's directory and links first, then the files that refer to them.

    Each file that changes is copied to `NAME.meshd-YYYYmmddTHHMMSSZ` first. After a failure plan again, and
    apply that.

    Args:
        plan: what to do.
        now: for the copies' names; UTC.
        root: where the file system begins, for another machine's image.

    Returns:
        The copies that were made.

    Raises:
        SlurmError: a file is no longer what the plan was made from, a link's place is taken, or the owner is unknown.
        OSError: no space or permission.
    """
    for change in plan.files:
        path = _under(root, change.path)
        if _text(path) != change.old:
            raise SlurmError(f"{change.path} has changed since the plan was made: plan again")
    _own_directory(plan, root)
    for link in plan.links:
        _link(link, root)
    copies: list[Path] = []
    order = {GRES_INCLUDE: 0, GRES_CONF: 1, CGROUP_CONF: 2, SLURM_CONF: 3}
    for change in sorted(plan.files, key=lambda c: order.get(c.path.name, 0)):
        path = _under(root, change.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if change.old is not None:
            copy = path.with_name(f"{path.name}.meshd-{now:%Y%m%dT%H%M%SZ}")
            write_atomic(copy, change.old.encode("utf-8", "surrogateescape"), mode=path.stat().st_mode & 0o777)
            copies.append(copy)
        mode = path.stat().st_mode & 0o777 if change.old is not None else FILE_MODE
        write_atomic(path, change.new.encode("utf-8", "surrogateescape"), mode=mode)
    return tuple(copies)


def _own_directory(plan: InitPlan, root: Path) -> None:
    directory = _under(root, plan.slurm_dir)
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(DIR_MODE)
    directory.parent.chmod(directory.parent.stat().st_mode & 0o7777 | PASS_THROUGH)
    uid, gid = _ids(plan.owner, root)
    os.chown(directory, uid, gid)
    for name, text in ((NODES, plan.first_nodes_conf), (GRES, HEADER)):
        path = directory / name
        if not path.exists():
            write_atomic(path, text.encode(), mode=FILE_MODE)
            os.chown(path, uid, gid)


def _link(link: Link, root: Path) -> None:
    path = _under(root, link.path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        raise SlurmError(f"{link.path} is there already and is not meshd's: move it away first")
    path.symlink_to(link.target)


def _ids(user: str, root: Path) -> tuple[int, int]:
    if root == Path("/"):
        try:
            entry = pwd.getpwnam(user)
        except KeyError as error:
            raise SlurmError(f"there is no user {user}: install Slurm first") from error
        return entry.pw_uid, entry.pw_gid
    for line in (root / "etc/passwd").read_text().splitlines():
        fields = line.split(":")
        if fields[0] == user:
            return int(fields[2]), int(fields[3])
    raise SlurmError(f"there is no user {user}: install Slurm first")


def _under(root: Path, path: PurePosixPath) -> Path:
    return root / path.relative_to("/")


def _text(path: Path) -> str | None:
    return path.read_bytes().decode("utf-8", "surrogateescape") if path.is_file() else None
