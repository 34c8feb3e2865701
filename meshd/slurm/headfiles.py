"""Runs as root: writes Slurm's files at meshd's request. `python -m meshd.slurm.headfiles`.

Slurm's commands read nodes.conf and gres.conf as root, so root owns them. meshd-slurm.path starts this program when a
request appears. It checks every line as untrusted input (`meshd.plan.slurm_lines`), then replaces both files. It uses
only the standard library: it must start quickly, and it runs as root.

The request is a file of mode 0600 in meshd's runtime directory, with the owner of that directory: {"id", "nodes",
"gres"}. Everybody may read the answer: {"id", "ok", "detail", "errno"}.
"""

from __future__ import annotations

import argparse
import json
import os
import stat
import sys
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

from meshd.plan.slurm_lines import LineRefused, check, known
from meshd.runtime.request import RequestRefused, read_small, take, write_whole

REQUEST = "slurm-files.request"
ANSWER = Path("/run/meshd-slurm/answer.json")
DIRECTORY = Path("/var/lib/meshd-slurm")
"""The links in Slurm's directory point here. root owns it."""

SETTINGS = Path("/etc/meshd/meshd.toml")
NODES, GRES = "nodes.conf", "gres.conf"
LINKS = {"nodes.conf": NODES, "meshd-gres.conf": GRES}
"""Names of links in Slurm's directory, and the file that each points at."""

REQUEST_MAX_B = 64 << 20
FILE_MODE = 0o644
"""Every user runs Slurm's commands on the head, and those read the files."""


def serve(request: Path, answer: Path, directory: Path = DIRECTORY, settings: Path = SETTINGS) -> bool:
    """Take the request, write both files, write the answer. Returns whether the files were written.

    Raises:
        OSError: the request cannot be taken, or the answer cannot be written.
    """
    body: dict[str, Any] = {}
    outcome: dict[str, Any] = {"ok": False, "detail": "", "errno": 0}
    try:
        body = take(request, REQUEST_MAX_B)
        nodes, gres = body.get("nodes"), body.get("gres")
        if not isinstance(nodes, str) or not isinstance(gres, str):
            raise RequestRefused("the request has no text for both files")
        check(nodes, gres, known(read_small(settings), read_small(directory / NODES)))
        put(directory, nodes, gres)
        outcome["ok"] = True
    except (RequestRefused, LineRefused) as error:
        outcome["detail"] = str(error)
    except OSError as error:
        outcome |= {"detail": f"{error.filename or directory}: {error.strerror}", "errno": error.errno or 0}
    outcome["id"] = str(body.get("id", ""))[:64]
    write_whole(answer, json.dumps(outcome).encode(), 0o644)
    return bool(outcome["ok"])


def put(directory: Path, nodes: str, gres: str) -> None:
    """Replace both files, or neither: all steps that need disk space come before the first rename.

    Raises:
        OSError: no space or permission; the old files are still there.
    """
    new = {name: directory / f".{name}.new" for name in (GRES, NODES)}
    try:
        for name, text in ((GRES, gres), (NODES, nodes)):
            write_whole(new[name], text.encode(), FILE_MODE)
        for name, path in new.items():
            path.replace(directory / name)
    finally:
        for path in new.values():
            with suppress(FileNotFoundError):
                path.unlink()
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directory(directory: Path) -> None:
    """Make the directory, or check that the present one belongs to root.

    Raises:
        OSError: it is no directory, or belongs to another user.
    """
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise OSError(0, "is no directory of root's: move it away", str(directory))
    directory.chmod(0o755)


def adopt(former: Path, directory: Path, first: tuple[str, str] | None = None) -> bool:
    """Fill an empty directory with the files of an older meshd, after a check of each line, or with new files.

    Args:
        former: the directory where an older meshd, which did not run as root, wrote its files.
        directory: root's.
        first: the texts of nodes.conf and gres.conf to write when there are no older files; None writes nothing then.

    Returns:
        Whether it wrote files.

    Raises:
        LineRefused: the older files have lines that meshd does not write.
        OSError: a file cannot be read or written.
    """
    make_directory(directory)
    if (directory / NODES).exists():
        return False
    nodes, gres = _theirs(former / NODES), _theirs(former / GRES)
    if nodes is None:
        if first is None:
            return False
        nodes, gres = first
    check(nodes, gres or "")
    put(directory, nodes, gres or "")
    return True


def relink(conf_dir: Path, directory: Path, former: Path) -> tuple[str, ...]:
    """Point an older meshd's links in Slurm's directory at root's files. Other files of these names stay.

    Returns:
        The links that it changed.

    Raises:
        OSError: no permission.
    """
    changed = []
    for name, target in LINKS.items():
        link, to = conf_dir / name, directory / target
        if link.is_symlink() and link.readlink() == former / target and to.exists():
            new = conf_dir / f".{name}.new"
            with suppress(FileNotFoundError):
                new.unlink()
            new.symlink_to(to)
            new.replace(link)
            changed.append(name)
    return tuple(changed)


def _theirs(path: Path) -> str | None:
    """Read a file in another user's directory without trusting its type or size; None when it is missing."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise LineRefused(f"{path} is not a regular file")
        data = file.read(REQUEST_MAX_B + 1)
    try:
        return data.decode("ascii")
    except ValueError:
        raise LineRefused(f"{path} has characters that are not ASCII") from None


def _directories(settings: Path) -> tuple[Path, Path]:
    """Slurm's directory, and the directory of an older meshd's files, from the settings."""
    tables: dict[str, Any] = {}
    with suppress(ValueError):
        tables = tomllib.loads(read_small(settings).decode())
    slurm, cluster = tables.get("slurm"), tables.get("cluster")
    conf_dir = slurm.get("conf_dir") if isinstance(slurm, dict) else None
    state_dir = cluster.get("state_dir") if isinstance(cluster, dict) else None
    return Path(str(conf_dir or "/etc/slurm")), Path(str(state_dir or "/var/lib/meshd")) / "slurm"


def main() -> int:
    """The command line. Exit code 0 also when it refused the request: the answer says so."""
    parser = argparse.ArgumentParser(description="Writes meshd's nodes.conf and gres.conf at meshd's request.")
    parser.add_argument("directory", type=Path, nargs="?", help="meshd's runtime directory, which holds the request")
    parser.add_argument("--adopt", action="store_true", help="take over the files of an older meshd")
    arguments = parser.parse_args()
    if arguments.adopt == (arguments.directory is not None):
        parser.error("give either a directory or --adopt")
    try:
        if arguments.adopt:
            conf_dir, former = _directories(SETTINGS)
            if adopt(former, DIRECTORY):
                sys.stderr.write(f"{DIRECTORY} has the files of {former} now\n")
            for name in relink(conf_dir, DIRECTORY, former):
                sys.stderr.write(f"{conf_dir / name} points at {DIRECTORY} now\n")
        elif not serve(arguments.directory / REQUEST, ANSWER):
            sys.stderr.write(f"a request was refused: see {ANSWER}\n")
    except (LineRefused, OSError) as error:
        sys.stderr.write(f"nothing in {DIRECTORY} was changed: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
