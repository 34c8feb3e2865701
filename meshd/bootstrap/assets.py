"""The files for machines: stage 1's template, the node agent as a reproducible zipapp, a test that jobs run.

And the programs that slurmctld runs on the head.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from functools import lru_cache
from pathlib import Path, PurePosixPath

from meshd.errors import MeshdError
from meshd.slurm.head_programs import PROGRAMS

_PACKAGE = Path(__file__).resolve().parent.parent
_PLACES = (_PACKAGE / "_assets", _PACKAGE.parent / "deploy")
_POD = ("entrypoint", "has-tun", "log", "stop", "service/*/*", "*/build", "*/Makefile", "*/*.[ch]")
"""What a pod gets of deploy/container: the scripts, and the sources with all that compiles them."""
TASK_PROLOG = "task-prolog"
_MAIN = b"from meshd_node.main import main\n\nraise SystemExit(main())\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)


def node_dir() -> Path:
    """The directory of the node agent and stage 1, in an installed meshd or in a checkout.

    Raises:
        MeshdError: the installation is incomplete.
    """
    return _place("node/stage1.sh").parent


def container_dir() -> Path:
    """The directory of a pod's files. Raises MeshdError as `node_dir` does."""
    return _place("container/entrypoint").parent


def allreduce_program() -> str:
    """The program that `meshctl test` runs on nodes (recipes/allreduce). Raises MeshdError as `node_dir` does."""
    for path in (_PACKAGE / "_assets/recipes/allreduce.py", _PACKAGE.parent / "recipes/allreduce/allreduce.py"):
        if path.is_file():
            return path.read_text("utf-8")
    raise MeshdError("recipes/allreduce is missing from this installation: install meshd again")


def _place(file: str) -> Path:
    for place in _PLACES:
        if (place / file).is_file():
            return place / file
    raise MeshdError("the node agent's files are missing from this installation: install meshd again")


def stage1_template(*, systemd: bool = True, gang: bool = False) -> str:
    """The text of deploy/node/stage1.sh with its part for machines with systemd, or for containers without.

    Args:
        systemd: for a machine that boots systemd.
        gang: with the part by which the machines of a gang find out who they are.
    """
    part = _node_text(f"stage1_{'systemd' if systemd else 'container'}.sh")
    text = _node_text("stage1.sh").replace("# PART\n", part)
    text = text.replace("# GANG\n", _node_text("stage1_gang.sh") if gang else "")
    return _assembled(text, systemd=systemd, gang=gang)


def invitation_template() -> str:
    """The text of deploy/node/invitation.sh with its parts in other files. Raises MeshdError as `node_dir` does."""
    return _assembled(_node_text("invitation.sh"), systemd=True, gang=False)


def bake_template() -> str:
    """The text of deploy/node/bake.sh with its parts in other files. Raises MeshdError as `node_dir` does."""
    return _assembled(_node_text("bake.sh"), systemd=True, gang=False)


def _assembled(text: str, *, systemd: bool, gang: bool) -> str:
    """A script with the files that its lines `# PART FILE` name, and with the lines of its kind alone."""
    for line in [line for line in text.splitlines() if line.startswith("# PART ")]:
        text = text.replace(f"{line}\n", _node_text(line.removeprefix("# PART ").strip()))
    kinds = ("systemd", "container") if systemd else ("container", "systemd")
    for kind, other in (kinds, ("gang", "single") if gang else ("single", "gang")):
        lines = (line for line in text.splitlines() if not line.endswith(f"  #: {other}"))
        text = "".join(f"{line.removesuffix(f'  #: {kind}')}\n" for line in lines)
    return text


def _node_text(name: str) -> str:
    return (node_dir() / name).read_text("utf-8")


def task_prolog() -> str:
    """The text of Slurm's TaskProlog, which every node has."""
    return (node_dir() / "meshd_node" / TASK_PROLOG).read_text("utf-8")


def head_programs() -> dict[PurePosixPath, str]:
    """The texts of the programs that slurmctld runs on the head, by path. Raises MeshdError as `node_dir` does."""
    return {path: _place(f"head/programs/{path.name}").read_text("utf-8") for path in PROGRAMS}


@lru_cache(maxsize=1)
def agent_zipapp() -> bytes:
    """The node agent as one file that python3 runs, with the files of a pod in `pod/`.

    The same sources give the same bytes on every head.
    """
    package = node_dir() / "meshd_node"
    files = [*package.glob("*.py"), package / TASK_PROLOG]
    sources = {f"meshd_node/{path.name}": path.read_bytes() for path in files}
    sources["meshd_node/take_off.sh"] = (node_dir() / "take_off.sh").read_bytes()
    pod = container_dir()
    for path in (path for pattern in _POD for path in pod.glob(pattern) if path.is_file()):
        sources[f"pod/{path.relative_to(pod)}"] = path.read_bytes()
    buffer = io.BytesIO(b"#!/usr/bin/env python3\n")
    buffer.seek(0, io.SEEK_END)
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in sorted({**sources, "__main__.py": _MAIN}.items()):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            entry.create_system = 3
            archive.writestr(entry, data)
    return buffer.getvalue()


def agent_sha256() -> str:
    """The digest that stage 1 checks the agent against."""
    return hashlib.sha256(agent_zipapp()).hexdigest()
