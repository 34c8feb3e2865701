"""PURE: power saving, by which Slurm says which slots it wants: its settings, and the programs on the head.

Where power saving runs another program already, e.g. one that rents nodes of a cloud, all of it stays: meshd's pools
are then scaled by hand. A PrologSlurmctld of the site's own goes on: newer Slurm runs several; for older Slurm its path
is put into a file of root's, and meshd's program runs it.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from meshd.slurm.capabilities import SlurmVersion
from meshd.slurm.head_programs import (
    IDLE_ON_SUSPEND,
    PROLOG_SLURMCTLD,
    RESUME_PROGRAM,
    RESUME_TIMEOUT_S,
    SUSPEND_PROGRAM,
    SUSPEND_TIME_S,
    SUSPEND_TIMEOUT_S,
)
from meshd.slurm.init.amend import Editor
from meshd.slurm.init.codes import Warn
from meshd.slurm.init.types import FileChange, InitInput

OWN_PROLOG = PurePosixPath("/etc/meshd/prolog-slurmctld")
"""The path of the site's own PrologSlurmctld, for Slurm that runs only one."""

PROLOG = "PrologSlurmctld"

SEVERAL_PROLOGS_FROM = SlurmVersion((24, 5))
"""From this release on (or with an unknown version) each PrologSlurmctld line is run, one after the other."""

HIDDEN_BEFORE = SlurmVersion((23, 2))
"""An older Slurm shows nodes that are powered down only with PrivateData=cloud (22.05.8: measured)."""

_MIN_INTERVAL = "power_save_min_interval"


def of_another_tool(editor: Editor) -> bool:
    """Whether power saving is somebody else's: its programs are not meshd's."""
    tree = editor.tree
    ours = {"ResumeProgram": str(RESUME_PROGRAM), "SuspendProgram": str(SUSPEND_PROGRAM)}
    return any(tree.get(key) not in (None, path) for key, path in ours.items())


def amend_power_saving(editor: Editor) -> list[FileChange]:
    """Put it in force, unless another tool has it.

    Returns:
        The file with the site's own PrologSlurmctld, where it is new.
    """
    if not editor.have.power_programs:
        return []
    if of_another_tool(editor):
        placed = editor.tree.last("ResumeProgram") or editor.tree.last("SuspendProgram")
        editor.warn(
            Warn.POWER_SAVING_TAKEN,
            f"{placed.where if placed else 'ResumeProgram'}: power saving runs another program, which stays: pools are "
            "scaled by `meshctl scale` alone, and not by the queue. To have meshd do both, remove ResumeProgram, "
            "SuspendProgram and SuspendTime, then `meshctl init` again",
        )
        return []
    _amend_programs(editor)
    return _amend_prolog(editor)


def _amend_programs(editor: Editor) -> None:
    version = editor.have.version
    editor.set("ResumeProgram", str(RESUME_PROGRAM), "tells meshd that Slurm wants slots powered up")
    editor.set("SuspendProgram", str(SUSPEND_PROGRAM), "tells meshd that Slurm powers slots down")
    editor.set("SuspendTime", str(SUSPEND_TIME_S), "Slurm itself powers no node down, yours included; meshd does")
    editor.at_least("ResumeTimeout", RESUME_TIMEOUT_S, "meshd gives up a machine that does not come itself", default=60)
    editor.set("SuspendTimeout", str(SUSPEND_TIMEOUT_S), "a slot can be used again soon after its machine left")
    for key in ("ResumeRate", "SuspendRate"):
        editor.set(key, "0", "any number of slots at once")
    editor.add_item("SlurmctldParameters", IDLE_ON_SUSPEND, "a slot that was powered down can be powered up again")
    if any(item.lower().startswith(f"{_MIN_INTERVAL}=") for item in editor.tree.list_of("SlurmctldParameters")):
        editor.add_item("SlurmctldParameters", f"{_MIN_INTERVAL}=0", "Slurm powers slots up without a pause")
    if version is not None and version < HIDDEN_BEFORE:
        editor.add_item("PrivateData", "cloud", "`sinfo` shows slots that are powered down")


def _amend_prolog(editor: Editor) -> list[FileChange]:
    tree, version, ours = editor.tree, editor.have.version, str(PROLOG_SLURMCTLD)
    reason = "a job starts as soon as its last node is up, not up to 30 s later"
    if version is None or version >= SEVERAL_PROLOGS_FROM:
        if ours not in tree.get_all(PROLOG):
            editor.add_line(PROLOG, ours, reason)
        return []
    theirs = tree.get(PROLOG)
    editor.set(PROLOG, ours, reason)
    if theirs is None or theirs == ours:
        return []
    text, old = f"{theirs}\n", editor.have.own_prolog
    if text == old:
        return []
    return [FileChange(OWN_PROLOG, old, text, (f"the {PROLOG} until now, which {ours} runs",))]


def power_program_changes(have: InitInput) -> list[FileChange]:
    """The programs on the head that are missing or older."""
    return [
        FileChange(path, have.head_power_programs.get(path), text, ("a program of Slurm's power saving",), mode=0o755)
        for path, text in have.power_programs.items()
        if have.head_power_programs.get(path) != text
    ]
