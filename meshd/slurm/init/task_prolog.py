"""PURE: TaskProlog, which gives each task of a job the variables of its node: the program on the head, and the setting.

Slurm ends every task on a node where TaskProlog names a program that is not there (22.05 and 24.11: measured). meshd's
machines have it from their agents, and the head from init. So init sets it only where no other node is declared, and no
machine runs with an agent that is older than the program.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from meshd.slurm.init.amend import Editor
from meshd.slurm.init.codes import Warn
from meshd.slurm.init.names import own_nodes
from meshd.slurm.init.types import FileChange, InitInput

TASK_PROLOG = PurePosixPath("/usr/lib/meshd/task-prolog")
KEY = "TaskProlog"
_SHOWN_MAX = 5


def amend_task_prolog(editor: Editor, own: PurePosixPath) -> None:
    """Set it where no job can fail for it; otherwise say what a person can do.

    Args:
        editor: edits slurm.conf.
        own: meshd's nodes.conf, whose nodes are not the user's.
    """
    have, placed = editor.have, editor.tree.last(KEY)
    if not have.task_prolog:
        return
    if placed is not None and placed.value(KEY) == str(TASK_PROLOG):
        editor.wanted[KEY] = str(TASK_PROLOG)
        return
    if placed is not None:
        editor.warn(
            Warn.TASK_PROLOG,
            f"{placed.where}: {KEY}={placed.value(KEY)} stays, so jobs do not get the variables of their node "
            f"(pools.NAME.env, GLOO_SOCKET_IFNAME and others): add this line to that program: "
            f"if [ -x {TASK_PROLOG} ]; then {TASK_PROLOG}; fi",
        )
        return
    others = [name for name, host in own_nodes(editor.tree, own) if have.head not in (name, host)]
    if others:
        editor.warn(
            Warn.TASK_PROLOG,
            f"{KEY} is not set, so jobs do not get the variables of their node: on nodes without the program jobs "
            f"would fail. Copy {TASK_PROLOG} from this host to {_some(others)}, then add {KEY}={TASK_PROLOG} to "
            f"{editor.path}",
        )
    elif have.without_task_prolog:
        editor.warn(
            Warn.TASK_PROLOG,
            f"{KEY} is not set yet: {_some(have.without_task_prolog)} joined before meshd had {TASK_PROLOG}, and jobs "
            "would fail there: `meshctl init` again when they are gone",
        )
    else:
        editor.set(KEY, str(TASK_PROLOG), "jobs get the variables of their node (docs/environments.md)")


def program_change(have: InitInput) -> list[FileChange]:
    """The program on the head: for jobs there, and to be copied to other nodes."""
    if not have.task_prolog or have.task_prolog == have.head_task_prolog:
        return []
    reason = f"the program of {KEY}, for jobs on this host"
    return [FileChange(TASK_PROLOG, have.head_task_prolog, have.task_prolog, (reason,), mode=0o755)]


def _some(names: list[str] | tuple[str, ...]) -> str:
    more = f" and {len(names) - _SHOWN_MAX} more" if len(names) > _SHOWN_MAX else ""
    return f"{', '.join(names[:_SHOWN_MAX])}{more}"
