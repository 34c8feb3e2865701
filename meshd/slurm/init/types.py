"""PURE: the input and the plan of `meshctl init`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from meshd.model.hardware import GpuFact, NodeShape
from meshd.slurm.capabilities import SlurmVersion
from meshd.slurm.init.codes import Finding
from meshd.slurm.nodes import PoolLine

SLURM_CONF = "slurm.conf"
GRES_CONF = "gres.conf"
CGROUP_CONF = "cgroup.conf"
OCI_CONF = "oci.conf"
PLUGSTACK_CONF = "plugstack.conf"

NODES_INCLUDES = ("nodes.conf", "meshd-nodes.conf", "meshd-slots.conf")
GRES_INCLUDES = ("meshd-gres.conf", "meshd-slots-gres.conf")
"""The names of meshd's two files in Slurm's directory: meshd uses the first that is free. They have no path, so that
Slurm ships them to the nodes."""

CONF_DIR = PurePosixPath("/etc/slurm")
SLURM_DIR = PurePosixPath("/var/lib/meshd-slurm")
FORMER_DIR = PurePosixPath("/var/lib/meshd/slurm")
"""meshd up to 0.1 wrote the files here itself: see `meshd.slurm.headfiles.adopt`."""

DAEMON_USER = "slurm"
"""`User=` of meshd.service."""

JOB_ENV = PurePosixPath("/etc/meshd-node/job.env")
"""The variables that the task prolog gives to jobs: `deploy/node/meshd_node/task-prolog`."""

SLURMCTLD_PORT = 6817
DATABASE = "slurm_acct_db"


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link to a file that root's unit writes for meshd."""

    path: PurePosixPath
    target: PurePosixPath


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file's old and new text; `old` is None when it is new.

    Attributes:
        mode, owner: of a new file; "" is root.
    """

    path: PurePosixPath
    old: str | None
    new: str
    reasons: tuple[str, ...]
    mode: int = 0o644
    owner: str = ""


@dataclass(frozen=True, slots=True)
class AccountingState:
    """What the head has for accounting.

    Attributes:
        missing: packages to install first.
        other_database: MySQL in place of MariaDB.
        memory_mib: of the head.
        present: which of slurmdbd.conf, the file for MariaDB and the drop-in are there.
        slurmdbd_conf: the text of slurmdbd.conf; None when it is missing.
        serves: slurmdbd listens.
        registered: slurmdbd has an entry for the cluster.
    """

    missing: tuple[str, ...] = ()
    other_database: bool = False
    memory_mib: int = 8192
    present: frozenset[PurePosixPath] = frozenset()
    slurmdbd_conf: str | None = None
    serves: bool = False
    registered: bool = False


@dataclass(frozen=True, slots=True)
class AccountingPlan:
    """What `meshctl init --accounting` sets up.

    Attributes:
        files: new files of MariaDB and slurmdbd. The services start before slurm.conf names slurmdbd: slurmctld does
            not start where slurm.conf has `AccountingStorageTRES=gres/gpu` and slurmdbd does not answer.
        start: MariaDB and slurmdbd must be started, or read new files.
        register: the cluster has no entry.
        cluster: by ClusterName.
        user: SlurmUser: slurmdbd runs as it, and MariaDB knows it by the same name.
        port: slurmdbd's.
        state_dir: slurmctld's StateSaveLocation.
    """

    files: tuple[FileChange, ...]
    start: bool
    register: bool
    cluster: str
    user: str
    port: int
    state_dir: PurePosixPath

    @property
    def actions(self) -> tuple[str, ...]:
        """What it does beside writing files, in words."""
        found = []
        if self.start:
            found += [
                f"MariaDB gets the database {DATABASE}, and the user {self.user}, who has rights there alone and logs "
                "in by the socket, without a password",
                "mariadb and slurmdbd are enabled and started; MariaDB that runs is restarted for its new settings",
            ]
        if self.register:
            found.append(f"slurmdbd gets the cluster {self.cluster}")
        return tuple(found)


@dataclass(frozen=True, slots=True)
class HeadCompute:
    """What the settings want of the head as a node, and what it has for that.

    Attributes:
        on: jobs run on it; False: that is taken back.
        gpus: the GPUs for jobs, by nvidia-smi's index; None: all.
        core_spec_count, mem_spec_limit_mib: what is kept for the desktop; None: by the hardware.
        memory_fraction: the part of the memory that the line has.
        shape: by `slurmd -C`; None without slurmd.
        found: the GPUs that work.
        gpu_fault: what nvidia-smi says of the others.
        job_env: the text of the file with the variables of every job.
        enabled, active: whether slurmd.service starts at boot, and runs.
        jobs: ids of the jobs on it; None when that is not known.
    """

    on: bool
    partition: str = "head"
    default: bool = False
    gpus: tuple[int, ...] | None = None
    core_spec_count: int | None = None
    mem_spec_limit_mib: int | None = None
    memory_fraction: float = 0.95
    shape: NodeShape | None = None
    found: tuple[GpuFact, ...] = ()
    gpu_fault: str = ""
    job_env: str = ""
    enabled: bool = False
    active: bool = False
    jobs: tuple[str, ...] | None = ()


@dataclass(frozen=True, slots=True)
class ComputePlan:
    """What init does with slurmd on the head.

    Attributes:
        enable: have it start at boot.
        restart: it must be started, or read new lines: the person does so after slurmctld's restart.
        stop: end it: no job runs on the head.
        disable: it did not start at boot before meshd.
    """

    enable: bool = False
    restart: bool = False
    stop: bool = False
    disable: bool = False

    @property
    def actions(self) -> tuple[str, ...]:
        """What init does beside writing files, in words."""
        if self.stop:
            return ("slurmd is stopped" + (" and disabled, as before" if self.disable else ""),)
        return ("slurmd is enabled: it starts at boot",) if self.enable else ()


@dataclass(frozen=True, slots=True)
class InitPlan:
    """The changes of one run. Empty when nothing is left to do.

    Attributes:
        links: the links to make.
        slurm_dir: root's directory for meshd's two files; init makes it with both files when it is missing.
        former_dir: the directory of an older meshd, from which init takes over the files.
        first_nodes_conf: the first content of nodes.conf: every slot free. Slurm before 23.11 does not start without a
            node.
        restart_slurmctld: `scontrol reconfigure` does not apply a changed setting, or slurmctld runs without one.
        findings: what init does not change, and a person should check.
        make_files: the files behind the links are missing.
        accounting: what slurmdbd needs; None where it is not asked for, or somebody else has set it up.
        compute: what slurmd on the head needs; None where nothing.
        read: the text of every file that the plan is based on, by absolute path; None for a missing file.
    """

    files: tuple[FileChange, ...]
    links: tuple[Link, ...]
    slurm_dir: PurePosixPath
    former_dir: PurePosixPath
    first_nodes_conf: str
    restart_slurmctld: bool
    findings: tuple[Finding, ...]
    make_files: bool = False
    accounting: AccountingPlan | None = None
    compute: ComputePlan | None = None
    read: Mapping[PurePosixPath, str | None] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to change."""
        services = self.accounting is not None and bool(self.accounting.actions or self.accounting.files)
        services = services or (self.compute is not None and bool(self.compute.actions))
        return not self.files and not self.links and not self.make_files and not services

    @property
    def warnings(self) -> tuple[str, ...]:
        """The findings' texts."""
        return tuple(finding.text for finding in self.findings)


@dataclass(frozen=True, slots=True)
class InitInput:
    """The present state of the head.

    Attributes:
        head, head_address: the head's short host name, and its tailnet address.
        slurm_conf, gres_conf, cgroup_conf, oci_conf: the texts; None for a missing file.
        included: the texts of other included files, by absolute path, or by a path from `conf_dir`.
        links: the symbolic links in the directory: name to absolute target.
        present: names of other entries in the directory.
        plugstack: the text of plugstack.conf; "" when it is missing.
        version: of Slurm on the head, by `slurmctld -V` (scontrol fails without a slurm.conf); None means the newest.
        slurmctld_port: the port that meshd gives to the machines.
        running: `scontrol show config` of the running slurmctld, keys in lower case; empty when none answers.
        own_files: whether the two files behind meshd's links exist.
        slurm_user: SlurmUser by Slurm's own rule: root where none is set.
        task_prolog: the text of the program for TaskProlog; "" leaves program and setting alone.
        head_task_prolog: its text on the head; None when it is missing.
        without_task_prolog: nodes of meshd that do not have it.
        accounting: what is there of it; None where it is not asked for.
        power_programs: the texts of the programs for power saving; empty leaves them and the settings alone.
        head_power_programs: their texts on the head, where they are there.
        own_prolog: the text of the file that names the site's own PrologSlurmctld; None when it is missing.
        compute: the head as a node; None leaves that as it is.
        head_job_env: the text of the file with the variables of jobs on the head; None when it is missing.
    """

    cluster: str
    head: str
    head_address: str
    slurm_conf: str | None
    gres_conf: str | None = None
    cgroup_conf: str | None = None
    included: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    present: frozenset[str] = frozenset()
    plugstack: str = ""
    pools: Sequence[PoolLine] = ()
    slurm_user: str = DAEMON_USER
    conf_dir: PurePosixPath = CONF_DIR
    slurm_dir: PurePosixPath = SLURM_DIR
    former_dir: PurePosixPath = FORMER_DIR
    version: SlurmVersion | None = None
    slurmctld_port: int = SLURMCTLD_PORT
    running: Mapping[str, str] = field(default_factory=dict)
    own_files: bool = True
    oci_conf: str | None = None
    task_prolog: str = ""
    head_task_prolog: str | None = None
    without_task_prolog: tuple[str, ...] = ()
    accounting: AccountingState | None = None
    power_programs: Mapping[PurePosixPath, str] = field(default_factory=dict)
    head_power_programs: Mapping[PurePosixPath, str] = field(default_factory=dict)
    own_prolog: str | None = None
    compute: HeadCompute | None = None
    head_job_env: str | None = None

    def texts(self) -> dict[PurePosixPath, str]:
        """Every text, by absolute path."""
        found = {self.conf_dir / name: text for name, text in self.included.items()}
        own = {
            SLURM_CONF: self.slurm_conf,
            GRES_CONF: self.gres_conf,
            CGROUP_CONF: self.cgroup_conf,
            OCI_CONF: self.oci_conf,
        }
        found.update((self.conf_dir / name, text) for name, text in own.items() if text is not None)
        return found


def render_diff(plan: InitPlan) -> str:
    """The plan as a unified diff, with links and warnings as comments before it; ends with a line break."""
    parts = [f"# warning: {finding.text} [{finding.code}]\n" for finding in plan.findings]
    parts += [f"# link: {link.path} -> {link.target}\n" for link in plan.links]
    services = plan.accounting
    parts += [f"# accounting: {action}\n" for action in services.actions] if services else []
    parts += [f"# head: {action}\n" for action in plan.compute.actions] if plan.compute else []
    for change in (*(services.files if services else ()), *plan.files):
        parts += [f"# {change.path}: {reason}\n" for reason in change.reasons]
        before = str(change.path) if change.old is not None else "/dev/null"
        lines = difflib.unified_diff(_lines(change.old or ""), _lines(change.new), before, str(change.path))
        parts += [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines]
    return "".join(parts)


def _lines(text: str) -> list[str]:
    return re.findall(r"[^\n]*\n|[^\n]+", text)
