"""PURE: warns about settings that init does not change, and a person should check. Each names its line and its cure."""

from __future__ import annotations

import re
from ipaddress import ip_address
from pathlib import PurePosixPath

from meshd.plan.slurm_lines import NODE_PLAIN, PARTITION_PLAIN
from meshd.slurm.conf import parse
from meshd.slurm.init.amend import Editor
from meshd.slurm.init.codes import Warn
from meshd.slurm.init.names import warn_partitions
from meshd.slurm.init.power_saving import of_another_tool
from meshd.slurm.init.task_prolog import TASK_PROLOG
from meshd.slurm.init.tree import Placed, Tree
from meshd.slurm.init.types import DAEMON_USER, PLUGSTACK_CONF, InitInput

_HOST = re.compile(r"([^(]+)(?:\((.*)\))?$")
NODE_KEYS = frozenset({"cpus", "realmemory", "state", "reason", *(key.lower() for key in NODE_PLAIN)})
PARTITION_KEYS = frozenset({"nodes", "default", "maxtime", "state", *(key.lower() for key in PARTITION_PLAIN)})
"""The keys that each of meshd's lines sets itself."""

_PROGRAMS = ("Prolog", "Epilog", "TaskProlog", "TaskEpilog", "HealthCheckProgram", "UnkillableStepProgram")
"""Programs that slurmd runs on each machine."""


def warn(editor: Editor, have: InitInput, own: PurePosixPath) -> None:
    """All warnings about slurm.conf and gres.conf, in the order of `Warn`'s groups."""
    tree = editor.tree
    _head(editor, tree, have)
    _defaults(editor, tree, own)
    warn_partitions(editor, own)
    _includes(editor, tree, have)
    _features(editor, tree)
    _programs(editor, tree)
    _gres(editor, have)
    user = tree.get("SlurmUser") or "root"
    if have.slurm_conf is not None and have.slurm_user not in (DAEMON_USER, "") and user != DAEMON_USER:
        editor.warn(
            Warn.DAEMON_USER,
            f"SlurmUser is {have.slurm_user}{'' if tree.get('SlurmUser') else ' (where none is set)'}: "
            f"meshd must run as it: `systemctl edit meshd`, lines [Service], User={have.slurm_user} and Group=",
        )


def _head(editor: Editor, tree: Tree, have: InitInput) -> None:
    """The host and address of slurmctld."""
    hosts = [_split(value) for value in tree.get_all("SlurmctldHost")]
    key, at = "SlurmctldHost", tree.last("SlurmctldHost")
    if not hosts:
        hosts = [(name, tree.get("ControlAddr") or "") for name in tree.get_all("ControlMachine")[-1:]]
        key, at = "ControlMachine", tree.last("ControlMachine")
        if tree.get("BackupController"):
            hosts.append((tree.get("BackupController") or "", ""))
    name, address = hosts[0] if hosts else ("", "")
    address = tree.get("SlurmctldAddr") or address
    if have.head_address and not _same(address or name, have.head_address):
        line = f"SlurmctldHost={name or have.head}({have.head_address})"
        changed = f"{at.where}: " if at else ""
        addr = tree.last("SlurmctldAddr")
        drop = f" and remove SlurmctldAddr ({addr.where})" if addr else ""
        editor.warn(
            Warn.HEAD_ADDRESS,
            f"{changed}{key}={name or '(none)'} has the address {address or '(that of its name)'}, machines reach "
            f"the head only at {have.head_address}: write {line}{drop}",
        )
    if name and have.head and name.partition(".")[0].lower() != have.head.lower():
        editor.warn(
            Warn.OTHER_PRIMARY,
            f"{key}={name} is the primary controller, this host is {have.head}: run meshd and `meshctl init` on {name}",
        )
    if len(hosts) > 1:
        editor.warn(
            Warn.BACKUP_CONTROLLER,
            f"{', '.join(host for host, _ in hosts[1:])}: backup controllers see meshd's files only where "
            f"{have.conf_dir} and meshd's directory are shared; meshd runs only with the primary",
        )
    comm = [item.lower() for item in tree.list_of("CommunicationParameters")]
    if "noctldinaddrany" in comm and not _same(address, have.head_address):
        editor.warn(
            Warn.LISTENS_ELSEWHERE,
            f"{_at(tree, 'CommunicationParameters')}: with NoCtldInAddrAny slurmctld listens at {address or name} "
            f"only: remove it, or write SlurmctldHost={name or have.head}({have.head_address})",
        )
    if "disableipv4" in comm:
        editor.warn(
            Warn.IPV4_OFF,
            f"{_at(tree, 'CommunicationParameters')}: DisableIPv4, but machines have IPv4 addresses: remove it",
        )
    port = tree.get("SlurmctldPort")
    if port is not None and port != str(have.slurmctld_port):
        editor.warn(
            Warn.SLURMCTLD_PORT,
            f"{_at(tree, 'SlurmctldPort')}: SlurmctldPort={port}, but meshd gives machines {have.slurmctld_port}: set "
            f"slurmctld_port = {port.partition('-')[0]} in [slurm] of /etc/meshd/meshd.toml",
        )


def _split(value: str) -> tuple[str, str]:
    match = _HOST.match(value.strip())
    return (match[1].strip(), (match[2] or "").strip()) if match else (value, "")


def _same(one: str, other: str) -> bool:
    """Whether both are the same IP address; False for names."""
    try:
        return ip_address(one.strip()) == ip_address(other.strip())
    except ValueError:
        return False


def _at(tree: Tree, key: str) -> str:
    placed = tree.last(key)
    return placed.where if placed else key


def _defaults(editor: Editor, tree: Tree, own: PurePosixPath) -> None:
    """DEFAULT lines before meshd's: its lines inherit every key that they do not set."""
    first = next((i for i, p in enumerate(tree.lines) if p.file == own and p.line.is_record), len(tree.lines))
    for key, code, said in (
        ("NodeName", Warn.NODE_DEFAULTS, NODE_KEYS),
        ("PartitionName", Warn.PARTITION_DEFAULTS, PARTITION_KEYS),
    ):
        before = [p for p in tree.lines[:first] if p in tree.defaults(key) and p.file != own]
        keys = sorted({pair.key for p in before for pair in p.line.pairs[1:] if pair.key.lower() not in said})
        if before and keys:
            editor.warn(
                code,
                f"{before[-1].where}: {key}=DEFAULT sets {', '.join(keys)} for meshd's lines too: move the Include of "
                f"{own.name} before it",
            )


def _includes(editor: Editor, tree: Tree, have: InitInput) -> None:
    for placed in tree.lines:
        if "/" in placed.line.include:
            name = PurePosixPath(placed.line.include).name
            editor.warn(
                Warn.INCLUDE_NOT_SHIPPED,
                f"{placed.where}: machines do not get {placed.line.include}; slurmd waits 60 s for it, then ends: "
                f"move the file to {have.conf_dir / name} and write Include {name}",
            )


def _features(editor: Editor, tree: Tree) -> None:
    """Settings that meshd does not support, or whose effect a site must consider."""
    if any(item.lower().partition("=")[0] == "cloud_dns" for item in tree.list_of("SlurmctldParameters")):
        where = _at(tree, "SlurmctldParameters")
        editor.warn(
            Warn.CLOUD_DNS, f"{where}: cloud_dns: slots have addresses and no DNS names: remove cloud_dns there"
        )
    topology = (tree.get("TopologyPlugin") or "").lower()
    if topology and topology not in ("topology/none", "topology/default", "topology/flat"):
        where = _at(tree, "TopologyPlugin")
        editor.warn(
            Warn.TOPOLOGY,
            f"{where}: {topology}: slots are in no switch or block: no job can span them and other nodes; add a line "
            "SwitchName=cloud Nodes=SLOTS to topology.conf where that is wanted",
        )
    for key in ("AuthType", "CredType"):
        kind = tree.get(key)
        if kind is not None and kind.lower() not in ("auth/munge", "cred/munge"):
            editor.warn(Warn.AUTH_TYPE, f"{_at(tree, key)}: {key}={kind}: meshd distributes only munge keys")
    if of_another_tool(editor):
        where = _at(tree, "ResumeProgram" if tree.get("ResumeProgram") else "SuspendProgram")
        partitions = ",".join(dict.fromkeys(pool.partition or pool.name for pool in editor.have.pools))
        excluded = tree.list_of("SuspendExcParts")
        if not all(name in excluded for name in partitions.split(",") if name):
            line = ",".join(dict.fromkeys([*excluded, *partitions.split(",")]))
            editor.warn(
                Warn.POWER_SAVING, f"{where}: power saving would suspend rented machines: write SuspendExcParts={line}"
            )
    enforced = [item for item in tree.list_of("AccountingStorageEnforce") if item.lower() != "none"]
    if enforced:
        editor.warn(
            Warn.ASSOCIATIONS,
            f"{_at(tree, 'AccountingStorageEnforce')}: only users with an association may use the pools' partitions: "
            "`sacctmgr show assoc` lists them",
        )
    if (plugins := tree.get("JobSubmitPlugins")) is not None:
        editor.warn(
            Warn.JOB_SUBMIT,
            f"{_at(tree, 'JobSubmitPlugins')}: JobSubmitPlugins={plugins} may turn jobs away from the pools' "
            "partitions: submit one to try",
        )
    if tree.get("FederationParameters") is not None:
        editor.warn(
            Warn.FEDERATION,
            f"{_at(tree, 'FederationParameters')}: jobs of sibling clusters run on rented machines too, and meshd sees "
            "only those of this cluster",
        )


def _programs(editor: Editor, tree: Tree) -> None:
    """Programs and plugins that each machine's image must have."""
    for key in _PROGRAMS:
        path = tree.get(key)
        if path is not None and path != str(TASK_PROLOG):
            editor.warn(
                Warn.PROGRAM_ON_MACHINES,
                f"{_at(tree, key)}: {key}={path} runs on every machine: have it in the machines' image, or nodes drain",
            )
    required = [line for line in editor.have.plugstack.splitlines() if line.split()[:1] == ["required"]]
    if required:
        editor.warn(
            Warn.PROGRAM_ON_MACHINES,
            f"{editor.have.conf_dir / PLUGSTACK_CONF} has {required[0].strip()!r}: no job starts on a machine without "
            "that plugin: have it in the machines' image, or write optional in place of required",
        )


def _gres(editor: Editor, have: InitInput) -> None:
    """Lines of gres.conf that apply to every node also apply to meshd's, which list their own device files."""
    path = have.conf_dir / "gres.conf"
    number = 1
    for line in parse(have.gres_conf or "").lines:
        at = Placed(path, number, line)
        number += line.raw.count("\n")
        every = line.value("NodeName") is None
        kind = "AutoDetect" if (line.value("AutoDetect") or "off").lower() != "off" else "Name"
        if every and line.value(kind) is not None:
            editor.warn(
                Warn.GRES_FOR_ALL,
                f"{at.where}: {kind}={at.value(kind)} applies to every node, rented ones too: write "
                "NodeName=YOUR-NODES before it on that line",
            )
