"""PURE: what `meshctl init` must change in Slurm's files so that meshd can work with them, each with its reason.

Nothing that the user has is dropped: settings that are missing are added, harmful ones amended, the rest is kept byte
for byte. What meshd will not touch but a person should know is a warning.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from meshd.errors import SlurmError
from meshd.slurm.capabilities import TABLE, SlurmVersion, capabilities
from meshd.slurm.conf import Conf, parse
from meshd.slurm.nodes import GRES, NODES, PoolLine, render
from meshd.slurm.show import hostlist

SLURM_CONF = "slurm.conf"
GRES_CONF = "gres.conf"
CGROUP_CONF = "cgroup.conf"
GRES_INCLUDE = "meshd-gres.conf"
"""The name of meshd's part of gres.conf in Slurm's directory: without a path, so that it is shipped to the nodes."""

CONF_DIR = PurePosixPath("/etc/slurm")
SLURM_DIR = PurePosixPath("/var/lib/meshd-slurm")
FORMER_DIR = PurePosixPath("/var/lib/meshd/slurm")
"""Where meshd, which is not root, wrote the files itself until 0.1: see `meshd.slurm.headfiles.adopt`."""

TREE_WIDTH = 65533
SLURMD_TIMEOUT_S = 300
UNKILLABLE_TIMEOUT_S = 300
UNKILLABLE_PER_MESSAGE = 5
"""Newer Slurm wants UnkillableStepTimeout to be at least this many MessageTimeouts."""

MESSAGE_TIMEOUT_S = 30
SRUN_PORTS = "60001-63000"
_TRACKS_CGROUPS = "proctrack/cgroup"


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link to a file that root's unit writes as meshd asks."""

    path: PurePosixPath
    target: PurePosixPath


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file's old and new text; `old` is None when it is new."""

    path: PurePosixPath
    old: str | None
    new: str
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class InitPlan:
    """All that must be done. Empty when nothing is left to do.

    Attributes:
        links: to make where they are not there yet.
        slurm_dir: the directory of meshd's files of Slurm, root's, made with both files when missing.
        former_dir: where an older meshd kept them: what is there is taken over.
        first_nodes_conf: what nodes.conf holds when it is made: every slot free. Slurm before 23.11 does not start
            without a node.
        restart_slurmctld: a setting changed that `scontrol reconfigure` does not apply.
        warnings: what is not touched and should be looked at.
    """

    files: tuple[FileChange, ...]
    links: tuple[Link, ...]
    slurm_dir: PurePosixPath
    former_dir: PurePosixPath
    first_nodes_conf: str
    restart_slurmctld: bool
    warnings: tuple[str, ...]

    @property
    def empty(self) -> bool:
        """Nothing to change."""
        return not self.files and not self.links


@dataclass(frozen=True, slots=True)
class InitInput:
    """What is there.

    Attributes:
        head: the head's short host name, and its tailnet address.
        slurm_conf: the text; None when there is no such file. So with gres_conf and cgroup_conf.
        included: text of files that slurm.conf includes, by the name that stands there.
        links: symbolic links in the directory, by name.
        cgroups: the machines' kernels let Slurm track jobs by cgroup; False where nodes are pods without systemd.
        version: of Slurm on the head, by `slurmctld -V` (scontrol fails without a slurm.conf); None takes the newest.
    """

    cluster: str
    head: str
    head_address: str
    slurm_conf: str | None
    gres_conf: str | None = None
    cgroup_conf: str | None = None
    included: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    pools: Sequence[PoolLine] = ()
    slurm_user: str = "slurm"
    conf_dir: PurePosixPath = CONF_DIR
    slurm_dir: PurePosixPath = SLURM_DIR
    former_dir: PurePosixPath = FORMER_DIR
    cgroups: bool = True
    version: SlurmVersion | None = None


class _Editor:
    """A slurm.conf under change, with the reasons so far."""

    def __init__(self, conf: Conf, included: Conf) -> None:
        self.conf = conf
        self.included = included
        self.reasons: list[str] = []
        self.warnings: list[str] = []

    def get(self, key: str) -> str | None:
        """The value in force, wherever it is set."""
        own = self.conf.get(key)
        return own if own is not None else self.included.get(key)

    def set(self, key: str, value: str, reason: str) -> None:
        """Set a value, or warn when an included file has it."""
        if self.conf.get(key) is None and self.included.get(key) is not None:
            self.warnings.append(f"{key} is set in an included file: set {key}={value} there ({reason})")
            return
        self.conf = self.conf.with_value(key, value)
        self.reasons.append(f"{key}={value}: {reason}")

    def add_item(self, key: str, item: str, reason: str) -> None:
        """Put an item in a comma list."""
        if item in self.conf.list_of(key) or item in self.included.list_of(key):
            return
        if self.conf.get(key) is None and self.included.get(key) is not None:
            self.warnings.append(f"{key} is set in an included file: add {item} there ({reason})")
            return
        self.conf = self.conf.with_list_item(key, item)
        self.reasons.append(f"{key} gets {item}: {reason}")

    def at_least(self, key: str, least: int, reason: str, *, default: int) -> None:
        """Raise a number that is too low; one that cannot be read is left and warned about."""
        text = self.get(key)
        number = default if text is None else int(text) if text.isdigit() else None
        if number is None:
            self.warnings.append(f"{key}={text} is not a number that meshd can judge ({reason})")
        elif number < least:
            self.set(key, str(least), reason)


def plan_init(have: InitInput) -> InitPlan:
    """Work out what must change. Planning again after the changes gives an empty plan.

    Raises:
        SlurmError: a file has something that cannot be amended safely (a host list that cannot be read).
    """
    old = have.slurm_conf
    text = old if old is not None and old.strip() else _new_slurm_conf(have)
    editor = _Editor(parse(text), parse("".join(f"{part}\n" for part in have.included.values())))
    _amend(editor)
    _warn(editor, have)
    files: list[FileChange] = []
    new = editor.conf.render()
    if new != old:
        reasons = editor.reasons if text is old else ["there is no slurm.conf yet", *editor.reasons]
        files.append(FileChange(have.conf_dir / SLURM_CONF, old, new, tuple(reasons)))
    restart = bool(files)
    files.extend(_gres_change(have))
    files.extend(_cgroup_change(have, editor))
    return InitPlan(
        files=tuple(files),
        links=_links(have),
        slurm_dir=have.slurm_dir,
        former_dir=have.former_dir,
        first_nodes_conf=render(have.pools, (), shapes_fixed=True).nodes_conf,
        restart_slurmctld=restart,
        warnings=tuple(editor.warnings),
    )


def render_diff(plan: InitPlan) -> str:
    """The plan as a unified diff, with links and warnings as comments before it; ends with a line break."""
    parts = [f"# warning: {text}\n" for text in plan.warnings]
    parts += [f"# link: {link.path} -> {link.target}\n" for link in plan.links]
    for change in plan.files:
        parts += [f"# {change.path}: {reason}\n" for reason in change.reasons]
        before = str(change.path) if change.old is not None else "/dev/null"
        lines = difflib.unified_diff(_lines(change.old or ""), _lines(change.new), before, str(change.path))
        parts += [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines]
    return "".join(parts)


def _lines(text: str) -> list[str]:
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _amend(editor: _Editor) -> None:
    """Every setting that meshd needs, in a slurm.conf of any origin."""
    editor.add_item(
        "SlurmctldParameters", "enable_configless", "machines fetch their configuration from the head (configless)"
    )
    if editor.get("ReturnToService") != "2":
        editor.set("ReturnToService", "2", "a slot becomes usable when its machine registers")
    editor.at_least("TreeWidth", TREE_WIDTH, "messages go straight from the head: pods reach no other pod", default=16)
    editor.at_least("SlurmdTimeout", SLURMD_TIMEOUT_S, "a wide-area link may be away for minutes", default=300)
    editor.at_least("MessageTimeout", MESSAGE_TIMEOUT_S, "wide-area round trips and relays are slow", default=10)
    message = editor.get("MessageTimeout") or ""
    unkillable = max(UNKILLABLE_TIMEOUT_S, UNKILLABLE_PER_MESSAGE * int(message) if message.isdigit() else 0)
    editor.at_least("UnkillableStepTimeout", unkillable, "GPU jobs take long to end; else the node drains", default=60)
    select = editor.get("SelectType")
    if select is None or select.lower() != "select/cons_tres":
        editor.set("SelectType", "select/cons_tres", "GPUs are shared out by this plugin only")
        if editor.get("SelectTypeParameters") is None:
            editor.set("SelectTypeParameters", "CR_Core_Memory", "cores and memory are shared out")
    editor.add_item("GresTypes", "gpu", "GPUs are a generic resource")
    if editor.get("SrunPortRange") is None:
        editor.set("SrunPortRange", SRUN_PORTS, "srun listens on known ports, which the tailnet's policy can allow")
    if NODES not in editor.conf.includes() and NODES not in editor.included.includes():
        editor.conf = editor.conf.with_include(NODES)
        editor.reasons.append(f"Include {NODES}: meshd declares its slots there")


def _warn(editor: _Editor, have: InitInput) -> None:
    """What is not touched and should be known."""
    both = parse(editor.conf.render() + "\n" + editor.included.render())
    hosts = both.get_all("SlurmctldHost") or both.get_all("ControlMachine")
    if have.head_address and not any(have.head_address in host for host in hosts):
        editor.warnings.append(
            f"SlurmctldHost={','.join(hosts) or '(none)'} does not name the tailnet address {have.head_address}: "
            f"machines in clouds reach the head only as SlurmctldHost={have.head}({have.head_address})"
        )
    if len(hosts) > 1:
        editor.warnings.append("there is a backup controller: meshd runs with the primary only")
    for record in both.records("NodeName"):
        if record["nodename"].upper() == "DEFAULT":
            inherited = sorted(set(record) - {"nodename", "state", "weight", "tmpdisk", "port"})
            if inherited:
                editor.warnings.append(
                    f"NodeName=DEFAULT sets {', '.join(inherited)}: the lines of {NODES} inherit what they do not set"
                )
    _warn_names(editor, both, have)
    if (both.get("SlurmctldParameters") or "").lower().find("cloud_dns") >= 0:
        editor.warnings.append("SlurmctldParameters has cloud_dns: slots have addresses, not DNS names; remove it")
    if both.get("TopologyPlugin") and "tree" in (both.get("TopologyPlugin") or "").lower():
        editor.warnings.append("TopologyPlugin=topology/tree: slots are in no switch: no job can span them and others")
    if (both.get("AuthType") or "auth/munge").lower() != "auth/munge":
        editor.warnings.append(f"AuthType={both.get('AuthType')}: meshd hands out munge keys only")
    if both.get("ResumeProgram") or both.get("SuspendProgram"):
        editor.warnings.append("power saving is set: name the pools in SuspendExcParts, or their nodes are suspended")
    _warn_gres(editor, have)


def _warn_gres(editor: _Editor, have: InitInput) -> None:
    """Lines of a gres.conf that hold for every node also hold for meshd's, which name their own device files."""
    gres = parse(have.gres_conf or "")
    for line in gres.lines:
        if (line.value("AutoDetect") or "off").lower() != "off" and line.value("NodeName") is None:
            editor.warnings.append("gres.conf has AutoDetect for every node: give that line a NodeName=")
        elif line.value("Name") is not None and line.value("NodeName") is None:
            editor.warnings.append("gres.conf has GPUs for every node: give that line a NodeName=")


def _warn_names(editor: _Editor, both: Conf, have: InitInput) -> None:
    """Names of the user's that a pool would declare again: slurmctld does not start with a name that stands twice."""
    taken = {name for r in both.records_resolved("NodeName") for name in hostlist(r["nodename"])}
    partitions = {r["partitionname"]: r for r in both.records("PartitionName")}
    for pool in have.pools:
        ours = {f"{pool.name}-{index}" for index in range(1, pool.max_nodes + 1)}
        if twice := sorted(ours & taken):
            raise SlurmError(f"pool {pool.name} would declare {twice[0]}, which slurm.conf has: rename the pool")
        partition = pool.partition or pool.name
        if partition in partitions:
            editor.warnings.append(f"partition {partition} is in slurm.conf already: pool {pool.name} needs another")
        if pool.default and any(r.get("default", "").upper() == "YES" for r in partitions.values()):
            editor.warnings.append(f"pool {pool.name} is default, but slurm.conf has a default partition already")


def _links(have: InitInput) -> tuple[Link, ...]:
    wanted = {NODES: have.slurm_dir / NODES, GRES_INCLUDE: have.slurm_dir / GRES}
    return tuple(
        Link(have.conf_dir / name, target) for name, target in wanted.items() if have.links.get(name) != str(target)
    )


def _gres_change(have: InitInput) -> list[FileChange]:
    old = have.gres_conf
    new = parse(old or "").with_include(GRES_INCLUDE).render()
    if new == old:
        return []
    reason = "meshd tells there which device files a machine's GPUs are"
    return [FileChange(have.conf_dir / GRES_CONF, old, new, (reason,))]


def _cgroup_change(have: InitInput, editor: _Editor) -> list[FileChange]:
    """A cgroup.conf where none is; one that is there is kept. It is shipped to the machines too."""
    if have.cgroup_conf is not None:
        return []
    tracked = (editor.get("ProctrackType") or _TRACKS_CGROUPS).lower() == _TRACKS_CGROUPS
    if have.cgroups:
        if not tracked or have.slurm_conf is not None:
            return []
        text = "ConstrainCores=yes\nConstrainDevices=yes\nConstrainRAMSpace=yes\n"
        return [FileChange(have.conf_dir / CGROUP_CONF, None, text, ("jobs get no more than they asked for",))]
    if tracked:
        editor.warnings.append("jobs are tracked by cgroup, which pods have not: set ProctrackType=proctrack/linuxproc")
        return []
    off = (capabilities(have.version) if have.version else TABLE[-1]).cgroup_plugin_off
    reason = "slurmd starts also where there is no cgroup tree of its own"
    return [FileChange(have.conf_dir / CGROUP_CONF, None, f"CgroupPlugin={off}\n", (reason,))]


def _new_slurm_conf(have: InitInput) -> str:
    """A whole slurm.conf for a head that has none."""
    track, task = "proctrack/linuxproc", "task/none"
    if have.cgroups:
        track, task = _TRACKS_CGROUPS, "task/affinity,task/cgroup"
    return f"""\
# Written once by `meshctl init`; it is yours from now on. meshd's own part is in {NODES}.
ClusterName={have.cluster}
SlurmctldHost={have.head}({have.head_address})
SlurmUser={have.slurm_user}
AuthType=auth/munge
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
ProctrackType={track}
TaskPlugin={task}
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
JobCompType=jobcomp/none
JobRequeue=1
SlurmctldTimeout=120
KillWait=30
"""
