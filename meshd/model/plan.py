"""The steps that lead from what is to what is wanted. Each says what, to whom and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from meshd.codes import WarningCode
from meshd.model.ids import MachineName
from meshd.model.machine import FailureCause, Phase, Removal, UnfitReason
from meshd.provider_api import Instance, Offer


@dataclass(frozen=True, slots=True)
class Step:
    """One step. `subject` is the machine, slot or instance that it is about."""

    subject: str
    reason: str

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
    """Journal a new machine for the slot `subject`; nothing is rented yet."""

    pool: str
    offer: Offer


@dataclass(frozen=True, slots=True)
class Launch(Step):
    """Make the create call for a machine that is REQUESTED. Costs money."""


@dataclass(frozen=True, slots=True)
class Adopt(Step):
    """A create call whose outcome was unclear did make this instance: it is the machine's."""

    instance: Instance


@dataclass(frozen=True, slots=True)
class Move(Step):
    """Only the journal changes: what was observed puts the machine into another phase.

    Attributes:
        failure: why it is given up; "" when it is not.
        cause: of what kind that is.
        vendor_words: the cloud's own on why it ended the machine.
    """

    to: Phase
    failure: str = ""
    cause: FailureCause = FailureCause.NONE
    vendor_words: str = ""


@dataclass(frozen=True, slots=True)
class AskCloud(Step):
    """Ask the cloud about the machine itself: its listing does not have it."""


@dataclass(frozen=True, slots=True)
class RecordPeer(Step):
    """Journal what the tailnet says of the machine."""

    tailnet_ip: str
    tailnet_id: str
    path: str


@dataclass(frozen=True, slots=True)
class RecordDevice(Step):
    """Journal that the machine's tailnet device was deleted while the machine runs, or that it is there again."""

    gone: bool


@dataclass(frozen=True, slots=True)
class AskAgent(Step):
    """Have the machine's agent give a sign of life at once: its cloud says that the machine has ended."""


@dataclass(frozen=True, slots=True)
class RecordFitness(Step):
    """Journal why the node is not fit, or that it is again.

    Attributes:
        unfit_reason: None when it is fit.
        since: since when.
    """

    unfit_reason: UnfitReason | None
    since: datetime


@dataclass(frozen=True, slots=True)
class RestartSlurmd(Step):
    """Have the node agent restart slurmd: it registers anew. Running steps live on."""


@dataclass(frozen=True, slots=True)
class Undrain(Step):
    """Lift a drain that meshd made; no other one."""

    slot: str


@dataclass(frozen=True, slots=True)
class Replace(Step):
    """Give an unfit node up that has no job; the pool then lacks one and rents another."""

    slot: str
    pool: str


@dataclass(frozen=True, slots=True)
class RecordPublished(Step):
    """The machine's line is in force in Slurm."""


@dataclass(frozen=True, slots=True)
class StartSlurmd(Step):
    """Tell the node agent to start slurmd, last of all."""


@dataclass(frozen=True, slots=True)
class MarkReady(Step):
    """The node is up and passed its tests: resume it if meshd had drained it, and call it READY."""


@dataclass(frozen=True, slots=True)
class Remove(Step):
    """The machine is not wanted any more: it will be drained, waited for and given back.

    Attributes:
        removal: as in the machine's record.
    """

    removal: Removal = Removal.SCALE_DOWN


@dataclass(frozen=True, slots=True)
class CancelRemoval(Step):
    """A machine that was being drained is wanted again."""


@dataclass(frozen=True, slots=True)
class Drain(Step):
    """No new jobs on the slot."""

    slot: str


@dataclass(frozen=True, slots=True)
class Leave(Step):
    """Out of Slurm: slurmd is stopped when it can be, and Slurm holds the node DOWN.

    Attributes:
        forced: jobs on it may end.
        dead: its cloud ended it: nothing is left that could be killed.
        silent: its agent does not answer and is not waited for; a job on it still is.
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
    """The cloud has a machine of ours that the journal does not know, and it is wanted.

    `tailnet_ip` is the address of the slot's line when that is this machine's line; jobs may run on it then.
    """

    instance: Instance
    offer: Offer
    pool: str
    slot: str
    tailnet_ip: str = ""


@dataclass(frozen=True, slots=True)
class TerminateOrphan(Step):
    """The cloud has a machine with our tag that nobody wants."""

    instance: Instance


@dataclass(frozen=True, slots=True)
class RemoveDevice(Step):
    """Delete the tailnet device of a machine that is gone."""

    device_id: str


@dataclass(frozen=True, slots=True)
class DisableKeyExpiry(Step):
    """The machine's own node key expires: have it last as long as the machine."""

    device_id: str


@dataclass(frozen=True, slots=True)
class Warn(Step):
    """People should know this before the plan is carried out. `cure` says what would help.

    Attributes:
        holds_back: it keeps the pool from its target. False: the plan is carried out all the same.
    """

    code: WarningCode
    cure: str = ""
    holds_back: bool = True


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps in the order in which they should be begun."""

    steps: tuple[Step, ...] = ()
    warnings: tuple[Warn, ...] = field(default=())

    def of(self, machine: MachineName) -> tuple[Step, ...]:
        """The steps about one machine."""
        return tuple(step for step in self.steps if step.subject == machine)
