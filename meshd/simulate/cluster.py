"""The user's cluster in a simulated world: clouds by their price lists, machines that boot, jobs of a load, faults."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.machines.desired_state import DesiredState
from meshd.daemon.promises import PoolPromises
from meshd.errors import Transient
from meshd.model.desired import Desired, Promise
from meshd.model.hardware import GpuFact, NodeFacts, NodeShape
from meshd.model.machine import Machine, Phase
from meshd.model.observed import Fresh, Observation, SlurmJob, SlurmNode, SlurmView, Unavailable
from meshd.plan.idle import BY_QUEUE_IDLE_S
from meshd.plan.ledger import rounding_of
from meshd.provider_api import Instance, Offer, Provider, ProviderCapabilities
from meshd.simulate.faults import Answer, Called
from meshd.simulate.life import FACTS, NOWHERE
from meshd.simulate.load import FaultTable, JobSpec
from meshd.simulate.queue import Job, QueueWorld
from meshd.simulate.queue_life import QueueLife
from meshd.simulate.waits import Waits
from meshd.simulate.world import Cloud, SimMachine
from meshd.store.ledger import Ledger

NEVER_S = 1e12
NOTICE_S = 120.0
"""How long before its end a spot machine is told of it."""
ENDED_LISTED_S = 60.0
FORGOTTEN_S = 1800.0
"""A machine that ended so long ago is of no use to anybody any more."""
BEAT_S = 25.0
"""How often an agent speaks that has nothing new to tell: `node_api.poll_hold_s`."""
AGAIN_S = 0.5
"""From one look of meshd to the next, while its steps go on."""
JOIN_S = 3 * AGAIN_S
"""From the tailnet to a node that takes jobs, by meshd's looks here."""


@dataclass
class JobLog:
    """What became of a job.

    Attributes:
        nodes_s: for how long it had nodes while it ran, in node-seconds, all its runs together.
    """

    spec: JobSpec
    started_s: float | None = None
    ended_s: float | None = None
    starts: int = 0
    nodes_s: float = 0.0


@dataclass
class ClusterWorld(QueueWorld):
    """Nothing happens by chance but what the scenario says.

    Attributes:
        able: the clouds.
        boot_range_s: the least and the most time from a create call to a node that takes jobs.
        troubles: what goes wrong, and when.
        coming: the jobs, the last one first.
        waits: for what jobs waited.
        driven: the pools that Slurm's queue drives.
        rang: something has happened that meshd is told of at once: by slurmctld's programs, an agent, or a cloud's
            listing that it waits for.
        job_ended: since meshd looked last. It sees that the next time it reads Slurm.
    """

    able: Mapping[str, ProviderCapabilities] = field(default_factory=dict)
    boot_range_s: tuple[float, float] = (60.0, 180.0)
    troubles: tuple[FaultTable, ...] = ()
    coming: list[JobSpec] = field(default_factory=list)
    waits: Waits = field(default_factory=Waits)
    driven: frozenset[str] = frozenset()
    log: dict[str, JobLog] = field(default_factory=dict)
    rang: bool = False
    job_ended: bool = False
    rented: int = 0
    refused: int = 0
    taken_back: int = 0

    def __post_init__(self) -> None:
        """Name the slots, and remember when faults begin and end."""
        super().__post_init__()
        self.by_hand = {slot for name, slots in self.of_partition.items() if name not in self.driven for slot in slots}
        self.edges = sorted({edge for trouble in self.troubles for edge in trouble.edges if edge > 0})

    # -- clouds ---------------------------------------------------------------------------------------------------

    def clouds(self) -> dict[str, Provider]:
        """All clouds, by name."""
        return {name: Cloud(self, name, can) for name, can in self.able.items()}

    def repeats(self, provider: str) -> bool:
        """Whether a create call of this cloud that is repeated makes no second machine."""
        return self.able[provider].idempotent_launch

    def trouble(self, kind: str, provider: str, offer: str = "") -> FaultTable | None:
        """What goes wrong now in this way."""
        now_s = self.clock.t_s
        return next((one for one in self.troubles if one.kind == kind and one.holds(now_s, provider, offer)), None)

    def is_out(self, provider: str) -> bool:
        """Whether a cloud answers nobody."""
        return self.trouble("outage", provider) is not None

    def fate(self, offer: Offer) -> Called:
        """What becomes of a create call."""
        if self.is_out(offer.provider):
            return Called(Answer.BUSY)
        if offer.available is False or self.trouble("no_capacity", offer.provider, offer.key):
            self.refused += 1
            return Called(Answer.SOLD_OUT)
        return Called(Answer.MADE, 0.0)

    def _make(self, token: str, offer: Offer, called: Called) -> SimMachine:
        before = self.creates
        made = super()._make(token, offer, called)
        if self.creates > before:
            self.rented += 1
            slow = self.trouble("slow_boot", offer.provider, offer.key)
            made.boots, made.dies_s = True, NEVER_S
            ready_s = self.rng.uniform(*self.boot_range_s) * (slow.factor if slow is not None else 1.0)
            made.boot_s = max(0.0, ready_s - JOIN_S)
        return made

    async def get(self, instance: Instance) -> Instance:
        """A machine. Raises Transient while its cloud is out."""
        self._answers(instance.provider)
        return await super().get(instance)

    async def terminate(self, instance: Instance) -> None:
        """End a machine. Raises Transient while its cloud is out."""
        self._answers(instance.provider)
        await super().terminate(instance)

    def _answers(self, provider: str) -> None:
        if self.is_out(provider):
            raise Transient("the cloud does not answer")

    def _end(self, machine: SimMachine, *, by_meshd: bool) -> None:
        super()._end(machine, by_meshd=by_meshd)
        machine.ended_listed_until_s = self.clock.t_s + ENDED_LISTED_S
        self.notices.pop(machine.id, None)

    # -- Slurm ----------------------------------------------------------------------------------------------------

    def node(self, slot: str) -> SlurmNode:
        """A node. A slot of a pool that people drive is DOWN while it has no machine."""
        shown = super().node(slot)
        if slot not in self.by_hand:
            return shown
        if slot not in self.registered:
            return replace(shown, states=frozenset({"DOWN"}) | (shown.states & {"DRAIN"}))
        return replace(shown, states=shown.states - {"CLOUD"})

    def show(self) -> SlurmView:
        """All nodes, and the jobs that have nodes or are next in their partition.

        The planner does not look at jobs that wait behind others, and there may be many.
        """
        jobs: list[SlurmJob] = []
        waiting: set[str] = set()
        for job in self.queue.values():
            if job.slots or job.comment or job.partition not in waiting:
                jobs.append(self.job_view(job))
            if not job.slots:
                waiting.add(job.partition)
        return SlurmView("24.11.5", {slot: self.node(slot) for slot in self.slots}, tuple(jobs), power_saving=True)

    def free_for(self, job: Job, closed: Collection[str]) -> list[str]:
        """The nodes that a job gets now. Nobody powers up the slots of a pool that people drive."""
        if job.partition not in self.driven:
            closed = {*closed, *(self.by_hand - self.registered)}
        return super().free_for(job, closed)

    def jobs_at(self, machine: SimMachine) -> int:
        """How many jobs its agent sees."""
        slot = next((s for s, address in self.addrs.items() if machine.ip and address == machine.ip), "")
        return sum(job.ends_s is not None for job in self.jobs_on(slot))

    def schedule(self) -> None:
        """Give nodes to jobs, start those whose nodes are up, and note that."""
        super().schedule()
        for job in self.queue.values():
            if not job.slots:
                continue
            log = self.log[job.id]
            if job.ends_s is not None and log.ended_s != job.ends_s:
                log.ended_s = job.ends_s
                log.started_s = self.clock.t_s if log.started_s is None else log.started_s
                log.starts += 1

    def put_back(self, job: Job, begin_s: float) -> None:
        """The job waits again. What it ran so far is lost."""
        log = self.log[job.id]
        if job.ends_s is not None:
            log.nodes_s += job.count * max(0.0, self.clock.t_s - (job.ends_s - job.run_s))
            log.ended_s = None
        super().put_back(job, begin_s)

    def forget(self, job: Job) -> None:
        """It has ended."""
        if job.ends_s is not None:
            self.log[job.id].nodes_s += job.count * job.run_s
        super().forget(job)

    # -- time -----------------------------------------------------------------------------------------------------

    def next_event_s(self) -> float:
        """When something happens next; infinite where nothing is to come."""
        now_s = self.clock.t_s
        events = [self.coming[-1].at_s] if self.coming else []
        for job in self.queue.values():
            if job.ends_s is not None:
                events.append(job.ends_s)
            elif not job.slots and job.begin_s > now_s:
                events.append(job.begin_s)
        for machine in self.machines.values():
            if machine.ended_s is not None:
                events.append(machine.ended_listed_until_s)
            elif not machine.ip:
                events.append(machine.born_s + machine.boot_s)
        events += [*self.off_s.values(), *self.notices.values(), *self.edges]
        return min((at_s for at_s in events if at_s > now_s), default=math.inf)

    def move_on(self, delay_s: float) -> None:
        """Let time pass, with what the scenario has in it."""
        before_s = self.clock.t_s
        self.waits.add(self.queue.values(), before_s, delay_s)
        self.clock.t_s += delay_s
        t = self.clock.t_s
        powering = set(self.powering)
        for job in [job for job in self.queue.values() if job.ends_s is not None and t >= job.ends_s]:
            self.forget(job)
            self.job_ended = True
        for machine in list(self.machines.values()):
            if machine.ended_s is not None:
                self.rang |= before_s < machine.ended_listed_until_s <= t
                if t > machine.ended_s + FORGOTTEN_S:
                    del self.machines[machine.id]
            elif t >= machine.dies_s:
                self._end(machine, by_meshd=False)
                self.rang = True
            else:
                self.rang |= not machine.ip and t >= machine.born_s + machine.boot_s
                self._maybe_taken_back(machine, delay_s)
        while self.coming and self.coming[-1].at_s <= t:
            self._come(self.coming.pop())
        for slot in self.by_hand:
            if self.addrs.get(slot, NOWHERE) == NOWHERE:
                self.down.discard(slot)
                self.drains.pop(slot, None)
        self.schedule()
        self.rang |= not self.powering <= powering or any(before_s < edge <= t for edge in self.edges)

    def _maybe_taken_back(self, machine: SimMachine, delay_s: float) -> None:
        if not machine.offer.spot or not machine.ip or machine.id in self.notices:
            return
        trouble = self.trouble("spot_ends", machine.offer.provider, machine.offer.key)
        if trouble is not None and self.rng.random() < 1 - math.exp(-trouble.per_hour * delay_s / 3600):
            self.notices[machine.id] = machine.dies_s = self.clock.t_s + NOTICE_S
            self.taken_back += 1
            self.rang = True

    def _come(self, spec: JobSpec) -> None:
        self.log[spec.id] = JobLog(spec)
        self.queue[spec.id] = Job(
            spec.id, spec.nodes, spec.run_s, spec.at_s, partition=spec.pool, cpus=spec.cpus, gpus=spec.gpus,
            user=spec.user,
        )  # fmt: skip


class _Shapes:
    """Slurm 23.11 and later take machines of any shape."""

    shapes_fixed = False


class ClusterLife(QueueLife):
    """meshd with the user's settings: its own desired state, promises, budgets and ledger."""

    world: ClusterWorld

    def __init__(
        self, world: ClusterWorld, path: Path, live: LiveSettings, offers: Mapping[str, tuple[Offer, ...]]
    ) -> None:
        super().__init__(world, path, live, offers)
        self._told: dict[str, tuple[tuple[bool, int], float]] = {}
        self._idle_since: dict[str, float] = {}
        self._revision = -1
        clouds = world.clouds()
        seen: dict[str, Observation[tuple[Offer, ...]]] = {
            name: Fresh(found, world.clock.now()) for name, found in offers.items()
        }
        self.promises = PoolPromises(live, self.journal, world.able, lambda: seen, self, world.clock)
        self.ledger = Ledger(
            self.journal, {name: rounding_of(can) for name, can in world.able.items()}, world.clock.now
        )
        self._desired = DesiredState(
            live, self.journal, clouds, _Shapes(), self.promises, self, world.clock, self.ledger,
            may_change_devices=False,
        )  # fmt: skip

    def promise(self) -> Mapping[str, Promise]:
        """What the slots of pools hold, for the planner and for Slurm. Call it once, before the first tick."""
        self.promises.look()
        self.world.rooms = {name: (one.cpus, one.gpus) for name, one in self.promises.current.items()}
        return self.promises.current

    @property
    def current(self) -> Observation[SlurmView]:
        """What Slurm said last."""
        last = self.reconciler.last
        if last is None:
            return Fresh(self.world.show(), self.world.clock.now())
        return last.snapshot.slurm

    def desired(self) -> Desired:
        """What is desired now, as the daemon has it."""
        return self._desired()

    def listings(self) -> dict[str, Observation[tuple[Instance, ...]]]:
        """By cloud, its machines; one that is out cannot be read."""
        now = self.world.clock.now()
        listed: dict[str, list[Instance]] = {name: [] for name in self.offers}
        for instance in self.world.listing():
            listed[instance.provider].append(instance)
        return {
            name: Unavailable("the cloud does not answer", now) if self.world.is_out(name) else Fresh(tuple(found), now)
            for name, found in listed.items()
        }

    def facts(self, machine: Machine) -> NodeFacts:
        """The hardware that the offer promises."""
        offer = machine.offer
        gpus = tuple(
            GpuFact(index, offer.gpu, f"GPU-{machine.name}-{index}", offer.gpu_memory_gib * 1024, f"/dev/nvidia{index}")
            for index in range(offer.gpus)
        )
        shape = NodeShape(offer.vcpus, 1, 1, max(offer.vcpus, 1), 1, offer.memory_mib)
        return replace(FACTS, shape=shape, gpus=gpus, arch=offer.arch)

    def hear(self, m: SimMachine, record: Machine) -> None:
        """A machine's agent speaks, if it has something new to tell or has been silent for a while."""
        now_s, news = self.world.clock.t_s, (m.slurmd, self.world.jobs_at(m))
        told = self._told.get(m.id)
        if told is None or told[0] != news or now_s - told[1] >= BEAT_S:
            self._told[m.id] = (news, now_s)
            super().hear(m, record)

    def next_look_s(self) -> float:
        """When meshd looks again at the latest, after a look: it does so often only while it waits for something."""
        world, now_s, timing = self.world, self.world.clock.t_s, self.live.settings.timing
        revision, self._revision = self._revision, self.journal.revision
        if revision != self._revision or not self.executor.at_rest:
            return now_s + AGAIN_S
        machines = self.journal.machines()
        self._idle_since = {m.name: self._idle_since.get(m.name, now_s) for m in machines if self._is_idle(m)}
        waits_s = [QUIET_LOOK_S]
        for machine in machines:
            in_phase_s = (world.clock.now() - machine.phase_since).total_seconds()
            if machine.phase is Phase.READY:
                waits_s.append(self._until_given_back_s(machine))
            elif machine.phase is Phase.BOOTING:
                waits_s.append(timing.boot_timeout_s - in_phase_s)  # else it wakes meshd itself
            elif machine.phase is Phase.DRAINING:
                waits_s.append(QUIET_LOOK_S if world.jobs_on(machine.slot) else LEAVING_LOOK_S)
            elif machine.phase in {Phase.TERMINATING, Phase.LOST}:
                waits_s.append(max(timing.tick_interval_s, WAITING_LOOK_S))
            else:
                waits_s.append(timing.tick_interval_s)
        if world.powering or world.down or world.leaving:
            waits_s.append(max(timing.tick_interval_s, WAITING_LOOK_S))
        elif world.drains or any(not job.slots for job in world.queue.values()):
            now = world.clock.now()
            over_s = [(cooldown.until - now).total_seconds() for cooldown in self.journal.cooldowns(now).values()]
            waits_s.append(min(FULL_LOOK_S, *over_s, FULL_LOOK_S) + timing.tick_interval_s / 2)
        return now_s + max(AGAIN_S, min(waits_s))

    def sees_end_s(self) -> float:
        """When meshd sees that a job has just ended: it reads Slurm at its own pace."""
        leaving = any(machine.phase is Phase.DRAINING for machine in self.journal.machines())
        poll_s = self.live.settings.slurm.poll_interval_s
        return self.world.clock.t_s + min(poll_s, LEAVING_LOOK_S if leaving else poll_s) / 2

    def _is_idle(self, machine: Machine) -> bool:
        return machine.phase is Phase.READY and not self.world.jobs_on(machine.slot)

    def _until_given_back_s(self, machine: Machine) -> float:
        since_s = self._idle_since.get(machine.name)
        if since_s is None:
            return QUIET_LOOK_S
        settings = self.live.settings
        pool = settings.pools[machine.pool]
        timeout_s = pool.idle_timeout_s
        if timeout_s is None:
            if not (settings.from_queue(pool) or machine.by_queue):
                return QUIET_LOOK_S
            timeout_s = BY_QUEUE_IDLE_S
        left_s = since_s + timeout_s - self.world.clock.t_s
        # Later it is kept for another reason: what it costs is paid, or the pool wants it.
        return left_s + settings.timing.tick_interval_s / 2 if left_s > 0 else IDLE_LOOK_S


WAITING_LOOK_S = 15.0
IDLE_LOOK_S = 30.0
FULL_LOOK_S = 60.0
"""Jobs wait, and all slots of their pool have others or are closed, and no cooldown ends before."""
LEAVING_LOOK_S = 1.0
QUIET_LOOK_S = 600.0
