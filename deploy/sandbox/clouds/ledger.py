"""The machines of one cloud, their lifecycle by the clock, and their cost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from deploy.sandbox.clouds.host import Host
from deploy.sandbox.hypervisor import MachineSpec, Pod
from meshd.contract.faults import CallFaults, FaultKind

NAME_MAX = 63
ENDS_WITHIN = timedelta(minutes=10)
"""A machine that takes longer to end is billed for that time too."""


class Life(StrEnum):
    """A machine's state."""

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
    """The lifecycle faults of a machine."""

    listed_at: datetime
    known_at: datetime
    never_boots: bool = False
    no_address: bool = False
    dies_at: datetime | None = None
    never_ends: bool = False


@dataclass(frozen=True, slots=True)
class Billing:
    """How a cloud rounds the time of a machine up, in seconds."""

    increment_s: float = 1.0
    minimum_s: float = 0.0


@dataclass(slots=True)
class RentedMachine:
    """One machine. `name` is the hypervisor's, unique among running machines; `token` is the owner's.

    `user_data` is what the create call gave the machine to run; for a pod, the same as its `args`.
    `preempts_at` is when the cloud takes it back, as its notice says; `rebalance_at` when EC2 recommended another;
    `host_stops`: GCE has announced that its host stops; `keeps_off`: it stays when it powers itself off;
    `image`: the id of the baked image that it boots from.
    """

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
    pod: Pod | None = None
    image_kind: str = ""
    address: str = ""
    life: Life = Life.PENDING
    powered_off: bool = False
    end_asked_at: datetime | None = None
    ended_at: datetime | None = None
    end: End | None = None
    preempts_at: datetime | None = None
    rebalance_at: datetime | None = None
    host_stops: bool = False
    keeps_off: bool = False
    image: str = ""

    def cost_usd(self, now: datetime) -> float:
        """The cost since the launch, by the second."""
        return max(0.0, ((self.ended_at or now) - self.created_at).total_seconds()) / 3600 * self.usd_per_hour

    def billed_usd(self, now: datetime, billing: Billing) -> float:
        """What the cloud's invoice has for it: the time until its owner asked to end it, rounded up once it is over.

        A machine that ended by itself, or that the cloud does not end, is billed until it has ended.
        """
        end = self.ended_at or now
        if self.end_asked_at is not None and self.end is End.ASKED and end - self.end_asked_at <= ENDS_WITHIN:
            end = self.end_asked_at
        seconds = max(0.0, (end - self.created_at).total_seconds())
        if self.ended_at is not None:
            step = timedelta(seconds=billing.increment_s)
            seconds = max(billing.minimum_s, -(-timedelta(seconds=seconds) // step) * billing.increment_s)
        return seconds / 3600 * self.usd_per_hour


@dataclass(frozen=True, slots=True)
class NewMachine:
    """The machine that a create call asks for.

    Attributes:
        metadata: for the metadata service: GCE's attributes by key; for EC2 its options `http_tokens` and `hop_limit`.
        pod: makes it a container.
        image_kind: the end of the image's name, after that of the suite which the host boots.
        keeps_off: it stays when it powers itself off, whatever the rules say.
        image: the id of the baked image that it boots from; "" for none.
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
    pod: Pod | None = None
    image_kind: str = ""
    keeps_off: bool = False
    image: str = ""


@dataclass(frozen=True, slots=True)
class Rules:
    """The lifecycle of a cloud's machines.

    Attributes:
        boot_s: the shortest time from launch to running.
        end_s: the time from the request to end until the machine has ended.
        keep_s: how long an ended machine is still shown.
        ends_itself: a machine that powers itself off has ended, and costs nothing more.
        keeps_preempted: a preempted spot machine stays, switched off, until its owner ends it.
        billing: how its time is rounded in the bill.
    """

    boot_s: float = 0.0
    end_s: float = 0.0
    keep_s: float = 3600.0
    ends_itself: bool = False
    keeps_preempted: bool = False
    billing: Billing = Billing()


class Ledger:
    """The record of one cloud's machines. Thread-safe."""

    def __init__(self, cloud: str, host: Host, now: Callable[[], datetime], rules: Rules) -> None:
        self.cloud = cloud
        self.rules = rules
        self.now = now
        self._host = host
        self._machines: dict[str, RentedMachine] = {}
        self._capacity: dict[tuple[str, str], int] = {}
        self._lock = threading.RLock()

    def set_capacity(self, instance_type: str, place: str, machines: int | None) -> None:
        """Limit how many machines of a type fit in a region or zone. "*" means any; None removes the limit."""
        with self._lock:
            if machines is None:
                self._capacity.pop((instance_type, place), None)
            else:
                self._capacity[instance_type, place] = machines

    def has_capacity(self, instance_type: str, *places: str) -> bool:
        """Whether one more machine fits in all of these places."""
        room = self.room(instance_type, *places)
        return room is None or room > 0

    def room(self, instance_type: str, *places: str) -> int | None:
        """How many more machines fit in all of these places; None for any number."""
        with self._lock:
            rooms = [
                limit - self._count(kind, place)
                for (kind, place), limit in self._capacity.items()
                if kind in ("*", instance_type) and place in ("*", *places)
            ]
            return max(0, min(rooms)) if rooms else None

    def _count(self, kind: str, place: str) -> int:
        return sum(
            machine.life is not Life.ENDED
            and kind in ("*", machine.instance_type)
            and place in ("*", machine.zone, machine.region)
            for machine in self._machines.values()
        )

    def add(self, new: NewMachine, call_faults: CallFaults, place: int = 0) -> RentedMachine:
        """Record a new machine and start to boot it. `place` is its place among those that the call makes."""
        with self._lock:
            now = self.now()
            machine = RentedMachine(
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
                faults=_lifecycle_faults(call_faults, now, place),
                spot=new.spot,
                tags=new.tags,
                metadata=new.metadata,
                pod=new.pod,
                image_kind=new.image_kind,
                keeps_off=new.keeps_off,
                image=new.image,
            )
            self._machines[machine.id] = machine
            if not machine.faults.never_boots:
                self._boot(machine)
            return machine

    def console(self, machine: RentedMachine) -> str:
        """What a machine wrote to its console."""
        return self._host.console(machine.name)

    def snapshot(
        self, machine: RentedMachine, image: str, on_done: Callable[[], None], on_failure: Callable[[], None]
    ) -> None:
        """Start to make an image of a machine's disk."""
        self._host.snapshot(machine.name, image, on_done, on_failure)

    def _boot(self, machine: RentedMachine) -> None:
        defaults = self._host.boot_defaults
        spec = MachineSpec(
            name=machine.name,
            user_data="" if machine.pod else machine.user_data,
            image=machine.image or defaults.image + machine.image_kind,
            keeps_disk=machine.keeps_off,
            gpus=machine.gpus,
            gpu_name=machine.gpu_name,
            clock_offset_s=defaults.clock_offset_s,
            missing_gpus=min(defaults.missing_gpus, machine.gpus),
            labels={"cloud": self.cloud, "id": machine.id},
            pod=machine.pod and replace(machine.pod, hard_nat=defaults.hard_nat),
            names=self._host.names,
            certificate=self._host.certificate,
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

    def find(self, machine_id: str) -> RentedMachine | None:
        """The machine's current state; None when the id is unknown, not known yet, or not shown any more."""
        with self._lock:
            machine = self._machines.get(machine_id)
            if machine is None:
                return None
            self._update(machine)
            now = self.now()
            return machine if now >= machine.faults.known_at and not self._forgotten(machine, now) else None

    def listed(self) -> list[RentedMachine]:
        """All machines that a list call shows now."""
        with self._lock:
            self.observe()
            now = self.now()
            return [m for m in self._machines.values() if now >= m.faults.listed_at and not self._forgotten(m, now)]

    def everything(self) -> list[RentedMachine]:
        """All machines that were ever made."""
        with self._lock:
            self.observe()
            return list(self._machines.values())

    def ask_end(self, machine_id: str) -> None:
        """Start to end a machine. Does nothing when it is ending."""
        with self._lock:
            machine = self._machines[machine_id]
            self._update(machine)
            if machine.life in (Life.PENDING, Life.RUNNING):
                machine.life = Life.ENDING
                machine.end_asked_at = self.now()
                self._update(machine)

    def kill(self, machine_id: str) -> None:
        """End a machine at once, as a fault of the cloud.

        Raises:
            KeyError: the id is unknown.
        """
        with self._lock:
            self._end(self._machines[machine_id], End.DIED)

    def preempt(self, machine_id: str) -> None:
        """Preempt a spot machine: end it, or only switch it off, according to the rules.

        Raises:
            KeyError: the id is unknown.
            ValueError: it is not a spot machine.
        """
        with self._lock:
            machine = self._spot_machine(machine_id)
            if self.rules.keeps_preempted:
                self.stop(machine_id)
            elif machine.life in (Life.PENDING, Life.RUNNING):
                machine.life, machine.end, machine.end_asked_at = Life.ENDING, End.PREEMPTED, self.now()
                self._update(machine)

    def notice(self, machine_id: str, ends_in_s: float) -> None:
        """Give a spot machine notice that it is preempted in `ends_in_s` seconds, and preempt it then.

        Raises:
            KeyError: the id is unknown.
            ValueError: it is not a spot machine.
        """
        with self._lock:
            machine = self._spot_machine(machine_id)
            machine.preempts_at = self.now() + timedelta(seconds=ends_in_s)

    def _spot_machine(self, machine_id: str) -> RentedMachine:
        machine = self._machines[machine_id]
        if not machine.spot:
            raise ValueError(f"{machine_id} is not a spot machine")
        return machine

    def stop(self, machine_id: str) -> None:
        """Switch a machine off, and remove what it has written. It stays, until it is started or ended.

        Raises:
            KeyError: the id is unknown.
        """
        with self._lock:
            machine = self._machines[machine_id]
            machine.powered_off = True
            self._host.destroy(machine.name)

    def start(self, machine_id: str) -> None:
        """Start a machine that is switched off, with new files.

        Raises:
            KeyError: the id is unknown.
        """
        with self._lock:
            machine = self._machines[machine_id]
            machine.powered_off, machine.address, machine.life = False, "", Life.PENDING
            self._host.destroy(machine.name)
            self._boot(machine)

    def restart(self, machine_id: str) -> None:
        """Start a pod's container again, with the same files.

        Raises:
            KeyError: the id is unknown.
        """
        with self._lock:
            self._host.restart(self._machines[machine_id].name)

    def release(self) -> None:
        """Remove the fault that keeps machines from ending."""
        with self._lock:
            for machine in self._machines.values():
                machine.faults = replace(machine.faults, never_ends=False)

    def observe(self) -> None:
        """Update all machines to the current time."""
        with self._lock:
            for machine in self._machines.values():
                self._update(machine)

    def _update(self, machine: RentedMachine) -> None:
        if machine.life is Life.ENDED:
            return
        now = self.now()
        faults = machine.faults
        if machine.preempts_at is not None and now >= machine.preempts_at:
            self._end(machine, End.PREEMPTED)
            machine.ended_at = machine.preempts_at
        elif faults.dies_at is not None and now >= faults.dies_at:
            self._end(machine, End.DIED)
            machine.ended_at = faults.dies_at
        elif machine.address and not self._host.alive(machine.name):
            machine.powered_off = True
            if self.rules.ends_itself and not machine.keeps_off:
                self._end(machine, End.ASKED if machine.life is Life.ENDING else End.POWERED_OFF)
        if machine.life is Life.PENDING and machine.address and self._due(machine.created_at, self.rules.boot_s):
            machine.life = Life.RUNNING
        if machine.life is Life.ENDING and not faults.never_ends and self._due(machine.end_asked_at, self.rules.end_s):
            self._end(machine, End.ASKED, machine.end_asked_at)

    def _due(self, since: datetime | None, after_s: float) -> bool:
        return since is not None and self.now() >= since + timedelta(seconds=after_s)

    def _end(self, machine: RentedMachine, end: End, asked_at: datetime | None = None) -> None:
        """End a machine: now, or `end_s` after `asked_at` when that is given."""
        if machine.life is not Life.ENDED:
            machine.end = machine.end or (End.ASKED if machine.life is Life.ENDING else end)
            machine.life = Life.ENDED
            machine.ended_at = asked_at + timedelta(seconds=self.rules.end_s) if asked_at else self.now()
            self._host.destroy(machine.name)

    def _forgotten(self, machine: RentedMachine, now: datetime) -> bool:
        return machine.ended_at is not None and now > machine.ended_at + timedelta(seconds=self.rules.keep_s)


def shown_life(machine: RentedMachine, content_faults: Collection[FaultKind]) -> Life:
    """A machine's state as an answer shows it; a fault may make it outdated."""
    behind = FaultKind.REGRESSED in content_faults and machine.life is Life.RUNNING
    return Life.PENDING if behind else machine.life


def _lifecycle_faults(call_faults: CallFaults, now: datetime, place: int) -> LifecycleFaults:
    def at(kind: FaultKind) -> datetime | None:
        fault = call_faults.lifecycle_fault(kind)
        return None if fault is None else now + timedelta(seconds=fault.seconds)

    return LifecycleFaults(
        listed_at=at(FaultKind.LIST_LAG) or (at(FaultKind.LIST_PART) if place else None) or now,
        known_at=at(FaultKind.FRESH_NOT_FOUND) or now,
        never_boots=call_faults.has(FaultKind.NEVER_BOOTS),
        no_address=call_faults.has(FaultKind.NO_ADDRESS),
        dies_at=at(FaultKind.DIES),
        never_ends=call_faults.has(FaultKind.NEVER_ENDS),
    )
