"""Everything outside meshd, in memory: a cloud that may lie, agents, and Slurm with nodes that are driven by hand."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from meshd.daemon.machines.create_calls import UserData
from meshd.errors import NoCapacity, NotFound, SlurmError, Transient, Uncertain
from meshd.model.machine import Machine
from meshd.model.observed import SlurmJob, SlurmNode, SlurmView
from meshd.provider_api import (
    GangRequest,
    Instance,
    InstanceId,
    InstanceState,
    LaunchRequest,
    Offer,
    Provider,
    ProviderCapabilities,
    ProviderName,
)
from meshd.simulate.clock import SimClock
from meshd.simulate.faults import Answer, Called, Crash, Violation, Wrong
from meshd.slurm.job_signal import JobSignal

CLOUD = ProviderName("cloud")
"""The cloud where there is only one."""
LAG_MAX_S = 50.0
"""A listing may be so old."""
LAUNCH_TIMEOUT_S = 30.0
"""How long meshd waits for the answer to a create call."""
EFFECT_MAX_S = 25.0
"""How long after meshd gave up a create call it may still take effect."""
LEAP = timedelta(hours=1)
"""By how much somebody sets the head's clock."""


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
        """Whether a fault of this likelihood happens now."""
        return self.faults and self.rng.random() < p

    def maybe_crash(self, p: float = 0.02) -> None:
        """Kill meshd here, by chance."""
        if self.chance(p):
            self.crashed = True
            raise Crash

    # -- the cloud (Provider) -------------------------------------------------------------------------------------

    def clouds(self) -> dict[str, Provider]:
        """All clouds, by name."""
        return {CLOUD: Cloud(self, CLOUD, self.capabilities)}

    async def launch(self, request: LaunchRequest) -> Instance:
        """Rent one machine."""
        (instance,) = await self._rent(request.offer, (request.token,))
        return instance

    async def launch_gang(self, request: GangRequest) -> list[Instance]:
        """Rent several with one call; the answer may be wrong."""
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
        if twin is not None and self.repeats(offer.provider):
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

    def repeats(self, provider: str) -> bool:
        """Whether a create call of this cloud that is repeated makes no second machine."""
        return self.capabilities.idempotent_launch

    def _instance(self, m: SimMachine) -> Instance:
        state = InstanceState.RUNNING if m.ended_s is None else InstanceState.GONE
        if m.ended_s is None and self.clock.t_s < m.said_until_s and self.faults:
            state = m.said
        return Instance(
            m.offer.provider, InstanceId(m.id), m.token, state, m.offer.region, m.offer.instance_type,
            launched_at=self.clock.start + timedelta(seconds=m.born_s),
        )  # fmt: skip

    async def get(self, instance: Instance) -> Instance:
        """The machine as its cloud shows it."""
        self.maybe_crash()
        if self.chance(0.1):
            raise Transient("busy")
        machine = self.machines.get(instance.id)
        if machine is None or self.clock.t_s < machine.born_s:
            raise NotFound("no such machine")
        return self._instance(machine)

    async def terminate(self, instance: Instance) -> None:
        """End a machine. Raises Violation for one that has a job, and while meshd is frozen."""
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
        """All machines that are listed yet."""
        t = self.clock.t_s
        return tuple(
            self._instance(m)
            for m in self.machines.values()
            if t >= m.born_s + m.lag_s and (m.ended_s is None or t < m.ended_listed_until_s)
        )

    # -- Slurm (SlurmControl) -------------------------------------------------------------------------------------

    async def view(self) -> SlurmView:
        """Nodes and jobs now."""
        if self.slurm_down:
            raise SlurmError("slurmctld does not answer")
        self.start_jobs(0.1)  # the world goes on between a snapshot and the step that it led to
        jobs = tuple(SlurmJob(job, "u", "h100", "RUNNING", (slot,)) for slot, (job, _) in self.jobs.items())
        return SlurmView("24.11.5", dict(self.nodes), jobs)

    async def node_settings(self) -> dict[str, str]:
        """Nothing that a kernel may refuse."""
        return {}

    async def drain(self, slot: str, reason: str) -> None:
        """No new jobs come."""
        self.maybe_crash()
        node = self.nodes[slot]
        self.nodes[slot] = replace(node, states=node.states | {"DRAIN"}, reason=reason)

    async def resume(self, slot: str) -> None:
        """Jobs may come again."""
        node = self.nodes[slot]
        self.nodes[slot] = replace(node, states=node.states - {"DRAIN"}, reason="")

    async def forget_reason(self, slot: str) -> None:
        """An open node has no reason any more."""
        self.nodes[slot] = replace(self.nodes[slot], reason="")

    async def set_down(self, slot: str, reason: str) -> None:
        """The node is dead. Raises Violation when it has a job."""
        self.maybe_crash()
        if slot in self.jobs:
            raise Violation(f"job {self.jobs[slot][0]} was killed: {slot} set down")
        node = self.nodes[slot]
        self.nodes[slot] = replace(node, states=frozenset({"DOWN"}) | (node.states & {"DRAIN"}), reason=reason)

    async def power_down(self, slots: Collection[str], reason: str = "", *, force: bool = False) -> None:
        """Nothing: people drive the pool, and Slurm's power saving is off."""

    async def set_node_addrs(self, addrs: Mapping[str, str]) -> None:
        """Nothing: the publisher does all."""

    async def own_signal(self, job: str) -> JobSignal | None:
        """Raises Violation: no cloud takes machines back here."""
        raise Violation(f"job {job} is to get a signal, and no cloud takes its machine back")

    async def send_signal(self, job: str, signal: JobSignal) -> None:
        """Raises Violation: no cloud takes machines back here."""
        raise Violation(f"job {job} got a signal, and no cloud takes its machine back")

    async def requeue(self, job: str) -> None:
        """Raises Violation: no cloud takes machines back here."""
        raise Violation(f"job {job} was requeued, and no cloud takes its machine back")

    # -- the agents -----------------------------------------------------------------------------------------------

    async def command(self, machine: str, verb: str, args: object, timeout_s: float) -> str:
        """Have an agent carry out a verb. Raises Violation when slurmd would stop under a job."""
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
        found.slurmd = verb in {"start_slurmd", "restart_slurmd"} or (found.slurmd and verb == "reload_slurmd")
        self.maybe_crash()
        return ""

    def hasten(self, machine: str) -> bool:
        """Have an agent speak now, if it does."""
        return self.lies.random() < 0.8

    async def user_data(self, machine: Machine) -> UserData:
        """A script that nobody runs."""
        return UserData("#!/bin/sh\n", "a" * 64)

    def own_key(self, provider: str) -> bool:
        """No machine has an auth key of its own."""
        return False

    async def delete_device(self, device_id: str) -> None:
        """The tailnet forgets nobody here."""
        return

    async def disable_key_expiry(self, device_id: str) -> None:
        """No key expires here."""
        return

    def jobs_at(self, machine: SimMachine) -> int:
        """How many jobs its agent sees."""
        return sum(self.nodes[slot].node_addr == machine.ip for slot in self.jobs)

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
        """Let time pass, with what happens in it."""
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
            states_now = frozenset({base}) | (node.states & {"DRAIN"})
            if states_now != node.states:
                self.nodes[slot] = replace(node, states=states_now)
        self.sicken()
        self.start_jobs(0.4)
        self.slurm_down = self.chance(0.1)
        if self.chance(0.03):
            self.tailnet_down_until_s = t + self.rng.uniform(10, 400)


class Cloud:
    """One of the world's clouds, as an adapter has it.

    Args:
        world: what it does.
        name: as in the settings.
        capabilities: what it can do.
    """

    def __init__(self, world: World, name: str, capabilities: ProviderCapabilities) -> None:
        self._world = world
        self.name = ProviderName(name)
        self.capabilities = capabilities

    async def offers(self) -> Sequence[Offer]:
        """Nothing: what is offered, a snapshot has from the world."""
        return ()

    async def launch(self, request: LaunchRequest) -> Instance:
        """Rent one machine."""
        return await self._world.launch(request)

    async def launch_gang(self, request: GangRequest) -> Sequence[Instance]:
        """Rent several with one call."""
        return await self._world.launch_gang(request)

    async def get(self, instance: Instance) -> Instance:
        """A machine."""
        return await self._world.get(instance)

    async def list(self) -> Sequence[Instance]:
        """All machines of this cloud."""
        return [one for one in self._world.listing() if one.provider == self.name]

    async def terminate(self, instance: Instance) -> None:
        """End a machine."""
        await self._world.terminate(instance)

    async def check(self) -> str:
        """All is well."""
        return ""

    async def aclose(self) -> None:
        """There is nothing to close."""
