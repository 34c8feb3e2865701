"""PURE: Slurm's settings of this machine alone, where the kernel does not allow what the head's settings ask for.

The head's settings suit a machine of its own: processes tracked, confined and counted by control group. A container has
no control groups that it may write, and slurmd ends there. So it gets plugins that do without.
"""

from __future__ import annotations

from collections.abc import Mapping

from .kernel import Kernel

SLURM_CONF = "slurm.conf"
CGROUP_CONF = "cgroup.conf"

Settings = dict[str, dict[str, str]]
"""File name to its lines: key to value."""

DISABLED_SINCE = (24, 5)
"""cgroup.conf(5) has CgroupPlugin=disabled since this release. Before, cgroup/v1 that no plugin uses does the same (run
on 22.05.8)."""

OVER_MEMORY = "overmemorykill"

_OFF = ("disabled", "cgroup/disabled")


def decide(kernel: Kernel, head: Mapping[str, str], release: tuple[int, int]) -> Settings:
    """The settings of this machine; empty where the head's suit it.

    Args:
        kernel: what the machine may do.
        head: settings in force at the head, by their names in `scontrol show config`. A missing one counts as not set.
        release: of slurmd on this machine.
    """
    slurm: dict[str, str] = {}
    cgroup: dict[str, str] = {}
    if not kernel.cgroups and head:
        if _is(head, "ProctrackType", "cgroup"):
            slurm["ProctrackType"] = "proctrack/linuxproc"
        if _is(head, "JobAcctGatherType", "cgroup"):
            slurm["JobAcctGatherType"] = "jobacct_gather/linux"
        off = "disabled" if release >= DISABLED_SINCE else "cgroup/v1"
        if head.get("CgroupPlugin", "").lower() not in (*_OFF, off):
            cgroup["CgroupPlugin"] = off
        if _limits_memory(head) and _gathers(head) and not _is(head, "JobAcctGatherParams", OVER_MEMORY):
            # slurmctld takes this and ConstrainRAMSpace together for an error, so the head cannot have it.
            params = _words(head.get("JobAcctGatherParams", ""))
            slurm["JobAcctGatherParams"] = ",".join([*params, "OverMemoryKill"])
    tasks = _words(head.get("TaskPlugin", ""))
    if (here := _tasks(kernel, tasks)) != tasks:
        slurm["TaskPlugin"] = ",".join(here)
    if not kernel.mounts and _is(head, "JobContainerType", "tmpfs"):
        slurm["JobContainerType"] = "job_container/none"
    return {name: lines for name, lines in ((SLURM_CONF, slurm), (CGROUP_CONF, cgroup)) if lines}


def lost(settings: Settings, head: Mapping[str, str]) -> list[str]:
    """What a job has on other nodes of the cluster and lacks here, as codes that docs/slurm.md describes."""
    own = settings.get(SLURM_CONF, {})
    here = {**head, **own}
    unbound = _is(head, "TaskPlugin", "affinity") and not _is(here, "TaskPlugin", "affinity")
    unconfined = _is(head, "TaskPlugin", "cgroup") and not _is(here, "TaskPlugin", "cgroup")
    found = {
        "process_tracking": "ProctrackType" in own,
        "core_limits": unbound or (unconfined and _yes(head, "ConstrainCores")),
        "memory_limits": unconfined and _limits_memory(head),
        "device_limits": unconfined and _yes(head, "ConstrainDevices"),
        "accounting": "JobAcctGatherType" in own,
        "private_tmp": "JobContainerType" in own,
    }
    return [code for code, true in found.items() if true]


def needed(settings: Settings) -> bool:
    """Whether slurmd cannot run here without them. CgroupPlugin alone matters to some releases only."""
    return SLURM_CONF in settings


def text(lines: Mapping[str, str]) -> str:
    """A file of settings."""
    return (
        "# This machine alone, by meshd-node: the kernel does not allow what the head's settings ask for.\n"
        + "".join(f"{key}={value}\n" for key, value in sorted(lines.items()))
    )


def _tasks(kernel: Kernel, head: list[str]) -> list[str]:
    """The task plugins of this machine.

    task/affinity needs CAP_SYS_NICE, else each user's task fails (sched_setaffinity: Operation not permitted). And it
    needs all processors of the host, since it counts from the first one: with a cpuset every task fails (Invalid
    argument), with a quota it would bind the jobs of all containers to the same processors.
    """
    here = [one for one in head if kernel.cgroups or _short(one) != "cgroup"]
    if head and not here:
        here = ["task/affinity"]
    here = [one for one in here if kernel.affinity or _short(one) != "affinity"]
    return here or (head and ["task/none"])


def _limits_memory(head: Mapping[str, str]) -> bool:
    constrained = _yes(head, "ConstrainRAMSpace") or _yes(head, "ConstrainSwapSpace")
    return constrained and _is(head, "TaskPlugin", "cgroup")


def _gathers(head: Mapping[str, str]) -> bool:
    return _is(head, "JobAcctGatherType", "cgroup") or _is(head, "JobAcctGatherType", "linux")


def _is(head: Mapping[str, str], key: str, kind: str) -> bool:
    return any(_short(one) == kind for one in _words(head.get(key, "")))


def _yes(head: Mapping[str, str], key: str) -> bool:
    return head.get(key, "").lower() in ("yes", "true", "1")


def _words(value: str) -> list[str]:
    return [word.strip() for word in value.split(",") if word.strip()]


def _short(plugin: str) -> str:
    """`cgroup` of `proctrack/cgroup`: slurm.conf may have either."""
    return plugin.lower().rpartition("/")[2]
