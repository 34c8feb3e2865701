"""The section `job_env`: variables that every job on this node has.

Slurm runs the task prolog as the job's user before each task, also before a batch script, and adds each line `export
NAME=VALUE` that it prints to the task's environment (slurm.conf, TaskProlog). The prolog prints the lines of a file,
apart from those whose variable the job has set itself. Slurm takes the value as it stands: quotes, spaces and `$`
arrive unchanged (measured on 22.05 and 24.11).
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .files import write_if_changed

if TYPE_CHECKING:
    from .node import Node

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def apply(node: Node, value: dict[str, Any], _tell: Callable[[str], None]) -> None:
    """Write the task prolog and its file. `value`: {"env": {NAME: VALUE}}.

    Raises:
        ValueError: a name or a value that the file cannot hold.
        OSError: a file cannot be written.
    """
    lines = []
    for name, text in dict(value["env"]).items():
        if not _NAME.match(name) or not isinstance(text, str) or not text.isprintable():
            raise ValueError(f"the variable {str(name)[:40]!r}")
        lines.append(f"{name}={text}\n")
    write_if_changed(node.paths.job_env, "".join(lines).encode())
    # Other files in the directory are root's alone; it was made for root alone as well.
    node.paths.job_env.parent.chmod(0o711)
    write_if_changed(node.paths.task_prolog, pkgutil.get_data(__package__, "task-prolog") or b"")
    for path in (node.paths.task_prolog, node.paths.task_prolog.parent):  # by any umask: every user runs it
        path.chmod(0o755)
