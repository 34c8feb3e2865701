"""The section `job_env`: variables that every job on this node has.

Slurm runs the task prolog as the job's user before each task, also before a batch script, and adds each line `export
NAME=VALUE` that it prints to the task's environment (slurm.conf, TaskProlog). The prolog prints the lines of a file,
apart from those whose variable the job has set itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .files import write_if_changed

if TYPE_CHECKING:
    from .node import Node

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

TASK_PROLOG = b"""#!/bin/sh
# Made by meshd-node: gives each task of a job the variables in this file that the job has not set itself.
vars=/etc/meshd-node/job.env
[ -r "$vars" ] || exit 0
while IFS= read -r line; do
  name=${line%%=*}
  case $name in '' | [0-9]* | *[!A-Za-z0-9_]*) continue ;; esac
  eval "[ -n \\"\\${$name+set}\\" ]" || printf 'export %s\\n' "$line"
done <"$vars"
exit 0
"""


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
    write_if_changed(node.paths.task_prolog, TASK_PROLOG)
    for path in (node.paths.task_prolog, node.paths.task_prolog.parent):  # by any umask: every user runs it
        path.chmod(0o755)
