"""PURE: whether a job can open GPUs that are not its own.

NVIDIA's device files are open to every user (mode 0666). Only slurmd keeps a job from the others' GPUs, by cgroup:
`ConstrainDevices=yes` in cgroup.conf, and task/cgroup among the TaskPlugins (Slurm's cgroup.conf(5) and gres.conf(5)).
"""

from __future__ import annotations

import re

OPEN = "every job can open every GPU of its node: device files of GPUs are open to all users, and Slurm closes none"
CURE = (
    "set ConstrainDevices=yes in cgroup.conf, and ProctrackType=proctrack/cgroup and "
    "TaskPlugin=task/affinity,task/cgroup in slurm.conf; then `systemctl restart slurmctld`"
)


def closed(constrain_devices: str, task_plugin: str, cgroup_plugin: str) -> bool:
    """Whether slurmd closes other jobs' GPUs.

    Args:
        constrain_devices: ConstrainDevices of cgroup.conf.
        task_plugin: TaskPlugin of slurm.conf.
        cgroup_plugin: CgroupPlugin of cgroup.conf; "disabled" turns everything off.
    """
    plugins = {item.strip().lower() for item in task_plugin.split(",")}
    on = cgroup_plugin.strip().lower() not in {"disabled", "cgroup/disabled"}
    return constrain_devices.strip().lower() in {"yes", "true", "1"} and "task/cgroup" in plugins and on


def closed_in(config: str) -> bool:
    """The same, from what `scontrol show config` prints."""
    values = dict(re.findall(r"^(\w+)\s*=\s*(.*?)\s*$", config, re.MULTILINE))
    return closed(*(values.get(key, "") for key in ("ConstrainDevices", "TaskPlugin", "CgroupPlugin")))
