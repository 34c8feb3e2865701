"""I/O: carry out what `plan_init` planned. Needs root: Slurm's directory is root's."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path, PurePosixPath

from meshd.errors import SlurmError
from meshd.plan.slurm_lines import LineRefused
from meshd.runtime.atomicfile import write_atomic
from meshd.slurm.headfiles import FILE_MODE, adopt
from meshd.slurm.init import CGROUP_CONF, GRES_CONF, GRES_INCLUDE, SLURM_CONF, InitPlan, Link
from meshd.slurm.nodes import HEADER


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
    """Write everything: the directory and links first, then the files that refer to them.

    Each file that changes is copied to `NAME.meshd-YYYYmmddTHHMMSSZ` first. After a failure plan again, and
    apply that.

    Args:
        plan: what to do.
        now: for the copies' names; UTC.
        root: where the file system begins, for another machine's image.

    Returns:
        The copies that were made.

    Raises:
        SlurmError: a file is no longer what the plan was made from, a link's place is taken, or the files of an older
            meshd have lines that are not meshd's.
        OSError: no space or permission.
    """
    for change in plan.files:
        path = _under(root, change.path)
        if _text(path) != change.old:
            raise SlurmError(f"{change.path} has changed since the plan was made: plan again")
    _fill_directory(plan, root)
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


def _fill_directory(plan: InitPlan, root: Path) -> None:
    """Root's directory of meshd's files. Nothing below the directories of meshd's user is written or changed."""
    try:
        adopt(_under(root, plan.former_dir), _under(root, plan.slurm_dir), (plan.first_nodes_conf, HEADER))
    except LineRefused as error:
        raise SlurmError(
            f"{plan.former_dir}: {error}: put meshd's own files back (nodes.conf.good, gres.conf.good beside them)"
        ) from error


def _link(link: Link, root: Path) -> None:
    path = _under(root, link.path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_symlink():
        raise SlurmError(f"{link.path} is there already and is not meshd's: move it away first")
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    new.symlink_to(link.target)
    new.replace(path)  # Slurm's commands find the old or the new one at any moment


def _under(root: Path, path: PurePosixPath) -> Path:
    return root / path.relative_to("/")


def _text(path: Path) -> str | None:
    return path.read_bytes().decode("utf-8", "surrogateescape") if path.is_file() else None
