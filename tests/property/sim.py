"""A world in memory around the real planner, executor and journal: clouds that lie, machines that die, kill -9."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, TypeVar

from meshd.api.node_schema import HeartbeatIn, PathIn, PathsIn
from meshd.config import TimingSettings
from meshd.daemon.machine_store import MachineStore
from meshd.daemon.machines.create_calls import UserData
from meshd.daemon.machines.wiring import build as build_machines
from meshd.daemon.nodes.admission import accept_join
from meshd.daemon.observe.agent_reports import NodeReports
from meshd.daemon.observe.loop_lag import LoopLag
from meshd.errors import JoinRefused, NoCapacity, NotFound, SlurmError, Transient, Uncertain
from meshd.model.desired import Desired, Policy, Pool, Target
from meshd.model.freeze import Freeze
from meshd.model.hardware import NodeFacts, NodeShape
from meshd.model.machine import IN_SLURM, FailureCause, Machine, Phase, Removal, UnfitReason
from meshd.model.observed import Fresh, SlurmJob, SlurmNode, SlurmView, Snapshot, TailnetPeer, TailnetView, Unavailable
from meshd.model.path import PathKind
from meshd.model.plan import Move
from meshd.plan.fitness import unfit
from meshd.plan.plan_input import ClusterView
from meshd.provider_api import (
    GangRequest,
    Instance,
    InstanceId,
    InstanceState,
    LaunchRequest,
    Offer,
    ProviderCapabilities,
    ProviderName,
)
from meshd.slurm.job_signal import JobSignal
from meshd.store.freezes import Freezes
from meshd.store.journal import Journal
from tests.clocks import SimClock
from tests.live import live_settings

T = TypeVar("T")
START = datetime(2026, 1, 1, tzinfo=UTC)
CLOUD = ProviderName("cloud")
OFFERS = tuple(
    Offer(CLOUD, "r1", zone, "gpu.1", "h100-sxm", 1, 80, 8, 65536, price)
    for zone, price in (("r1a", 2.0), ("r1b", 2.5))
)
MIXED_OFFERS = tuple(
    Offer(CLOUD, zone[:2], zone, f"gpu.{gpus}", "h100-sxm", gpus, 80, 8, 65536, price)
    for zone, gpus, price in (("r1a", 1, 2.0), ("r1b", 1, 2.5), ("r1a", 2, 3.5), ("r2a", 1, 1.9), ("r2a", 2, 4.5))
)
"""Two places, two shapes."""

FACTS = NodeFacts(NodeShape(8, 1, 1, 8, 1, 65536), (), "24.11.5", "1.102.5", "0.1.0", "debian 13", "x86_64", 0.0)
SMALL = Pool("h100", "h100", 1, 6, ("cloud",))
LAG_MAX_S = 50.0
"""A listing may be so old."""
LAUNCH_TIMEOUT_S = 30.0
"""How long meshd waits for the answer to a create call."""
LEAP = timedelta(hours=1)
ROUND_MAX_S = 25.0
"""The longest time that passes between two ticks."""
COOLDOWN_MAX = timedelta(minutes=30)
"""More than anything here cools down for."""
EFFECT_MAX_S = 25.0
"""How long after meshd gave up a create call it may still take effect."""


class Crash(BaseException):
    """kill -9 of the daemon, at this very point."""


class Violation(AssertionError):
    """meshd broke a promise. Kept in a list, since a task's exception is only logged."""

    seen: ClassVar[list[str]] = []

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.seen.append(text)


class Answer(StrEnum):
    """What meshd is told of a create call."""

    MADE = "made"
    SOLD_OUT = "sold out"
    BUSY = "busy"
    CUT = "cut"
    KILLED = "kill -9 before it comes"


class Wrong(StrEnum):
    """What is wrong with the answer to a gang's call, however often it is made."""

    TOO_FEW = "one machine is not made"
    PART_REFUSED = "half are made, and it is refused then"
    TWICE = "it shows the first machine in the place of the last, too"
    OTHERS = "it shows other machines"


@dataclass(frozen=True)
class Called:
    """What becomes of a create call.

    Attributes:
        answered_after_s: then the answer comes; from LAUNCH_TIMEOUT_S on meshd has given up by then.
        made_after_s: then there is a machine; None for never.
        lag_s: how long after that it is listed.
    """

    answer: Answer
    made_after_s: float | None = None
    answered_after_s: float = 0.0
    lag_s: float = 0.0


@dataclass
class SimMachine:
    """A machine of the cloud; until `born_s` it is a create call that is yet to have its effect."""

    id: str
    token: str
    offer: Offer
    born_s: float
    lag_s: float
    boots: bool
    boot_s: float
    dies_s: float
    ended_s: float | None = None
    ended_listed_until_s: float = 0.0
    slurmd: bool = False
    ip: str = ""
    said: InstanceState = InstanceState.RUNNING
    said_until_s: float = 0.0
    broken: bool = False  # what ails it comes back whatever is done
    relayed: bool = False  # its path to the head


FALSE_WORDS = (InstanceState.FAILED, InstanceState.STOPPED, InstanceState.PREEMPTED, InstanceState.GONE)


@dataclass(frozen=True)
class Ill:
    """How Slurm holds a node that is not fit."""

    states: frozenset[str]
    reason: str
    by: str = "slurm"


ILLS = (
    Ill(frozenset({"IDLE", "DRAIN"}), "Kill task failed"),
    Ill(frozenset({"IDLE", "DRAIN", "INVALID_REG"}), "gres/gpu count reported lower than configured (0 < 1)"),
    Ill(frozenset({"DOWN"}), "Node unexpectedly rebooted"),
    Ill(frozenset({"IDLE", "DRAIN"}), "Prolog error", "root"),
)


@dataclass
class World:
    """Everything outside meshd."""

    rng: random.Random
    clock: SimClock
    capabilities: ProviderCapabilities = field(default_factory=ProviderCapabilities)
    keeps_its_word: bool = True  # else two machines of one name are its own fault
    faults: bool = True
    fails: float = 0.1  # the share of machines that never boot
    sickens: float = 0.0  # how often Slurm finds fault with a node
    relays: float = 0.0  # how often a path is relayed
    fates: random.Random = field(default_factory=lambda: random.Random(0))  # which ones: no other history changes by it
    leaps: float = 0.0  # how often somebody sets the head's clock
    hands: random.Random = field(default_factory=lambda: random.Random(0))  # which way
    machines: dict[str, SimMachine] = field(default_factory=dict)
    nodes: dict[str, SlurmNode] = field(default_factory=dict)
    jobs: dict[str, tuple[str, float]] = field(default_factory=dict)  # slot -> (job id, ends at)
    ill: dict[str, Ill] = field(default_factory=dict)  # machine id -> how Slurm holds its node
    published: dict[str, str] = field(default_factory=dict)
    slurm_down: bool = False
    tailnet_down_until_s: float = 0.0
    crashed: bool = False
    journal_lost: bool = False
    frozen: bool = False  # meshd is: it rents and ends nothing
    sold_out: set[str] = field(default_factory=set)  # offers that have nothing until this round is over
    creates: int = 0
    next_ip: int = 1
    lies: random.Random = field(default_factory=lambda: random.Random(0))
    wrong: float = 0.0  # how often the answer to a gang's call is wrong
    answers: random.Random = field(default_factory=lambda: random.Random(0))  # which ones
    gangs: dict[str, Wrong | None] = field(default_factory=dict)  # by the gang's id, what is wrong with its answer

    def chance(self, p: float) -> bool:
        return self.faults and self.rng.random() < p

    def maybe_crash(self, p: float = 0.02) -> None:
        if self.chance(p):
            self.crashed = True
            raise Crash

    # -- the cloud (Provider) -------------------------------------------------------------------------------------

    name = CLOUD

    async def launch(self, request: LaunchRequest) -> Instance:
        (instance,) = await self._rent(request.offer, (request.token,))
        return instance

    async def launch_gang(self, request: GangRequest) -> list[Instance]:
        wrong, tokens = self._wrong(request.id), request.tokens
        if wrong is Wrong.TOO_FEW:
            tokens = tokens[:-1]
        elif wrong is Wrong.PART_REFUSED:
            tokens = tokens[: len(tokens) // 2]
        others = [self._instance(machine) for machine in self.machines.values()]
        made = await self._rent(request.offer, tokens)
        if wrong is Wrong.PART_REFUSED:
            raise NoCapacity("sold out, after half of it was made")
        if wrong is Wrong.TWICE:
            return [*made[:-1], replace(made[-1], id=made[0].id)]
        return others[-len(made) :] if wrong is Wrong.OTHERS and others else made

    def _wrong(self, gang: str) -> Wrong | None:
        if gang not in self.gangs:
            lies = self.faults and self.answers.random() < self.wrong
            self.gangs[gang] = self.answers.choice(list(Wrong)) if lies else None
        return self.gangs[gang]

    async def _rent(self, offer: Offer, tokens: tuple[str, ...]) -> list[Instance]:
        """All of them, or none."""
        if self.frozen:
            raise Violation(f"{tokens} are rented while meshd is frozen")
        called = self.fate(offer)
        lags_s = [called.lag_s * place / len(tokens) for place in range(len(tokens), 0, -1)]  # shown one by one
        made = [
            self._make(token, offer, replace(called, lag_s=lag_s))
            for token, lag_s in zip(tokens, lags_s, strict=True)
            if called.made_after_s is not None
        ]
        began_s = self.clock.t_s
        while self.clock.t_s < began_s + min(called.answered_after_s, LAUNCH_TIMEOUT_S):  # noqa: ASYNC110
            await asyncio.sleep(0)  # whoever moves the clock knows nothing of this call
        if called.answer is Answer.KILLED:
            self.crashed = True
            raise Crash
        if called.answered_after_s >= LAUNCH_TIMEOUT_S or called.answer is Answer.CUT:
            raise Uncertain("cut, or no answer in time")
        if called.answer is Answer.SOLD_OUT:
            raise NoCapacity("sold out")
        if called.answer is Answer.BUSY or not made:
            raise Transient("try again")
        return [self._instance(one) for one in made]

    def fate(self, offer: Offer) -> Called:
        """What becomes of this create call, by chance."""
        if self.chance(0.02):
            return Called(Answer.KILLED)
        if self.chance(0.1) or offer.key in self.sold_out:
            return Called(Answer.SOLD_OUT)
        if self.chance(0.05):
            return Called(Answer.BUSY)
        if self.chance(0.05):
            return Called(Answer.CUT)
        lag_s = self.rng.uniform(0, LAG_MAX_S) if self.faults else 0.0
        late_s = self.rng.uniform(0, EFFECT_MAX_S) if self.chance(0.1) else 0.0
        if self.chance(0.02):
            return Called(Answer.KILLED, late_s, lag_s=lag_s)
        if late_s and self.chance(0.5):
            return Called(Answer.MADE, LAUNCH_TIMEOUT_S + late_s, LAUNCH_TIMEOUT_S, lag_s)
        return Called(Answer.CUT if late_s or self.chance(0.1) else Answer.MADE, late_s, lag_s=lag_s)

    def _make(self, token: str, offer: Offer, called: Called) -> SimMachine:
        twin = next((m for m in self.machines.values() if m.token == token), None)
        if twin is not None and self.capabilities.idempotent_launch:
            twin.born_s = min(twin.born_s, self.clock.t_s)
            return twin
        if twin is not None and twin.ended_s is None and self.keeps_its_word:
            raise Violation(f"{token} was rented twice")
        self.creates += 1
        born_s = self.clock.t_s + (called.made_after_s or 0.0)
        machine = SimMachine(
            id=f"i-{self.creates}", token=token, offer=offer, born_s=born_s, lag_s=called.lag_s,
            boots=not self.chance(self.fails), boot_s=self.rng.uniform(5, 90),
            dies_s=born_s + (self.rng.uniform(60, 600) if self.chance(0.1) else 1e9),
        )  # fmt: skip
        self.machines[machine.id] = machine
        return machine

    def _instance(self, m: SimMachine) -> Instance:
        state = InstanceState.RUNNING if m.ended_s is None else InstanceState.GONE
        if m.ended_s is None and self.clock.t_s < m.said_until_s and self.faults:
            state = m.said
        return Instance(
            CLOUD, InstanceId(m.id), m.token, state, m.offer.region, m.offer.instance_type,
            launched_at=START + timedelta(seconds=m.born_s),
        )  # fmt: skip

    async def get(self, instance: Instance) -> Instance:
        self.maybe_crash()
        if self.chance(0.1):
            raise Transient("busy")
        machine = self.machines.get(instance.id)
        if machine is None or self.clock.t_s < machine.born_s:
            raise NotFound("no such machine")
        return self._instance(machine)

    async def terminate(self, instance: Instance) -> None:
        if self.frozen:
            raise Violation(f"{instance.token} is ended while meshd is frozen")
        self.maybe_crash()
        machine = self.machines.get(instance.id)
        if machine is None:
            raise NotFound("no such machine")
        if self.chance(0.1):
            raise Transient("busy")
        if machine.ended_s is None:
            self._end(machine, by_meshd=True)
        self.maybe_crash()

    def _end(self, machine: SimMachine, *, by_meshd: bool) -> None:
        for slot, node in self.nodes.items():
            if node.node_addr == machine.ip and machine.slurmd and slot in self.jobs:
                if by_meshd:
                    raise Violation(f"{machine.token} was ended under job {self.jobs[slot][0]}")
                del self.jobs[slot]
        machine.ended_s = self.clock.t_s
        machine.ended_listed_until_s = self.clock.t_s + self.rng.uniform(0, 100)
        machine.slurmd = False

    def listing(self) -> tuple[Instance, ...]:
        t = self.clock.t_s
        return tuple(
            self._instance(m)
            for m in self.machines.values()
            if t >= m.born_s + m.lag_s and (m.ended_s is None or t < m.ended_listed_until_s)
        )

    # -- Slurm (SlurmControl) -------------------------------------------------------------------------------------

    async def view(self) -> SlurmView:
        if self.slurm_down:
            raise SlurmError("slurmctld does not answer")
        self.start_jobs(0.1)  # the world goes on between a snapshot and the step that it led to
        jobs = tuple(SlurmJob(job, "u", "h100", "RUNNING", (slot,)) for slot, (job, _) in self.jobs.items())
        return SlurmView("24.11.5", dict(self.nodes), jobs)

    async def node_settings(self) -> dict[str, str]:
        return {}

    async def drain(self, slot: str, reason: str) -> None:
        self.maybe_crash()
        node = self.nodes[slot]
        self.nodes[slot] = replace(node, states=node.states | {"DRAIN"}, reason=reason)

    async def resume(self, slot: str) -> None:
        node = self.nodes[slot]
        self.nodes[slot] = replace(node, states=node.states - {"DRAIN"}, reason="")

    async def set_down(self, slot: str, reason: str) -> None:
        self.maybe_crash()
        if slot in self.jobs:
            raise Violation(f"job {self.jobs[slot][0]} was killed: {slot} set down")
        node = self.nodes[slot]
        self.nodes[slot] = replace(node, states=frozenset({"DOWN"}) | (node.states & {"DRAIN"}), reason=reason)

    async def own_signal(self, job: str) -> JobSignal | None:
        raise Violation(f"job {job} is to get a signal, and no cloud takes its machine back")

    async def send_signal(self, job: str, signal: JobSignal) -> None:
        raise Violation(f"job {job} got a signal, and no cloud takes its machine back")

    async def requeue(self, job: str) -> None:
        raise Violation(f"job {job} was requeued, and no cloud takes its machine back")

    # -- the agents -----------------------------------------------------------------------------------------------

    async def command(self, machine: str, verb: str, args: object, timeout_s: float) -> str:
        self.maybe_crash()
        if self.chance(0.05):
            return "no answer"
        found = next((m for m in self.machines.values() if m.token == machine and m.ended_s is None), None)
        if found is None:
            return "no answer"
        slot = next((s for s, n in self.nodes.items() if n.node_addr == found.ip), "")
        self.start_jobs(0.2)
        if verb == "leave" and slot in self.jobs:
            raise Violation(f"slurmd stopped under job {self.jobs[slot][0]}")
        if verb == "restart_slurmd" and not found.broken:
            self.ill.pop(found.id, None)
        found.slurmd = verb in {"start_slurmd", "restart_slurmd"}
        self.maybe_crash()
        return ""

    def hasten(self, machine: str) -> bool:
        return self.lies.random() < 0.8

    async def user_data(self, machine: Machine) -> UserData:
        return UserData("#!/bin/sh\n", "a" * 64)

    def own_key(self, provider: str) -> bool:
        return False

    async def delete_device(self, device_id: str) -> None:
        return None

    async def disable_key_expiry(self, device_id: str) -> None:
        return None

    def start_jobs(self, p: float) -> None:
        """Slurm starts jobs on nodes that are open, at any moment."""
        for slot, node in self.nodes.items():
            behind = any(m.slurmd and m.ip == node.node_addr and m.ended_s is None for m in self.machines.values())
            closed = node.states & {"DRAIN", "DOWN", "INVALID_REG"} and self.is_ill(node)
            if behind and not closed and slot not in self.jobs and "DRAIN" not in node.states and self.rng.random() < p:
                self.jobs[slot] = (str(self.rng.randrange(10**6)), self.clock.t_s + self.rng.uniform(5, 300))
                self.nodes[slot] = replace(node, states=frozenset({"ALLOCATED"}))

    def is_ill(self, node: SlurmNode) -> bool:
        """Slurm holds the machine behind this node for a reason of its own."""
        return any(m.id in self.ill and m.ip == node.node_addr for m in self.machines.values())

    def sicken(self) -> None:
        """Slurm finds fault with nodes, also with some that are at work."""
        for machine in self.machines.values() if self.faults else ():
            if not machine.slurmd or machine.id in self.ill or self.fates.random() >= self.sickens:
                continue
            at_work = any(node.node_addr == machine.ip and slot in self.jobs for slot, node in self.nodes.items())
            ill = self.fates.choice(ILLS)
            if not at_work or "DOWN" not in ill.states:
                machine.broken = self.fates.random() < 0.7
                self.ill[machine.id] = ill

    # -- time -----------------------------------------------------------------------------------------------------

    def set_clock(self) -> None:
        """Somebody sets the head's clock: an hour ahead of the world's, an hour behind, or right."""
        if self.faults and self.hands.random() < self.leaps:
            self.clock.shift = self.hands.choice((-LEAP, timedelta(), LEAP))

    def move_on(self, delay_s: float) -> None:
        self.clock.t_s += delay_s
        t = self.clock.t_s
        self.set_clock()
        for machine in self.machines.values():
            if machine.ended_s is None and t >= machine.dies_s:
                self._end(machine, by_meshd=False)
            if machine.slurmd and self.faults and self.lies.random() < 0.02:
                machine.said, machine.said_until_s = self.lies.choice(FALSE_WORDS), t + self.lies.uniform(5, 300)
        for slot, (_, ends_s) in list(self.jobs.items()):
            if t >= ends_s:
                del self.jobs[slot]
        for slot, node in list(self.nodes.items()):
            behind = next(
                (m for m in self.machines.values() if m.ip and m.ip == node.node_addr and m.ended_s is None), None
            )
            base = "DOWN"
            if behind is not None and behind.slurmd:
                base = "ALLOCATED" if slot in self.jobs else "IDLE"
            ours = node.reason.startswith("meshd:") and "DRAIN" in node.states
            ill = self.ill.get(behind.id) if behind is not None and behind.slurmd and not ours else None
            if ill is not None:
                states = (ill.states - {"IDLE"}) | ({base} if "DOWN" not in ill.states else set())
                self.nodes[slot] = replace(
                    node, states=frozenset(states), reason=ill.reason, reason_by=ill.by, reason_at=self.clock.now()
                )
                continue
            self.nodes[slot] = replace(node, states=frozenset({base}) | (node.states & {"DRAIN"}))
        self.sicken()
        self.start_jobs(0.4)
        self.slurm_down = self.chance(0.1)
        if self.chance(0.03):
            self.tailnet_down_until_s = t + self.rng.uniform(10, 400)


class Daemon:
    """One life of meshd, from start to kill -9."""

    def __init__(
        self, world: World, path: Path, pool: Pool, policy: Policy, offers: tuple[Offer, ...] = OFFERS,
        timing: TimingSettings | None = None,
    ) -> None:  # fmt: skip
        self.world = world
        self.offers = offers
        self.fresh_since: dict[str, datetime] = {}
        self.old_slurm: Fresh[SlurmView] | None = None
        self.journal = Journal(path)
        self.machine_store = MachineStore(self.journal, world.clock, lambda: None)
        self.reports = NodeReports()
        self.freezes = Freezes(self.journal, world.clock.now())
        world.frozen = self.freezes.current is not None
        self.lag = LoopLag(world.clock)
        self.in_phase_s: dict[str, tuple[Phase, float]] = {}
        timing = timing or TimingSettings(
            no_capacity_cooldown_s=30, no_capacity_cooldown_max_s=120, breaker_cooldown_s=20, breaker_failures=2,
            launch_timeout_s=LAUNCH_TIMEOUT_S,
        )  # fmt: skip
        live = live_settings(timing=timing)
        repeatable = frozenset({"cloud"} if world.capabilities.idempotent_launch else ())
        gang_max = {"cloud": most} if (most := world.capabilities.gang_max) else {}
        policy = replace(
            policy, launch_timeout_s=LAUNCH_TIMEOUT_S, idempotent_launch=repeatable, gang_max=gang_max
        )  # fmt: skip
        self.pool, self.policy = pool, policy
        machines = build_machines(
            live, self.machine_store, providers={"cloud": world}, slurm=world, agents=world, devices=world,  # type: ignore[dict-item]
            user_data=world, desired=self.desired, snapshot=self.snapshot, list_again=lambda _: None,
            reports=self.reports, freeze=lambda: self.freezes.current,
        )  # fmt: skip
        self.executor, self.reconciler = machines.executor, machines.controller

    def desired(self) -> Desired:
        now = self.world.clock.now()
        return Desired(
            "lab", {self.pool.name: self.pool}, self.journal.targets(), self.policy, self.journal.cooldowns(now),
            self.journal.expired_cooldowns(now), freeze=self.freezes.current,
        )  # fmt: skip

    def freeze(self) -> None:
        """Somebody freezes meshd."""
        self.freezes.freeze(Freeze(self.world.clock.now(), "root", "the cloud lies"))
        self.world.frozen = True

    def thaw(self) -> None:
        """Somebody ends that."""
        self.freezes.thaw("root", self.world.clock.now())
        self.world.frozen = False

    def freeze_or_thaw(self, does: bool) -> None:
        """Whether somebody does one of them now."""
        if does:
            (self.thaw if self.world.frozen else self.freeze)()

    def snapshot(self) -> Snapshot:
        world, now = self.world, self.world.clock.now()
        gone = Unavailable("fault", now)
        peers = {
            m.id: TailnetPeer(m.id, m.token, m.ip, online=m.ended_s is None) for m in world.machines.values() if m.ip
        }
        slurm = SlurmView(
            "24.11.5", dict(world.nodes),
            tuple(SlurmJob(job, "u", "h100", "RUNNING", (slot,)) for slot, (job, _) in world.jobs.items()),
        )  # fmt: skip
        tailnet_down = world.clock.t_s < world.tailnet_down_until_s
        seen: Fresh[SlurmView] | Unavailable = self.fresh("slurm", slurm, down=world.slurm_down)
        if world.chance(0.15) and self.old_slurm is not None:
            seen = self.old_slurm  # its reader is slow, or stuck
        elif isinstance(seen, Fresh):
            self.old_slurm = seen
        return Snapshot(
            instances={"cloud": gone if world.chance(0.1) else Fresh(world.listing(), now)},
            offers={"cloud": gone if world.chance(0.1) else Fresh(self.offers, now)},
            tailnet=self.lag.heard(
                self.fresh("tailnet", TailnetView("100.64.0.1", "head", True, (), peers), down=tailnet_down)
            ),
            slurm=seen,
            node_addrs=dict(world.published),
            reports=dict(self.reports.current),
        )

    def fresh(self, name: str, value: T, *, down: bool) -> Fresh[T] | Unavailable:
        """The source's word, with since when it speaks without a break."""
        now = self.world.clock.now()
        if down:
            self.fresh_since.pop(name, None)
            return Unavailable("down", now)
        return Fresh(value, now, self.fresh_since.setdefault(name, now))

    def check_patience(self) -> None:
        """No machine is given up for a deadline that is not over, and nothing cools down for long, by any clock."""
        now_s, tick = self.world.clock.t_s, self.reconciler.last
        live = {m.name: m for m in self.journal.machines()}
        self.in_phase_s = {
            name: (m.phase, began_s if phase is m.phase else now_s)
            for name, m in live.items()
            for phase, began_s in (self.in_phase_s.get(name, (m.phase, now_s)),)
        }
        least_s = {Phase.BOOTING: self.policy.boot_timeout_s, Phase.JOINING: self.policy.join_timeout_s}
        for step in tick.plan.steps if tick is not None and self.world.leaps else ():
            phase, began_s = self.in_phase_s.get(step.subject, (Phase.GONE, 0.0))
            late = isinstance(step, Move) and step.cause in {FailureCause.TAILNET, FailureCause.AGENT}
            if late and phase in least_s and now_s - began_s < least_s[phase] - ROUND_MAX_S:
                raise Violation(f"{step.subject} is given up after {now_s - began_s:.0f} s: {step.reason}")
        now = self.world.clock.now()
        for key, cooldown in self.journal.cooldowns(now).items():
            if (left := cooldown.until - now) > COOLDOWN_MAX:
                raise Violation(f"{key} cools down for {left}")

    def people_act(self) -> None:
        """Somebody removes a machine, whatever it is doing, or opens a node that is drained."""
        for slot, node in self.world.nodes.items():
            if "DRAIN" in node.states and self.world.chance(0.05):
                self.world.nodes[slot] = replace(node, states=node.states - {"DRAIN"}, reason="")
        machines = [m for m in self.journal.machines() if m.phase not in {Phase.TERMINATING, Phase.LOST}]
        if machines and self.world.chance(0.05):
            self.machine_store.change(
                self.world.rng.choice(machines).name, "remove", "said root", removal=Removal.BY_USER
            )

    def agents_act(self) -> None:
        """What machines do by themselves: appear on the tailnet, join, prove munge, speak."""
        world = self.world
        for m in world.machines.values():
            if m.ended_s is not None or not m.boots or world.clock.t_s < m.born_s + m.boot_s:
                continue
            if not m.ip:
                m.ip = f"100.64.{world.next_ip // 250}.{world.next_ip % 250 + 1}"
                world.next_ip += 1
            record = self.journal.machine(m.token)
            if world.clock.t_s < world.tailnet_down_until_s:
                continue
            if record is not None and record.facts is not None and record.phase in IN_SLURM:
                self.journal.note(replace(record, heartbeat_at=world.clock.now()))
                jobs = sum(world.nodes[slot].node_addr == m.ip for slot in world.jobs)
                if world.relays:
                    m.relayed = world.faults and world.fates.random() < world.relays
                head = PathIn(kind=PathKind.DERP if m.relayed else PathKind.DIRECT, rtt_s=0.001, age_s=1.0)
                paths = PathsIn(head=head)
                beat = HeartbeatIn(slurmd_alive=m.slurmd, munged_alive=True, jobs=jobs, paths=paths)
                self.reports.heard(record, beat, world.clock.now())
            if record is None or record.facts is not None or world.chance(0.2):
                continue
            try:
                accept_join(self.machine_store, record, TailnetPeer(m.id, m.token, m.ip, online=True), FACTS)
                self.machine_store.change(record.name, "munge", "proved", munge_ok=True)
            except JoinRefused:
                continue
        if not world.chance(0.3):
            self.publish()

    def publish(self) -> None:
        """What the publisher does: the joined lines into Slurm."""
        world = self.world
        lines = {
            x.slot: x.tailnet_ip
            for x in self.journal.machines()
            if x.phase in IN_SLURM and x.tailnet_ip and not x.left_slurm
        }
        for slot in {*lines, *world.published}:
            node = world.nodes.get(slot, SlurmNode(slot, "192.0.2.1", frozenset({"DOWN"})))
            if slot not in lines and (slot in world.jobs or node.states == {"IDLE"}):
                return  # the publisher refuses to free a slot that is at work or open to jobs
            if slot in lines and world.published.get(slot, lines[slot]) != lines[slot] and slot in world.jobs:
                return  # nor does it give a slot at work to another machine
            world.nodes[slot] = replace(node, node_addr=lines.get(slot, "192.0.2.1"))
        world.published = lines

    async def settle(self) -> None:
        """Let every step in flight end, or the daemon die."""
        for _ in range(200):
            await asyncio.sleep(0)
            if self.world.crashed or not self.executor._tasks:
                return

    async def kill(self) -> None:
        """kill -9: nothing is written any more."""
        self.executor._launches.close()
        tasks = list(self.executor._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.journal.close()
        self.world.crashed = False


@dataclass(frozen=True)
class Setting:
    """What a history is about.

    Attributes:
        sells_out: now and then all offers of a place have nothing for a while.
        fails: the share of machines that never boot.
        restless: how often somebody sets another target.
        idempotent: a create call that is repeated makes no second machine.
        sickens: how often Slurm finds fault with a node.
        relays: how often a path is relayed, in a pool that demands direct ones; 0: any path will do.
        gang_max: the most machines of one create call; 0: each has its own.
        leaps: how often somebody sets the head's clock.
    """

    pool: Pool = SMALL
    offers: tuple[Offer, ...] = OFFERS
    spread: bool = True
    sells_out: bool = False
    fails: float = 0.1
    restless: float = 0.15
    boot_timeout_s: float = 200
    idempotent: bool = False
    sickens: float = 0.0
    relays: float = 0.0
    gang_max: int = 0
    leaps: float = 0.0


async def live_through(seed: int, directory: Path, rounds: int = 60, setting: Setting | None = None) -> World:
    """One history: chaos, then none; every promise is checked on the way and at the end."""
    Violation.seen.clear()
    rng, places = random.Random(seed), random.Random(-seed)
    about = setting or Setting()
    world = World(
        rng, SimClock(START), ProviderCapabilities(idempotent_launch=about.idempotent, gang_max=about.gang_max),
        fails=about.fails, lies=random.Random(-1 - seed),
    )  # fmt: skip
    world.sickens, world.relays, world.fates = about.sickens, about.relays, random.Random(-2 - seed)
    world.leaps, world.hands = about.leaps, random.Random(-4 - seed)
    policy = Policy(
        boot_timeout_s=about.boot_timeout_s, join_timeout_s=200, configure_timeout_s=150, test_timeout_s=150,
        listing_lag_s=LAG_MAX_S + 5, launch_settle_s=EFFECT_MAX_S, orphan_grace_s=120, replace_unfit_after_s=60,
        replace_cooldown_s=20, direct_pools=frozenset({"h100"} if about.relays else ()),
    )  # fmt: skip
    path = directory / f"{seed}.db"
    daemon = Daemon(world, path, about.pool, policy, about.offers)
    target = 0
    for round_ in range(rounds + 200):
        if round_ == rounds:
            world.faults = False
            target = rng.randrange(0, 7)
            daemon.journal.set_target(Target("h100", target, spread=about.spread), "no more chaos", world.clock.now())
        elif round_ < rounds and rng.random() < about.restless:
            another = Target("h100", rng.randrange(0, 7), spread=about.spread)
            daemon.journal.set_target(another, "chaos", world.clock.now())
        world.move_on(rng.uniform(1, ROUND_MAX_S))
        if about.sells_out and places.random() < 0.3:
            place = places.choice([o.region for o in about.offers])
            world.sold_out = {o.key for o in about.offers if o.region == place} if world.faults else set()
        daemon.agents_act()
        daemon.people_act()
        daemon.reconciler.tick()
        daemon.check_patience()
        await daemon.settle()
        assert not Violation.seen, (seed, round_, Violation.seen)
        if round_ > rounds + 30 and _converged(daemon, world, target) and not _ailing(daemon):
            break
        if world.crashed or world.chance(0.05):
            await daemon.kill()
            if world.chance(0.1):
                world.journal_lost = True
                for file in directory.glob(f"{path.name}*"):
                    file.unlink()
            daemon = Daemon(world, path, about.pool, policy, about.offers)
    alive = [m for m in world.machines.values() if m.ended_s is None]
    known = {m.instance_id: m for m in daemon.journal.machines()}
    ailing = _ailing(daemon)
    converged, warnings = _converged(daemon, world, target), daemon.reconciler.last.plan.warnings  # type: ignore[union-attr]
    await daemon.kill()
    assert {m.id for m in alive} <= set(known), "a machine runs that the journal does not know"
    assert not about.sickens or not ailing, (seed, target, ailing, world.ill)
    assert converged, (seed, target, [(m.name, m.phase, m.reason) for m in known.values()], alive, warnings)
    return world


def _ailing(daemon: Daemon) -> list[tuple[str, UnfitReason]]:
    """The nodes that are not fit, and that nobody holds on purpose."""
    cluster_view = ClusterView.of(daemon.snapshot(), daemon.policy, daemon.world.clock.now())
    found = [(m, unfit(m, cluster_view)) for m in daemon.journal.machines() if m.phase is Phase.READY]
    return [(m.slot, verdict.why) for m, verdict in found if verdict is not None and not verdict.deliberate]


def _converged(daemon: Daemon, world: World, target: int) -> bool:
    """All that is there is READY and wanted, and it is enough: with one machine less it would not be."""
    machines = daemon.journal.machines()
    alive = {m.id for m in world.machines.values() if m.ended_s is None}
    have, least = sum(m.gpus for m in machines), min((m.gpus for m in machines), default=0)
    at_rest = all(m.phase is Phase.READY for m in machines) and alive == {m.instance_id for m in machines}
    return at_rest and have >= target and (not machines or have - least < target)
