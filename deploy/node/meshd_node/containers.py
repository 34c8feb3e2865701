"""The section `containers`: pyxis, the plugin behind `srun --container-image`, where the head requires it.

Two halves make it work on a node: its library, which the image or the pool's setup script brings, and a line in
plugstack.conf. With the line alone each step fails, and the error of its end drains the node. With the library alone
Slurm accepts --container-image and runs the program on the node itself. So the library is checked first, then the line
is written, and slurmd starts when both are there.

Slurm ships plugstack.conf from the head, but not the files that it includes: each machine reads its own.
"""

from __future__ import annotations

import shlex
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import NodeError
from .files import write_if_changed
from .tools import find, run

if TYPE_CHECKING:
    from .node import Node

FILE = "meshd-pyxis.conf"
PLUGIN_DIRS = (
    "usr/lib/slurm",
    "usr/lib/x86_64-linux-gnu/slurm-wlm",
    "usr/lib/aarch64-linux-gnu/slurm-wlm",
    "usr/lib/x86_64-linux-gnu/slurm",
    "usr/lib64/slurm",
    "usr/local/lib/slurm",
)
"""Where slurmd looks for a plugin without a path, by who built it."""

LOAD_S = 30.0
_ELF = b"\x7fELF"


def apply(node: Node, value: dict[str, Any], _tell: Callable[[str], None]) -> None:
    """Check pyxis, then have its line. `value`: {"line": "required PATH ...", "shipped": bool}; "" where there is none.

    `shipped`: the line is in plugstack.conf itself, which slurmd gets from the head.

    Raises:
        NodeError: the library or enroot is missing, or Slurm refuses it. Then our line is not there either.
        ValueError: this is no line of plugstack.conf.
        OSError: the line cannot be written.
    """
    line = str(value["line"])
    ours = node.paths.plugstack_d / FILE
    try:
        if line:
            _check(node, _plugin(line))
            _try(line)
    except NodeError:
        _remove(ours)
        raise
    if not line or value["shipped"] or _has_own(node, _plugin(line)):
        _remove(ours)
        return
    node.paths.plugstack_d.mkdir(parents=True, exist_ok=True)
    write_if_changed(ours, f"# Written by meshd-node, as on the head.\n{line}\n".encode())


def _plugin(line: str) -> str:
    words = shlex.split(line)
    if len(words) < 2 or words[0] not in ("required", "optional") or not line.isprintable():
        raise ValueError("the line of plugstack.conf")
    return words[1]


def _check(node: Node, plugin: str) -> None:
    """Raises NodeError."""
    relative = not plugin.startswith("/")
    places = [node.paths.root / folder / plugin for folder in PLUGIN_DIRS] if relative else []
    library = next((one for one in places or [node.paths.root / plugin.lstrip("/")] if one.is_file()), None)
    if library is None:
        raise NodeError(
            f"the head requires {plugin}, which is not here: have pyxis in the image, or install it in the pool's "
            "setup script"
        )
    about = library.stat()
    if about.st_uid != node.paths.root.stat().st_uid or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise NodeError(f"{plugin} does not belong to root alone: slurmd would run it as root")
    with library.open("rb") as file:
        if file.read(len(_ELF)) != _ELF:
            raise NodeError(f"{plugin} is no library: install pyxis again")
    if not find("enroot"):
        raise NodeError(f"{plugin} is here, but enroot is not: `srun --container-image` needs both")


def _try(line: str) -> None:
    """Let Slurm load it: `srun --help` loads all plugins, and contacts nobody. One of another release stops slurmd.

    Raises:
        NodeError: Slurm refuses it.
    """
    if not find("srun"):
        return
    with tempfile.TemporaryDirectory(prefix="meshd-pyxis-") as name:
        folder = Path(name)
        (folder / "plugstack.conf").write_text(f"{line}\n")
        conf = f"ClusterName=check\nSlurmctldHost=localhost\nPlugStackConfig={folder}/plugstack.conf\n"
        (folder / "slurm.conf").write_text(conf)
        done = run(["env", f"SLURM_CONF={folder}/slurm.conf", "srun", "--help"], LOAD_S, check=False)
    if done.returncode != 0 and "spank" in done.stderr:
        raise NodeError(f"Slurm refuses pyxis, build it against this very release: {done.stderr.strip()[:200]}")


def _has_own(node: Node, plugin: str) -> bool:
    """Whether a file of the image has the line: Slurm loads no plugin twice."""
    for path in sorted(node.paths.plugstack_d.glob("*.conf")):
        if path.name != FILE:
            lines = path.read_text("utf-8", "replace").splitlines()
            if any(line.split()[:2] in (["required", plugin], ["optional", plugin]) for line in lines):
                return True
    return False


def _remove(path: Path) -> None:
    if path.exists():
        path.unlink()
