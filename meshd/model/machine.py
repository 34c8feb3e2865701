"""A machine's record, its phases, and why it fails, is unfit or is removed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from meshd.errors import IllegalMove
from meshd.model.hardware import NodeFacts
from meshd.model.ids import MachineName, PoolName, SlotName
from meshd.provider_api import Offer


class FailureCause(StrEnum):
    """Why a machine was given up. `meshd.plan.failure_rules` says what follows from each."""

    NONE = ""
    """It did not fail."""
    NO_CAPACITY = "no_capacity"
    """The cloud accepted the order and ended the machine for lack of capacity."""
    QUOTA = "quota_exceeded"
    """The cloud accepted the order and ended the machine because the account's quota is used up."""
    PREEMPTED = "preempted"
    """The cloud took the spot machine back."""
    IMAGE = "image"
    """The cloud could not start it from its image, its disk or its key."""
    SCRIPT = "script"
    """It powered itself off, or its start command ended, before it joined."""
    TAILNET = "tailnet"
    """It was never seen on the tailnet."""
    NO_IPV4 = "no_ipv4"
    """The tailnet gives it no IPv4 address. One such failure stops the pool."""
    AUTH_KEY = "auth_key"
    """The auth key that all machines share does not work any more."""
    AGENT = "agent"
    """It is on the tailnet, and its node agent never asked to join."""
    ADMISSION = "admission"
    """The head refused its join: other GPUs than rented, or a Slurm version that does not fit."""
    CONFIGURE = "configure"
    """munge was not proved, or Slurm did not take its line."""
    SETTINGS = "settings"
    """A section of its node settings, such as its pool's set-up, failed for good or took too long."""
    PATH = "path"
    """Its pool demands a direct tailnet path to the head, and its path stayed relayed."""
    TEST = "test"
    """slurmd was started, and Slurm does not show the node up."""
    UNFIT = "unfit"
    """It was READY and became unfit; another machine replaces it."""
    AWAY = "away"
    """Its owner took the machine away, or switched it off."""
    ENDED = "ended"
    """Its cloud ended it, or stopped listing it, for no reason that meshd knows."""
    UNKNOWN = "unknown"
    """None of these, or an older meshd did not record the cause."""


class UnfitReason(StrEnum):
    """Why a node is unfit. Of several reasons the one listed first here is shown."""

    BY_PERSON = "drained_by_person"
    """Somebody drained it or set it DOWN. meshd neither resumes nor replaces the node."""
    MAINTENANCE = "maintenance"
    """A reservation for maintenance, or a reboot that somebody ordered."""
    SILENT = "silent"
    """Its agent's heartbeat is late."""
    SPOT_NOTICE = "spot_notice"
    """Its cloud has given notice that it takes the machine back."""
    SHARE_LOST = "share_lost"
    """A directory that it shares with other nodes is not there."""
    ACCOUNT_CLASH = "account_clash"
    """An account of its image has the uid of a user of the cluster."""
    SLURMD_DEAD = "slurmd_dead"
    """Its agent finds no slurmd."""
    MUNGE_DEAD = "munge_dead"
    """Its munged does not answer its agent."""
    GPU_FAULT = "gpu_fault"
    """nvidia-smi cannot be read, or lacks GPUs."""
    INVALID = "invalid"
    """slurmd registered with less hardware than its line says (INVALID_REG)."""
    DOWN = "down"
    """Slurm holds it DOWN."""
    NOT_RESPONDING = "not_responding"
    """slurmd does not answer slurmctld."""
    UNREGISTERED = "unregistered"
    """slurmd has not registered: Slurm knows nothing of it."""
    ABSENT = "absent"
    """Slurm does not have the slot, or has it at another address."""
    POWERED_DOWN = "powered_down"
    """Slurm's power saving has switched it off, or is doing so."""
    DRAINED = "drained"
    """Slurm itself drained it: a job's processes could not be killed, or a prolog failed."""
    BY_MESHD = "drained_by_meshd"
    """meshd drained it for a fault that is over, and resumes it soon."""


class Removal(StrEnum):
    """Why a machine is to be given back although it did not fail."""

    SCALE_DOWN = "scale_down"
    """The pool's target fell, or the machine was idle for too long. It stays if it is wanted again in time."""
    GANG_MOVED = "gang_moved"
    """All machines of its target go to another place."""
    BY_USER = "by_user"
    """Somebody removed it. Its jobs are waited for."""
    FORCED = "forced"
    """Somebody removed it at once, or the budget's `kill_at` is reached. Its jobs are not waited for."""


class Phase(StrEnum):
    """Where a machine is in its life."""

    REQUESTED = "requested"
    """In the journal; no create call was made."""
    LAUNCHING = "launching"
    """A create call was made and its outcome is not known."""
    BOOTING = "booting"
    """The cloud made it."""
    JOINING = "joining"
    """On the tailnet; its agent has not asked to join yet."""
    CONFIGURING = "configuring"
    """The head accepted it: munge is being proved, and its line goes into nodes.conf."""
    TESTING = "testing"
    """Where its pool demands a direct path to the head, the path is tested first. Then slurmd starts, and Slurm must
    show the node up."""
    READY = "ready"
    DRAINING = "draining"
    """No new jobs; it waits for the running ones, then leaves Slurm."""
    TERMINATING = "terminating"
    """Out of Slurm; meshd asks the cloud to end it until it is gone."""
    LOST = "lost"
    """The cloud does not end it, so it costs money. meshd keeps asking."""
    GONE = "gone"


MOVES: dict[Phase, frozenset[Phase]] = {
    Phase.REQUESTED: frozenset({Phase.LAUNCHING, Phase.GONE}),
    Phase.LAUNCHING: frozenset({Phase.REQUESTED, Phase.BOOTING, Phase.TERMINATING, Phase.GONE}),
    Phase.BOOTING: frozenset({Phase.JOINING, Phase.CONFIGURING, Phase.DRAINING, Phase.TERMINATING}),
    Phase.JOINING: frozenset({Phase.CONFIGURING, Phase.DRAINING, Phase.TERMINATING}),
    Phase.CONFIGURING: frozenset({Phase.TESTING, Phase.DRAINING, Phase.TERMINATING}),
    Phase.TESTING: frozenset({Phase.READY, Phase.DRAINING, Phase.TERMINATING}),
    Phase.READY: frozenset({Phase.DRAINING, Phase.TERMINATING}),
    Phase.DRAINING: frozenset({Phase.READY, Phase.TERMINATING}),
    Phase.TERMINATING: frozenset({Phase.LOST, Phase.GONE}),
    Phase.LOST: frozenset({Phase.GONE}),
    Phase.GONE: frozenset(),
}
"""Which phase may follow which. DRAINING returns to READY only when the pool is scaled up again."""

HOLDS_SLOT = frozenset(Phase) - {Phase.TERMINATING, Phase.LOST, Phase.GONE}
"""In these phases the machine's slot is taken."""

IN_SLURM = frozenset({Phase.CONFIGURING, Phase.TESTING, Phase.READY, Phase.DRAINING})
"""In these phases a machine that was accepted may have its joined line in nodes.conf."""

COUNTS_AS_SUPPLY = frozenset(
    {Phase.REQUESTED, Phase.LAUNCHING, Phase.BOOTING, Phase.JOINING, Phase.CONFIGURING, Phase.TESTING, Phase.READY}
)
"""In these phases the machine's GPUs count towards the pool's target."""

COSTS_MONEY = frozenset(Phase) - {Phase.REQUESTED, Phase.GONE}


@dataclass(frozen=True, slots=True)
class Machine:
    """One rented machine, as the journal keeps it. Times are UTC.

    Attributes:
        slot: the Slurm NodeName that it was made for.
        phase_since: when it entered its phase; the phase's deadline counts from here.
        reason: why it is in this phase, for people.
        failure: why it was given up; "" when it was not.
        failure_cause: the kind of that failure; it decides what cools down.
        refusal: the kind of error with which its cloud refused the create call, e.g. "no_capacity"; "" when it did not.
            While the machine is LAUNCHING, an earlier create call is unclear as well.
        vendor_words: the cloud's own words in that refusal, or on why the call's outcome is unclear.
        instance_id: the cloud's id; "" until it is known.
        launch_attempts: create calls made so far. 0 for a machine that was adopted.
        tailnet_ip: its address on the tailnet, from its device there.
        munge_ok: head and machine have each decoded a credential of the other.
        line_published: nodes.conf with this machine's joined line is in force in Slurm.
        slurmd_started: the agent confirmed that it started slurmd.
        removal: why it is to be given back; None while it is to stay.
        left_slurm: slurmd is stopped, or the machine is dead, and Slurm holds the node DOWN.
        heartbeat_at: when its agent last called the head.
        problem: what keeps it from the next phase, in its agent's or the head's words; "" when nothing does.
        former_ips: its earlier tailnet addresses: a device that is deleted and made again has a new one.
        path: how the head reaches it on the tailnet: "direct 1.2.3.4:41641", "relay fra", "".
        auth_key: sha256 of the tailnet auth key that it was rented with or last reported; "" when not known.
        own_key: it was rented with an auth key of its own for one use, and keeps only a spare key.
        spare_key: sha256 of the spare auth key that it last reported; "" for none.
        metadata_open: why its users can reach the cloud's metadata service, in its agent's words; "" when they cannot.
        lacks: what a job lacks on it that Slurm's settings give it elsewhere, as codes (docs/slurm.md).
        by_queue: Slurm powered its slot up, so it was rented for that; False: for a person's target or `min_gpus`.
        for_jobs: the jobs that waited for its slot when it was requested; () where a person powered the slot up.
        gang: the id of the one create call with which it was ordered; "" for a call of its own.
        image: the id of the baked image that it boots from; "" for the cloud's own.
        baking: an image is made of it: it never joins.
        unfit_reason: why it cannot do its work; None while it can, or nothing is known.
        unfit_since: when it became so; kept while one reason of being out of reach follows another.

    When meshd last did this for the machine; None: never.
        launch_called_at: made the create call.
        launch_first_called_at: made the first create call that may have made it; launch_called_at is the last.
        create_repeated_at: repeated the create call with the same name.
        create_unclear_at: had no clear answer to a create call.
        slurmd_start_ordered_at: told its agent to start slurmd.
        slurmd_restarted_at: told its agent to restart slurmd.
        slurmd_reloaded_at: told its agent to have slurmd register again.
        drained_at: drained its node.
        agent_asked_at: asked its agent for a heartbeat.
        cloud_asked_at: asked its cloud for it by name.
        jobs_signalled_at: told the jobs on it that its cloud takes it back.
        terminate_called_at: asked its cloud to end it.
        key_expiry_asked_at: asked the tailnet's API to disable the expiry of its node key.

    When this was observed; None: never, or it is over.
        head_reached_at: it called the head's node API with its join token, so the network between them works.
        cloud_confirmed_at: its cloud, asked by name, said that it exists.
        device_gone_since: its tailnet device was deleted while the machine runs.
        turn_since: its order may go out: nothing that guards orders holds it back.
        rebooting_since: its agent was stopped, and reported that the machine reboots.
        unreadable_since: a part of its record in the journal could not be read.

    When its cloud will take it back, as a notice for a spot machine says; None: there is no notice.
        preempted_at
    """

    name: MachineName
    pool: PoolName
    slot: SlotName
    provider: str
    offer: Offer
    phase: Phase
    phase_since: datetime
    created_at: datetime
    reason: str = ""
    failure: str = ""
    failure_cause: FailureCause = FailureCause.NONE
    instance_id: str = ""
    region: str = ""
    launch_attempts: int = 0
    launch_called_at: datetime | None = None
    launch_first_called_at: datetime | None = None
    tailnet_ip: str = ""
    tailnet_id: str = ""
    former_ips: tuple[str, ...] = ()
    facts: NodeFacts | None = None
    munge_ok: bool = False
    line_published: bool = False
    slurmd_started: bool = False
    removal: Removal | None = None
    left_slurm: bool = False
    heartbeat_at: datetime | None = None
    path: str = ""
    public_ip: str = ""
    launched_at: datetime | None = None
    ready_at: datetime | None = None
    gone_at: datetime | None = None
    device_removed: bool = False
    terminate_calls: int = 0
    problem: str = ""
    auth_key: str = ""
    own_key: bool = False
    spare_key: str = ""
    metadata_open: str = ""
    lacks: tuple[str, ...] = ()
    refusal: str = ""
    vendor_words: str = ""
    by_queue: bool = False
    for_jobs: tuple[str, ...] = ()
    gang: str = ""
    image: str = ""
    baking: bool = False
    unfit_reason: UnfitReason | None = None
    unfit_since: datetime | None = None
    create_repeated_at: datetime | None = None
    create_unclear_at: datetime | None = None
    slurmd_start_ordered_at: datetime | None = None
    slurmd_restarted_at: datetime | None = None
    slurmd_reloaded_at: datetime | None = None
    drained_at: datetime | None = None
    jobs_signalled_at: datetime | None = None
    agent_asked_at: datetime | None = None
    cloud_asked_at: datetime | None = None
    terminate_called_at: datetime | None = None
    key_expiry_asked_at: datetime | None = None
    head_reached_at: datetime | None = None
    cloud_confirmed_at: datetime | None = None
    device_gone_since: datetime | None = None
    turn_since: datetime | None = None
    rebooting_since: datetime | None = None
    unreadable_since: datetime | None = None
    preempted_at: datetime | None = None

    @property
    def may_run_jobs(self) -> bool:
        """Whether slurmd was or may have been started. What an adopted machine did before is not known."""
        return self.slurmd_started or self.slurmd_start_ordered_at is not None or self.launch_attempts == 0

    @property
    def removed_by_user(self) -> bool:
        """Whether somebody removed it, which is not taken back when the pool needs more machines."""
        return self.removal in {Removal.BY_USER, Removal.FORCED}

    @property
    def held(self) -> bool:
        """Whether meshd takes no step for it, since its record may be wrong. Removing it lifts that."""
        over = self.removed_by_user or self.phase in {Phase.TERMINATING, Phase.LOST, Phase.GONE}
        return self.unreadable_since is not None and not over

    @property
    def rebooting(self) -> bool:
        """Whether its agent reported a reboot and has not called since."""
        return self.rebooting_since is not None

    @property
    def usd_per_hour(self) -> float:
        """What it costs while it exists."""
        return self.offer.usd_per_hour

    @property
    def gpus(self) -> int:
        """How many GPUs were rented with it."""
        return self.offer.gpus

    def moved(self, to: Phase, now: datetime, reason: str) -> Machine:
        """The record in another phase.

        Raises:
            IllegalMove: MOVES does not have it.
        """
        if to not in MOVES[self.phase]:
            raise IllegalMove(f"{self.name}: {self.phase} cannot become {to} ({reason})")
        return replace(self, phase=to, phase_since=now, reason=reason)


_OWN_TIMES = (
    "phase_since", "created_at", "launch_called_at", "launch_first_called_at", "heartbeat_at", "launched_at",
    "ready_at", "unfit_since", "create_repeated_at", "create_unclear_at", "slurmd_start_ordered_at",
    "slurmd_restarted_at", "slurmd_reloaded_at", "drained_at", "jobs_signalled_at", "agent_asked_at", "cloud_asked_at",
    "terminate_called_at", "key_expiry_asked_at", "head_reached_at", "cloud_confirmed_at", "device_gone_since",
    "rebooting_since", "turn_since", "unreadable_since",
)  # fmt: skip


def set_with_clock(machine: Machine, step: timedelta, since: datetime) -> Machine:
    """The record after the clock was set by `step`: so long ago as before is what happened after `since`.

    What happened earlier was perhaps written by another clock. What its cloud says of its launch stays.
    """
    changes: dict[str, Any] = {
        name: at + step for name in (*_own_times(machine), "preempted_at")
        if (at := getattr(machine, name)) is not None and at >= since
    }  # fmt: skip
    return replace(machine, **changes) if changes else machine


def without_future(machine: Machine, now: datetime) -> Machine:
    """The record with each time at most `now`. Later ones were written before the clock was set back.

    What its cloud says of its launch stays: the clock may be set forward again, and the bill goes by it.
    """
    changes: dict[str, Any] = {
        name: now for name in _own_times(machine) if (at := getattr(machine, name)) is not None and at > now
    }
    return replace(machine, **changes) if changes else machine


def _own_times(machine: Machine) -> tuple[str, ...]:
    """The times that this head's clock told: that of the launch only where its cloud told none."""
    calls = {machine.launch_first_called_at, machine.launch_called_at, machine.created_at}
    return _OWN_TIMES if machine.launched_at in calls else tuple(set(_OWN_TIMES) - {"launched_at"})
