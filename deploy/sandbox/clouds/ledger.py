"""The machines of one cloud: what they are, how they live by the clock, and what they cost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from deploy.sandbox.clouds.host import Host
from deploy.sandbox.hypervisor import MachineSpec
from meshd.contract.faults import CallFaults, FaultKind

NAME_MAX = 63


class Life(StrEnum):
    """Where a machine stands."""

    PENDING = "pending"
    RUNNING = "running"
    ENDING = "ending"
    ENDED = "ended"


class End(StrEnum):
    """What ended a machine."""

    ASKED = "asked"
    POWERED_OFF = "powered off"
    DIED = "died"
    PREEMPTED = "preempted"
    BOOT_FAILED = "boot failed"


@dataclass(frozen=True, slots=True)
class LifecycleFaults:
    """What a machine is born with."""

    listed_at: datetime
    known_at: datetime
    never_boots: bool = False
    no_address: bool = False
    dies_at: datetime | None = None
    never_ends: bool = False


@dataclass(slots=True)
class Machine:
    """One machine. `name` is the hypervisor's, unique among those that run; `token` is what its owner calls it."""

    id: str
    name: str
    token: str
    region: str
    zone: str
    instance_type: str
    gpus: int
    gpu_name: str
    usd_per_hour: float
    user_data: str
    created_at: datetime
    faults: LifecycleFaults
    spot: bool = False
    tags: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    address: str = ""
    life: Life = Life.PENDING
    powered_off: bool = False
    end_asked_at: datetime | None = None
    ended_at: datetime | None = None
    end: End | None = None

    def cost_usd(self, now: datetime) -> float:
        """What it has cost so far, by the second, from its launch on."""
        return max(0.0, ((self.ended_at or now) - self.created_at).total_seconds()) / 3600 * self.usd_per_hour


@dataclass(frozen=True, slots=True)
class NewMachine:
    """What a create call asks for.

    Attributes:
        metadata: of the metadata service: GCE's attributes by key; for EC2 its options `http_tokens` and `hop_limit`.
    """

    id: str
    token: str
    region: str
    zone: str
    instance_type: str
    gpus: int
    gpu_name: str
    usd_per_hour: float
    user_data: str
    spot: bool = False
    tags: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rules:
    """How machines of a cloud live.

    Attributes:
        boot_s: the least seconds from launch to running.
        end_s: seconds from the request to end until it has ended.
        keep_s: how long an ended machine is still shown.
        ends_itself: a machine that powers itself off has ended, and costs no more.
        keeps_preempted: a spot machine that was taken back stays as one that is off, until its owner ends it.
    """

    boot_s: float = 0.0
    end_s: float = 0.0
    keep_s: float = 3600.0
    ends_itself: bool = False
    keeps_preempted: bool = False


class Ledger:
    """Book of one cloud's machines. Safe to use from several threads."""

    def __init__(self, cloud: str, host: Host, now: Callable[[], datetime], rules: Rules) -> None:
        self.cloud = cloud
        self.rules = rules
        self.now = now
        self._host = host
        self._machines: dict[str, Machine] = {}
        self._capacity: dict[tuple[str, str], int] = {}
        self._lock = threading.RLock()

    def set_capacity(self, instance_type: str, place: str, machines: int | None) -> None:
        """How many machines of a type fit in a region or zone; "*" for any, None for no limit."""
        with self._lock:
            if machines is None:
                self._capacity.pop((instance_type, place), None)
            else:
                self._capacity[instance_type, place] = machines

    def has_capacity(self, instance_type: str, *places: str) -> bool:
        """Whether one more fits in all of these places."""
        with self._lock:
            return all(
                self._count(kind, place) < limit
                for (kind, place), limit in self._capacity.items()
                if kind in ("*", instance_type) and place in ("*", *places)
            )

    def _count(self, kind: str, place: str) -> int:
        return sum(
            machine.life is not Life.ENDED
            and kind in ("*", machine.instance_type)
            and place in ("*", machine.zone, machine.region)
            for machine in self._machines.values()
        )

    def add(self, new: NewMachine, call_faults: CallFaults) -> Machine:
        """Write a new machine down and begin to boot it."""
        with self._lock:
            now = self.now()
            machine = Machine(
                id=new.id,
                name=self._free_name(new),
                token=new.token,
                region=new.region,
                zone=new.zone,
                instance_type=new.instance_type,
                gpus=new.gpus,
                gpu_name=new.gpu_name,
                usd_per_hour=new.usd_per_hour,
                user_data=new.user_data,
                created_at=now,
                faults=_lifecycle_faults(call_faults, now),
                spot=new.spot,
                tags=new.tags,
                metadata=new.metadata,
            )
            self._machines[machine.id] = machine
            if not machine.faults.never_boots:
                self._boot(machine)
            return machine

    def _boot(self, machine: Machine) -> None:
        defaults = self._host.boot_defaults
        spec = MachineSpec(
            name=machine.name,
            user_data=machine.user_data,
            image=defaults.image,
            gpus=machine.gpus,
            gpu_name=machine.gpu_name,
            clock_offset_s=defaults.clock_offset_s,
            missing_gpus=min(defaults.missing_gpus, machine.gpus),
            labels={"cloud": self.cloud, "id": machine.id},
        )

        def on_up(address: str) -> None:
            with self._lock:
                machine.address = address

        def on_failure(reason: str) -> None:
            with self._lock:
                machine.tags.setdefault("sandbox-failure", reason[:200])
                self._end(machine, End.BOOT_FAILED)

        self._host.boot(spec, on_up, on_failure)

    def _free_name(self, new: NewMachine) -> str:
        base = new.token.lower() or new.id
        taken = {m.name for m in self._machines.values() if m.life is not Life.ENDED}
        return base[:NAME_MAX] if base not in taken else f"{base[: NAME_MAX - 9]}-{new.id[-8:]}"

    def find(self, machine_id: str) -> Machine | None:
        """The machine as it stands now; None for an unknown id, one not yet known, or one no longer shown."""
        with self._lock:
            machine = self._machines.get(machine_id)
            if machine is None:
                return None
            self._live(machine)
            now = self.now()
            return machine if now >= machine.faults.known_at and not self._forgotten(machine, now) else None

    def listed(self) -> list[Machine]:
        """All machines that a list call shows now."""
        with self._lock:
            self.observe()
            now = self.now()
            return [m for m in self._machines.values() if now >= m.faults.listed_at and not self._forgotten(m, now)]

    def everything(self) -> list[Machine]:
        """All machines that ever were."""
        with self._lock:
            self.observe()
            return list(self._machines.values())

    def ask_end(self, machine_id: str) -> None:
        """Begin to end a machine; of no effect on one that is ending."""
        with self._lock:
            machine = self._machines[machine_id]
            self._live(machine)
            if machine.life in (Life.PENDING, Life.RUNNING):
                machine.life = Life.ENDING
                machine.end_asked_at = self.now()
                self._live(machine)

    def kill(self, machine_id: str) -> None:
        """End a machine at once, as a fault of the cloud.

        Raises:
            KeyError: there is none of this id.
        """
        with self._lock:
            self._end(self._machines[machine_id], End.DIED)

    def preempt(self, machine_id: str) -> None:
        """Take a spot machine back: it ends as if its owner had asked for it, or is only switched off.

        Raises:
            KeyError: there is none of this id.
            ValueError: it is no spot machine.
        """
        with self._lock:
            machine = self._machines[machine_id]
            if not machine.spot:
                raise ValueError(f"{machine_id} is no spot machine")
            if self.rules.keeps_preempted:
                machine.powered_off = True
                self._host.destroy(machine.name)
            elif machine.life in (Life.PENDING, Life.RUNNING):
                machine.life, machine.end, machine.end_asked_at = Life.ENDING, End.PREEMPTED, self.now()
                self._live(machine)

    def release(self) -> None:
        """Let the machines end whose end was held up by a fault."""
        with self._lock:
            for machine in self._machines.values():
                machine.faults = replace(machine.faults, never_ends=False)

    def observe(self) -> None:
        """Bring all machines up to the clock."""
        with self._lock:
            for machine in self._machines.values():
                self._live(machine)

    def _live(self, machine: Machine) -> None:
        if machine.life is Life.ENDED:
            return
        now = self.now()
        faults = machine.faults
        if faults.dies_at is not None and now >= faults.dies_at:
            self._end(machine, End.DIED)
            machine.ended_at = faults.dies_at
        elif machine.address and not self._host.alive(machine.name):
            machine.powered_off = True
            if self.rules.ends_itself:
                self._end(machine, End.ASKED if machine.life is Life.ENDING else End.POWERED_OFF)
        if machine.life is Life.PENDING and machine.address and self._due(machine.created_at, self.rules.boot_s):
            machine.life = Life.RUNNING
        if machine.life is Life.ENDING and not faults.never_ends and self._due(machine.end_asked_at, self.rules.end_s):
            self._end(machine, End.ASKED, machine.end_asked_at)

    def _due(self, since: datetime | None, after_s: float) -> bool:
        return since is not None and self.now() >= since + timedelta(seconds=after_s)

    def _end(self, machine: Machine, end: End, asked_at: datetime | None = None) -> None:
        """End a machine now, or else as long after `asked_at` as the rules say, even if nobody looked then."""
        if machine.life is not Life.ENDED:
            machine.life = Life.ENDED
            machine.end = machine.end or end
            machine.ended_at = asked_at + timedelta(seconds=self.rules.end_s) if asked_at else self.now()
            self._host.destroy(machine.name)

    def _forgotten(self, machine: Machine, now: datetime) -> bool:
        return machine.ended_at is not None and now > machine.ended_at + timedelta(seconds=self.rules.keep_s)


def shown_life(machine: Machine, content_faults: Collection[FaultKind]) -> Life:
    """Where a machine stands as an answer shows it, which may be behind the times."""
    behind = FaultKind.REGRESSED in content_faults and machine.life is Life.RUNNING
    return Life.PENDING if behind else machine.life


def _lifecycle_faults(call_faults: CallFaults, now: datetime) -> LifecycleFaults:
    def at(kind: FaultKind) -> datetime | None:
        fault = call_faults.lifecycle_fault(kind)
        return None if fault is None else now + timedelta(seconds=fault.seconds)

    return LifecycleFaults(
        listed_at=at(FaultKind.LIST_LAG) or now,
        known_at=at(FaultKind.FRESH_NOT_FOUND) or now,
        never_boots=call_faults.has(FaultKind.NEVER_BOOTS),
        no_address=call_faults.has(FaultKind.NO_ADDRESS),
        dies_at=at(FaultKind.DIES),
        never_ends=call_faults.has(FaultKind.NEVER_ENDS),
    )
