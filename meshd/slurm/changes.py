"""I/O: changes of slurmctld's nodes and jobs through scontrol. Host lists: 1,000 slots are one command."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence

from ClusterShell.NodeSet import NodeSet

from meshd.errors import SlurmError
from meshd.slurm.capabilities import SlurmCapabilities
from meshd.slurm.job_signal import JobSignal, signal_in
from meshd.slurm.show import parse_nodes

NODES_A_CALL = 1000
"""The most nodes in one call whose addresses are set: Linux takes at most 128 KiB in one argument."""

_SLOT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_JOB = re.compile(r"[0-9]+(?:_[0-9]+)?(?:\+[0-9]+)?")
_ADDRESS = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}")
_ALREADY = "Invalid node state specified"
_CLOSED = frozenset({"DRAIN", "DOWN", "FAIL", "FUTURE"})
_NO_REASON = "reason= "
"""Slurm 24.11 without accounting keeps the reason of a drain after a resume, and puts its own words behind it later. A
blank takes it away; without one Slurm takes no reason for given."""


class SlurmChanges(ABC):
    """The part of SlurmClient that changes something."""

    @abstractmethod
    async def capabilities(self) -> SlurmCapabilities:
        """What the running slurmctld can do. Raises SlurmError."""

    @abstractmethod
    async def _call(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> str: ...

    async def drain(self, slot: str, reason: str) -> None:
        """Let running jobs end and start no new ones. `reason` must name its author, for people who read it.

        Raises:
            SlurmError: Slurm refused.
        """
        await self._update([slot], *_state("drain", reason))

    async def set_down(self, slot: str, reason: str) -> None:
        """Set the node DOWN at once: Slurm ends its jobs, and requeues those that allow it. No instance is behind it.

        Raises:
            SlurmError: Slurm refused.
        """
        await self._update([slot], *_state("down", reason))
        await self._forget_instances([slot])

    async def _forget_instances(self, slots: Collection[str]) -> None:
        """No instance of a cloud is behind these any more. Slurm before 23.11 knows none."""
        if slots and (await self.capabilities()).has_instances:
            names = NodeSet.fromlist(_checked(_SLOT, slot) for slot in slots)
            await self._call(["scontrol", "update", f"nodename={names}", "instanceid=", "instancetype="])

    async def resume(self, slot: str) -> None:
        """Open the node to jobs, and take its reason away. No error when it is open already.

        Raises:
            SlurmError: Slurm refused.
        """
        try:
            await self._update([slot], "state=resume", _NO_REASON)
        except SlurmError as error:
            if _ALREADY not in str(error):
                raise
            text = await self._call(["scontrol", "show", "node", slot, "-o"])
            node = parse_nodes(text).get(slot)
            if node is None or node.states & _CLOSED:
                raise

    async def forget_reason(self, slot: str) -> None:
        """Take away the reason that an open node still has.

        Raises:
            SlurmError: Slurm refused.
        """
        await self._update([slot], _NO_REASON)

    async def set_node_addrs(self, addrs: Mapping[str, str]) -> None:
        """Set where slurmctld reaches these nodes, by name, at once and without its files. NodeHostName is the name.

        A reconfigure does not change the address of a CLOUD node, and leaves one that was set here as it is.

        Raises:
            SlurmError: Slurm refused a node; those of earlier calls, and any before it, have their addresses.
        """
        items = [(_checked(_SLOT, slot), _checked(_ADDRESS, address)) for slot, address in addrs.items()]
        for start in range(0, len(items), NODES_A_CALL):
            part = items[start : start + NODES_A_CALL]
            names, places = ",".join(slot for slot, _ in part), ",".join(address for _, address in part)
            argv = ["scontrol", "update", f"nodename={names}", f"nodeaddr={places}", f"nodehostname={names}"]
            await self._call(argv)

    async def drain_slots(self, slots: Collection[str], reason: str) -> None:
        """Drain many slots with one command.

        Raises:
            SlurmError: Slurm refused; it may have drained some of them.
        """
        await self._update(slots, *_state("drain", reason))

    async def resume_slots(self, slots: Collection[str]) -> None:
        """Lift the drain of many slots, with its reason. One that powers down counts as powered down from then on.

        Raises:
            SlurmError: Slurm refused; it may have resumed some of them.
        """
        await self._update(slots, "state=resume", _NO_REASON)

    async def down_slots(self, slots: Collection[str], reason: str) -> None:
        """Set many slots DOWN at once: Slurm ends their jobs, and requeues those that allow it.

        Raises:
            SlurmError: Slurm refused; it may have set some of them DOWN.
        """
        await self._update(slots, *_state("down", reason))

    async def power_down(self, slots: Collection[str], reason: str = "", *, force: bool = False) -> None:
        """Have Slurm power slots down. No job comes onto them from then on.

        A node that powers up is powered down only with `force` (measured on 24.11.5).

        Args:
            slots: of any pools.
            reason: for people; "" keeps the reason that Slurm has.
            force: at once, and the jobs on them end. Without it Slurm waits for their jobs.

        Raises:
            SlurmError: Slurm refused; it may have taken some of them.
        """
        await self._update(slots, *_state("power_down_force" if force else "power_down_asap", reason))
        if force:
            await self._forget_instances(slots)

    async def power_up(self, slots: Collection[str]) -> None:
        """Have Slurm power slots up, as for a job.

        Raises:
            SlurmError: Slurm refused; it may have taken some of them.
        """
        await self._update(slots, "state=power_up")

    async def requeue(self, job: str) -> None:
        """Put a batch job back into the queue, as one that never started. Its nodes are free at once.

        Raises:
            SlurmError: Slurm refused: the job has ended, or is none that may be requeued.
        """
        await self._call(["scontrol", "requeue", _checked(_JOB, job)])

    async def own_signal(self, job: str) -> JobSignal | None:
        """The signal that a batch job's script asks for before its end; None where it asks for none.

        Raises:
            SlurmError: the script cannot be read, or the job has ended.
        """
        return signal_in(await self._call(["scontrol", "write", "batch_script", _checked(_JOB, job), "-"]))

    async def send_signal(self, job: str, signal: JobSignal) -> None:
        """Send a job a signal.

        Raises:
            SlurmError: Slurm refused, or the job has ended.
        """
        to = ["--batch"] if signal.batch_only else []
        await self._call(["scancel", *to, f"--signal={signal.name}", _checked(_JOB, job)])

    async def update_job(
        self, job: str, *, wait_s: float | None = None, admin_comment: str | None = None, requeue: bool | None = None
    ) -> None:
        """Change a job; what is None stays.

        Args:
            job: its id.
            wait_s: the least seconds until it starts. Only a pending job has a start time to change.
            admin_comment: one line for people.
            requeue: whether Slurm may requeue it.

        Raises:
            SlurmError: Slurm refused, or the job has ended.
        """
        changes = []
        if wait_s is not None:
            changes.append(f"starttime=now+{wait_s:.0f}" if wait_s >= 1 else "starttime=now")
        if requeue is not None:
            changes.append(f"requeue={requeue:d}")
        if admin_comment is not None:
            changes.append(f"admincomment={_one_line(admin_comment)}")
        await self._call(["scontrol", "update", f"jobid={_checked(_JOB, job)}", *changes])

    async def tell(self, job: str, message: str) -> None:
        """Show a line to the person who waits for a job at a terminal (salloc, srun).

        Raises:
            SlurmError: Slurm refused, or the job has ended.
        """
        await self._call(["scontrol", "notify", _checked(_JOB, job), _one_line(message)])

    async def cancel(self, job: str) -> None:
        """End a job.

        Raises:
            SlurmError: Slurm refused.
        """
        await self._call(["scancel", _checked(_JOB, job)])

    async def _update(self, slots: Collection[str], *changes: str) -> None:
        """One command for all slots: slurmctld takes a host list."""
        if slots:
            names = NodeSet.fromlist(_checked(_SLOT, slot) for slot in slots)
            await self._call(["scontrol", "update", f"nodename={names}", *changes])


def _state(state: str, reason: str) -> list[str]:
    return [f"state={state}", *([f"reason={_one_line(reason)}"] if reason else [])]


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _checked(pattern: re.Pattern[str], text: str) -> str:
    if not pattern.fullmatch(text):
        raise SlurmError(f"{text!r} is not a name that Slurm could know")
    return text
