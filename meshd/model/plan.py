"""The steps from the observed state to the desired one. Each names its subject and its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from meshd.codes import DemandCode, WarningCode
from meshd.model.ids import MachineName
from meshd.model.machine import FailureCause, Phase, Removal, UnfitReason
from meshd.provider_api import Instance, Offer


@dataclass(frozen=True, slots=True)
class Step:
    """One step. `subject` is the machine, slot or instance that it is about."""

    subject: str
    reason: str

    @property
    def subjects(self) -> tuple[str, ...]:
        """All that the step is about, and that is busy while it is under way."""
        return (self.subject,)

    @property
    def action(self) -> str:
        """The step's public word, as in `meshctl plan -o json`."""
        name = type(self).__name__
        return _ACTIONS.get(name) or _snake(name)


_ACTIONS = {
    "CancelRemoval": "keep_after_all",
    "MarkReady": "accept",
    "RecordDevice": "note_device",
    "RecordFitness": "note_fitness",
    "RecordPeer": "note_peer",
    "RecordPublished": "note_published",
}
"""Public words that differ from the name of the class."""


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


@dataclass(frozen=True, slots=True)
class RequestMachine(Step):
    """Journal a new machine for the slot `subject`; nothing is rented yet.

    Attributes:
        by_queue: Slurm powers the slot up. False: for a target.
        for_jobs: the jobs that wait for the slot; () where a person powered it up.
        gang: joins the machines that are best ordered in one call; "" for a call of its own.
    """

    pool: str
    offer: Offer
    by_queue: bool = False
    for_jobs: tuple[str, ...] = ()
    gang: str = ""


@dataclass(frozen=True, slots=True)
class Launch(Step):
    """Make the create call for a machine that is REQUESTED. Costs money.

    Attributes:
        others: the machines of its gang that the same call makes.
    """

    others: tuple[str, ...] = ()

    @property
    def machines(self) -> tuple[str, ...]:
        """All machines that the call makes."""
        return (self.subject, *self.others)

    @property
    def subjects(self) -> tuple[str, ...]:
        """The same."""
        return self.machines


@dataclass(frozen=True, slots=True)
class Adopt(Step):
    """Record that an unclear create call did make this instance."""

    instance: Instance


@dataclass(frozen=True, slots=True)
class Move(Step):
    """Change the machine's phase in the journal; nothing else is done.

    Attributes:
        failure: why the machine is given up; "" when it is not.
        cause: the kind of that failure.
        vendor_words: the cloud's own words on why it ended the machine.
    """

    to: Phase
    failure: str = ""
    cause: FailureCause = FailureCause.NONE
    vendor_words: str = ""


@dataclass(frozen=True, slots=True)
class AskCloud(Step):
    """Ask the cloud for the machine by name, since the cloud's listing does not have it."""


@dataclass(frozen=True, slots=True)
class RecordPeer(Step):
    """Record the machine's tailnet device and path."""

    tailnet_ip: str
    tailnet_id: str
    path: str


@dataclass(frozen=True, slots=True)
class RecordDevice(Step):
    """Record that the machine's tailnet device was deleted while the machine runs, or that it is there again."""

    gone: bool


@dataclass(frozen=True, slots=True)
class AskAgent(Step):
    """Ask the agent for a heartbeat now, since the cloud says that the machine has ended."""


@dataclass(frozen=True, slots=True)
class RecordFitness(Step):
    """Record why the node is unfit, or that it is fit again.

    Attributes:
        unfit_reason: None when it is fit.
        since: when it became so.
    """

    unfit_reason: UnfitReason | None
    since: datetime


@dataclass(frozen=True, slots=True)
class RestartSlurmd(Step):
    """Tell the agent to restart slurmd, which then registers again. Running job steps go on."""


@dataclass(frozen=True, slots=True)
class ReloadSlurmd(Step):
    """Tell the agent to have slurmd register again, so that slurmctld looks for the jobs that it believes to run there.

    Nothing happens to jobs that run.
    """


@dataclass(frozen=True, slots=True)
class Undrain(Step):
    """Resume a node that meshd drained. No other drain is lifted."""

    slot: str


@dataclass(frozen=True, slots=True)
class Replace(Step):
    """Give up an unfit node without a job, so that the pool rents another one."""

    slot: str
    pool: str


@dataclass(frozen=True, slots=True)
class RecordPublished(Step):
    """Record that Slurm uses the machine's line."""


@dataclass(frozen=True, slots=True)
class StartSlurmd(Step):
    """Tell the agent to start slurmd: the last step before the node is tested.

    Attributes:
        cloud: its slot is a CLOUD node. Slurm is told its address first, and slurmd tells of a new boot.
    """

    cloud: bool = False


@dataclass(frozen=True, slots=True)
class MarkReady(Step):
    """Move a node that passed its tests to READY, and resume it if meshd had drained it."""


@dataclass(frozen=True, slots=True)
class Remove(Step):
    """Record that the machine is to be given back. Draining it and waiting for its jobs follow."""

    removal: Removal = Removal.SCALE_DOWN


@dataclass(frozen=True, slots=True)
class CancelRemoval(Step):
    """Keep a machine that was to be given back: the pool needs it again."""


@dataclass(frozen=True, slots=True)
class Drain(Step):
    """Drain the slot in Slurm: no new jobs start on it."""

    slot: str


@dataclass(frozen=True, slots=True)
class SignalJobs(Step):
    """Send each of these batch jobs the signal that it asked for with `--signal`: its machine ends soon."""

    slot: str
    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RequeueJobs(Step):
    """Put these batch jobs back into the queue: their machine ends soon."""

    slot: str
    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RequeueLostJobs(Step):
    """Put these batch jobs back into the queue: their machine has booted since they started, so they are lost.

    Attributes:
        started_before: a run of a job that began later is not lost.
    """

    slot: str
    jobs: tuple[str, ...]
    started_before: datetime


@dataclass(frozen=True, slots=True)
class Leave(Step):
    """Take the node out of Slurm: stop slurmd if the agent answers, and set the node DOWN.

    Attributes:
        forced: jobs on the node may be killed.
        dead: the cloud ended the machine, so no job can be killed any more.
        silent: do not wait for the agent, which does not answer. A job on the node is still waited for.
    """

    slot: str
    forced: bool = False
    dead: bool = False
    silent: bool = False


@dataclass(frozen=True, slots=True)
class Terminate(Step):
    """Ask the cloud to end the machine."""


@dataclass(frozen=True, slots=True)
class AdoptOrphan(Step):
    """Record a machine of ours that the cloud has, the journal does not know, and the pool can use.

    Attributes:
        tailnet_ip: its address where Slurm has it as the node of its slot (jobs may run on it); else "".
        by_queue: it counts as rented for Slurm's queue.
        heir_of: the machine that holds the slot and has ended, or was never rented; "" for a free slot.
    """

    instance: Instance
    offer: Offer
    pool: str
    slot: str
    tailnet_ip: str = ""
    by_queue: bool = False
    heir_of: str = ""


@dataclass(frozen=True, slots=True)
class TerminateOrphan(Step):
    """End a machine with our tag that the journal does not know and no pool needs."""

    instance: Instance


@dataclass(frozen=True, slots=True)
class RemoveDevice(Step):
    """Delete the tailnet devices of a machine that is gone: one, or more where its container began with new files."""

    device_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DisableKeyExpiry(Step):
    """Ask the tailnet's API that the machine's node key never expires."""

    device_id: str


@dataclass(frozen=True, slots=True)
class Warn(Step):
    """Something that people should know before the plan is carried out.

    Attributes:
        cure: what would help; "" when nothing is known.
        holds_back: True when it keeps the pool from its target. False: the plan reaches the target regardless.
    """

    code: WarningCode
    cure: str = ""
    holds_back: bool = True


@dataclass(frozen=True, slots=True)
class RefusedDemand:
    """Slots that Slurm powers up, and for which no machine can be had now.

    Attributes:
        jobs: those that wait for the slots, and that go back to the queue; () where a person powered the slots up.
        slots: all slots of these jobs that lack a machine, in order.
        code: why, as a word that stays the same.
        reason: why, in one sentence.
        until: when it is worth trying again. It stays the same from tick to tick while nothing changes.
    """

    pool: str
    jobs: tuple[str, ...]
    slots: tuple[str, ...]
    code: DemandCode
    reason: str
    until: datetime


@dataclass(frozen=True, slots=True)
class OpenSlots:
    """How many of a pool's free slots are worth powering up now: those without a machine, and not powering up.

    Attributes:
        count: for how many of them machines can be had, as far as is known. It alone decides what stays open.
        code: why not for more; None where `count` is the number of the free slots.
        reason: the same in one sentence; "" likewise.
        until: for people: when it is worth trying again; None likewise.
    """

    count: int
    code: DemandCode | None = None
    reason: str = ""
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps in the order in which they are begun, and what else follows for Slurm's slots.

    Attributes:
        refused: the demand that cannot be had.
        open_slots: by pool, for the pools that Slurm's queue drives. A pool is missing while that is not known.
        bound_slots: of hosts, by slot without a machine: why no machine can be had for it; "" where one can.
        unwanted_slots: slots that Slurm powers up and nobody waits for: their jobs are gone.
        held_orders: by machine whose order waits for its turn: why.
    """

    steps: tuple[Step, ...] = ()
    warnings: tuple[Warn, ...] = field(default=())
    refused: tuple[RefusedDemand, ...] = ()
    open_slots: Mapping[str, OpenSlots] = field(default_factory=dict)
    bound_slots: Mapping[str, str] = field(default_factory=dict)
    unwanted_slots: tuple[str, ...] = ()
    held_orders: Mapping[str, str] = field(default_factory=dict)

    def of(self, machine: MachineName) -> tuple[Step, ...]:
        """The steps about one machine."""
        return tuple(step for step in self.steps if machine in step.subjects)
