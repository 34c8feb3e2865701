"""PURE: plans what `meshctl init` must change in Slurm's files so that meshd can work with them, each with its reason.

The plan drops nothing of the user's: it adds missing settings, amends harmful ones, and keeps the rest byte for byte.
What meshd does not touch but a person should know is a finding. What no edit can repair is refused.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from meshd.slurm.conf import parse
from meshd.slurm.init.accounting import plan_accounting
from meshd.slurm.init.amend import Editor, amend, make_room, must_be_in_force, read_number, with_own_file
from meshd.slurm.init.codes import InitRefused, Refusal, Warn
from meshd.slurm.init.compute import amend_compute, amend_gres, declared, job_env_change
from meshd.slurm.init.containers import container_change
from meshd.slurm.init.groups import amend_groups
from meshd.slurm.init.names import check_names, own_names
from meshd.slurm.init.power_saving import amend_power_saving, power_program_changes
from meshd.slurm.init.task_prolog import amend_task_prolog, program_change
from meshd.slurm.init.tree import Tree, read_tree
from meshd.slurm.init.types import (
    CGROUP_CONF,
    GRES_CONF,
    SLURM_CONF,
    FileChange,
    InitInput,
    InitPlan,
    Link,
)
from meshd.slurm.init.warnings import warn
from meshd.slurm.nodes import GRES, HEADER, NODES, render

_BOM = "\ufeff"


def plan_init(have: InitInput) -> InitPlan:
    """Plan the changes. Planning again after they are applied gives an empty plan.

    Raises:
        InitRefused: a file has something that meshd cannot change safely; with code and cure.
    """
    nodes_name, gres_name = own_names(have)
    first_nodes_conf = render(have.pools, (), shapes_fixed=True).nodes_conf
    own = have.conf_dir / nodes_name
    full = with_own_file(with_own_file(have, nodes_name, first_nodes_conf), gres_name, HEADER)
    gres = read_tree(have.conf_dir / GRES_CONF, full.texts().get, have.version)
    old = have.slurm_conf
    text = old if old is not None and old.strip() else _new_slurm_conf(have)
    editor = Editor(full, text)
    _refuse_unread(editor.tree, have.conf_dir / nodes_name)
    _refuse_unread(gres, have.conf_dir / gres_name)
    count = check_names(editor.tree, have, own)
    amend(editor)
    amend_groups(editor, own)
    amend_task_prolog(editor, own)
    own_prolog = amend_power_saving(editor)
    accounting = plan_accounting(editor)
    editor.ship_includes()
    editor.include_first(nodes_name, "meshd declares its slots there")
    compute = amend_compute(editor, own)
    head = declared(editor.conf)
    slots = sum(pool.max_nodes for pool in have.pools)
    make_room(editor, slots, count)
    if head and not declared(parse(text)):
        make_room(editor, 1, count + slots)
    must_be_in_force(editor, [nodes_name])
    warn(editor, full, own)
    files: list[FileChange] = []
    new = editor.conf.render()
    if new != old:
        reasons = editor.reasons if text is old else ["there is no slurm.conf yet", *editor.reasons]
        files.append(FileChange(have.conf_dir / SLURM_CONF, old, new, tuple(reasons)))
    restart = bool(files) or _behind(editor)
    files.extend(_gres_change(have, gres, gres_name, head=head))
    files.extend(_cgroup_change(have))
    files.extend(container_change(have))
    # Leave out meshd's own files: the daemon may write them at any moment.
    files.extend([*program_change(have), *job_env_change(have, head)])
    files.extend([*power_program_changes(have), *own_prolog])
    mine = (have.conf_dir / nodes_name, have.conf_dir / gres_name)
    users = {path: text for path, text in have.texts().items() if path not in mine}
    return InitPlan(
        files=tuple(files),
        links=_links(have, nodes_name, gres_name),
        slurm_dir=have.slurm_dir,
        former_dir=have.former_dir,
        first_nodes_conf=first_nodes_conf,
        restart_slurmctld=restart,
        findings=tuple(editor.findings),
        make_files=not have.own_files,
        accounting=accounting,
        compute=compute,
        read={**{change.path: change.old for change in files}, **users},
    )


def _refuse_unread(tree: Tree, own: PurePosixPath) -> None:
    """Refuse files with which no Slurm daemon starts: a person must repair them first."""
    for missing in tree.missing:
        raise InitRefused(
            Refusal.INCLUDE_MISSING,
            f"{missing.at.where}: {missing.path} is missing: Slurm waits 60 s for it and then gives up",
            f"make {missing.path}, or remove that line",
        )
    for placed in tree.lines:
        if not placed.line.unread or placed.file == own:
            continue
        if placed.line.raw.startswith(_BOM):
            raise InitRefused(
                Refusal.BYTE_ORDER_MARK,
                f"{placed.file} starts with a byte order mark, which Slurm cannot read",
                f"sed -i '1s/^\\xEF\\xBB\\xBF//' {placed.file}",
            )
        raise InitRefused(
            Refusal.UNREADABLE_LINE,
            f"{placed.where}: Slurm cannot read {placed.line.unread[:80]!r}, and does not start",
            f"correct that line of {placed.file}: one KEY=VALUE a line, `Include FILE` in the first column",
        )


def _behind(editor: Editor) -> bool:
    """Whether the running slurmctld has other values than the files, because nobody restarted it since."""
    differs = []
    for key, value in editor.wanted.items():
        shown = editor.have.running.get(key.lower())
        if shown is None:
            continue
        # Slurm adds kinds of its own to the TRES.
        if _items(shown) != _items(value) and not (key == "AccountingStorageTRES" and _items(value) <= _items(shown)):
            differs.append(f"{key}={shown}")
    if differs and editor.conf.render() == editor.have.slurm_conf:
        editor.warn(
            Warn.CONTROLLER_BEHIND,
            f"slurmctld runs with {', '.join(differs)}, which the files no longer say: restart it",
        )
        return True
    return False


def _items(value: str) -> set[str]:
    """The items of a value, in the form of the file or of `scontrol show config` (`30 sec`, `0 nodes/min`)."""
    words = (item.strip().removesuffix(" sec").removesuffix(" nodes/min").lower() for item in value.split(","))
    return {str(read_number(word) or word) for word in words}


def _links(have: InitInput, nodes_name: str, gres_name: str) -> tuple[Link, ...]:
    wanted = {nodes_name: have.slurm_dir / NODES, gres_name: have.slurm_dir / GRES}
    return tuple(
        Link(have.conf_dir / name, target) for name, target in wanted.items() if have.links.get(name) != str(target)
    )


def _gres_change(have: InitInput, tree: Tree, name: str, *, head: bool) -> list[FileChange]:
    old, reasons = have.gres_conf, []
    new = parse(old or "")
    if not any(p.line.include and have.conf_dir / p.line.include == have.conf_dir / name for p in tree.lines):
        new = new.with_include(name)
        reasons.append("meshd lists the device files of each machine's GPUs there")
    with_head = amend_gres(have, new, head)
    if with_head.render() != new.render():
        reasons.append("the GPUs of this host")
    text = with_head.render()
    return [FileChange(have.conf_dir / GRES_CONF, old, text, tuple(reasons))] if reasons else []


def _cgroup_change(have: InitInput) -> list[FileChange]:
    """A cgroup.conf for a new slurm.conf, where there is none. Slurm also ships it to the machines."""
    if have.cgroup_conf is not None or have.slurm_conf is not None:
        return []
    text = "ConstrainCores=yes\nConstrainDevices=yes\nConstrainRAMSpace=yes\n"
    return [FileChange(have.conf_dir / CGROUP_CONF, None, text, ("jobs get no more than they asked for",))]


def _new_slurm_conf(have: InitInput) -> str:
    """A whole slurm.conf for a head that has none."""
    return f"""\
# Written once by `meshctl init`; it is yours from now on. meshd's own part is in {NODES}.
ClusterName={have.cluster}
SlurmctldHost={have.head}({have.head_address})
SlurmUser={have.slurm_user}
AuthType=auth/munge
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
ProctrackType=proctrack/cgroup
TaskPlugin=task/affinity,task/cgroup
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
JobCompType=jobcomp/none
JobRequeue=1
SlurmctldTimeout=120
KillWait=30
"""
