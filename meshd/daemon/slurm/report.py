"""What the daemon reports of Slurm's files, and whether a job can open GPUs that are not its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from meshd.api.schema import CheckRow, ProblemView
from meshd.codes import CheckName, ProblemCode
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.reporting import fail, ok, problem, warn
from meshd.slurm.client import SlurmClient

WAITING_MAX = 1000
"""slurmctld drops messages above MaxDBDMsgs, which is 10,000 or more."""

NAME = CheckName.GPU_DEVICES
GPUS_OPEN = (
    "every job can open every GPU of its node: device files of GPUs are open to all users, and Slurm closes none"
)
GPUS_OPEN_CURE = (
    "set ConstrainDevices=yes in cgroup.conf, and ProctrackType=proctrack/cgroup and "
    "TaskPlugin=task/affinity,task/cgroup in slurm.conf; then `systemctl restart slurmctld`"
)


class GpuDevices:
    """The check.

    Args:
        slurm: what slurmctld has in force is asked for.
        live: the settings, for the pools.
    """

    def __init__(self, slurm: SlurmClient, live: LiveSettings) -> None:
        self._slurm = slurm
        self._live = live

    async def __call__(self) -> CheckRow:
        """One row. Raises SlurmError."""
        if not any(pool.gpus_per_node for pool in self._live.settings.pools.values()):
            return ok(NAME, "no pool has GPUs")
        if await self._slurm.gpus_closed():
            return ok(NAME, "a job can open its own GPUs alone")
        return warn(NAME, ProblemCode.GPUS_OPEN, GPUS_OPEN, GPUS_OPEN_CURE)


class Records:
    """The check of accounting: slurmdbd answers, knows this cluster, and has what slurmctld sent it.

    Args:
        slurm: slurmctld, and slurmdbd by sacctmgr.
    """

    def __init__(self, slurm: SlurmClient) -> None:
        self._slurm = slurm

    async def __call__(self) -> CheckRow:
        """One row. Raises SlurmError."""
        name, found = CheckName.ACCOUNTING, await self._slurm.accounting()
        if found is None:
            return ok(name, "off: `meshctl init --accounting` sets it up")
        if found.error:
            return fail(
                name, ProblemCode.ACCOUNTING_DOWN,
                f"slurmdbd at {found.host} does not answer: {found.error}; jobs go on, and slurmctld keeps "
                f"{found.waiting} messages for it",
                "`systemctl status slurmdbd mariadb` on that host; `journalctl -u slurmdbd`",
            )  # fmt: skip
        if not found.registered:
            return fail(
                name, ProblemCode.ACCOUNTING_UNREGISTERED, f"slurmdbd does not know the cluster {found.cluster}",
                f"`sacctmgr -i add cluster {found.cluster}`, then `systemctl restart slurmctld`",
            )  # fmt: skip
        if found.waiting > WAITING_MAX:
            return warn(
                name, ProblemCode.ACCOUNTING_BEHIND,
                f"slurmdbd is behind: slurmctld keeps {found.waiting} messages for it",
                "`sdiag` shows whether there are fewer soon; `journalctl -u slurmdbd -u mariadb`",
            )  # fmt: skip
        return ok(name, f"slurmdbd at {found.host} answers, {found.waiting} messages wait for it")


def left_out(machines: Mapping[str, str]) -> Iterable[ProblemView]:
    """Machines whose line cannot stand in Slurm's files, each with why."""
    for machine, why in sorted(machines.items()):
        yield problem(
            ProblemCode.MACHINE_LEFT_OUT, "error", f"it is left out of Slurm's files: {why}",
            f"`meshctl remove {machine}` replaces it; if its pool's settings are at fault, correct meshd.toml",
            machine=machine,
        )  # fmt: skip


def kept_lines(slots: Mapping[str, str]) -> Iterable[ProblemView]:
    """Slots that keep their present line for now, each with why."""
    for slot, why in sorted(slots.items()):
        cure = f"see `squeue -w {slot}`; meshd makes all other changes meanwhile"
        yield problem(ProblemCode.SLOT_LINE_KEPT, "warning", why, cure)
