"""A world in which Slurm's power saving drives the pool: jobs come, wait, are cancelled, run, and are queued again.

The rest of the world is that of `sim`: clouds that lie, machines that die, kill -9. What the daemon does to Slurm's
slots beside its machines (what is refused goes back to the queue, what nobody wants is switched off) is done here at
once, as the plan says it.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from meshd.codes import DemandCode
from meshd.errors import SlurmError
from meshd.model.cooldown import CooldownKey, scopes
from meshd.model.desired import Policy, Pool, Promise, Target
from meshd.model.machine import COUNTS_AS_SUPPLY, HOLDS_SLOT, IN_SLURM, Machine, Phase
from meshd.model.observed import Fresh, SlurmJob, SlurmNode, SlurmView, Snapshot, TailnetPeer, TailnetView, Unavailable
from meshd.model.plan import CancelRemoval, Plan, RequestMachine
from meshd.plan.demand import PoweredUp, powered_up
from meshd.provider_api import Offer
from tests.clocks import SimClock
from tests.property.sim import (
    EFFECT_MAX_S,
    LAG_MAX_S,
    MIXED_OFFERS,
    START,
    Daemon,
    SimMachine,
    Violation,
    World,
)

SLOTS = 6
NEEDLESS_ROUNDS_MOST = 5
PLACEHOLDER = "192.0.2.1"
POOL = Pool("h100", "h100", 1, SLOTS, ("cloud",), from_queue=True, promise=Promise(8, 60000, 1))
OFFERS = tuple(offer for offer in MIXED_OFFERS if offer.gpus == 1)


@dataclass
class Job:
    """A job of the queue.

    Attributes:
        begin_s: it is not started before.
        slots: those that it has; () while it waits.
        ends_s: when it ends; None before it runs.
        given_up_until_s: until when it was put back for lack of machines.
    """

    id: str
    count: int
    run_s: float
    begin_s: float
    slots: tuple[str, ...] = ()
    ends_s: float | None = None
    given_up_until_s: float = 0.0


@dataclass
class QueueWorld(World):
    """Slurm with CLOUD nodes, in which what it is told happens at once."""

    queue: dict[str, Job] = field(default_factory=dict)
    powering: set[str] = field(default_factory=set)
    registered: set[str] = field(default_factory=set)
    down: set[str] = field(default_factory=set)
    drains: dict[str, str] = field(default_factory=dict)
    addrs: dict[str, str] = field(default_factory=dict)
    submitted: int = 0
    give_ups: int = 0
    ran: int = 0

    @property
    def slots(self) -> list[str]:
        return [f"h100-{index}" for index in range(1, SLOTS + 1)]

    def job_on(self, slot: str) -> Job | None:
        return next((job for job in self.queue.values() if slot in job.slots), None)

    def behind(self, slot: str) -> SimMachine | None:
        address = self.addrs.get(slot, PLACEHOLDER)
        return next((m for m in self.machines.values() if m.ip and m.ip == address and m.ended_s is None), None)

    # -- what Slurm shows -----------------------------------------------------------------------------------------

    def node(self, slot: str) -> SlurmNode:
        states = {"MIXED" if self.job_on(slot) else "IDLE", "CLOUD"}
        if slot in self.down:
            states = {"DOWN", "CLOUD", "NOT_RESPONDING"}
        elif slot in self.powering:
            states |= {"POWERING_UP", "NOT_RESPONDING"}
        elif slot not in self.registered:
            states |= {"POWERED_DOWN"}
        reason = self.drains.get(slot, "")
        return SlurmNode(
            slot, self.addrs.get(slot, PLACEHOLDER), frozenset(states | ({"DRAIN"} if reason else set())), reason
        )

    def show(self) -> SlurmView:
        jobs = tuple(
            SlurmJob(
                job.id, "u", "h100", "PENDING" if not job.slots else "RUNNING" if job.ends_s else "CONFIGURING",
                job.slots, "" if job.slots else "Resources",
            )
            for job in self.queue.values()
        )  # fmt: skip
        return SlurmView("24.11.5", {slot: self.node(slot) for slot in self.slots}, jobs, power_saving=True)

    async def view(self) -> SlurmView:
        if self.slurm_down:
            raise SlurmError("slurmctld does not answer")
        self.schedule()  # the world goes on between a snapshot and the step that it led to
        return self.show()

    # -- what Slurm is told ---------------------------------------------------------------------------------------

    async def drain(self, slot: str, reason: str) -> None:
        self.maybe_crash()
        self.drains[slot] = reason

    async def resume(self, slot: str) -> None:
        self.drains.pop(slot, None)

    async def set_down(self, slot: str, reason: str) -> None:
        self.maybe_crash()
        self.lose(slot, f"{slot} set down")
        self.down.add(slot)

    async def power_down(self, slots: Collection[str], reason: str = "", *, force: bool = False) -> None:
        self.maybe_crash()
        for slot in slots:
            self.lose(slot, f"{slot} switched off")
            self.down.discard(slot)
            self.drains.pop(slot, None)

    async def set_node_addrs(self, addrs: Mapping[str, str]) -> None:
        self.maybe_crash()
        self.addrs.update(addrs)

    def lose(self, slot: str, how: str) -> None:
        """The slot is no node any more, and its job goes back to the queue."""
        job, machine = self.job_on(slot), self.behind(slot)
        if job is not None and job.ends_s is not None and machine is not None and machine.slurmd:
            raise Violation(f"job {job.id} was killed: {how}")
        if job is not None:
            self.put_back(job, self.clock.t_s + 120)
        self.powering.discard(slot)
        self.registered.discard(slot)

    def put_back(self, job: Job, begin_s: float) -> None:
        job.slots, job.ends_s, job.begin_s = (), None, max(job.begin_s, begin_s)

    # -- agents and clouds ----------------------------------------------------------------------------------------

    async def command(self, machine: str, verb: str, args: object, timeout_s: float) -> str:
        self.maybe_crash()
        if self.chance(0.05):
            return "no answer"
        found = next((m for m in self.machines.values() if m.token == machine and m.ended_s is None), None)
        if found is None:
            return "no answer"
        slot = next((s for s, address in self.addrs.items() if found.ip and address == found.ip), "")
        self.schedule()
        job = self.job_on(slot) if slot else None
        if verb == "leave" and job is not None and job.ends_s is not None and slot in self.registered:
            raise Violation(f"slurmd stopped under job {job.id}")
        found.slurmd = verb in {"start_slurmd", "restart_slurmd"}
        if found.slurmd and slot and slot not in self.down:
            self.registered.add(slot)
            self.powering.discard(slot)
        elif verb == "leave" and slot in self.registered:
            self.registered.discard(slot)
            self.down.add(slot)
            if job is not None:
                self.put_back(job, self.clock.t_s + 120)
        self.maybe_crash()
        return ""

    def _end(self, machine: SimMachine, *, by_meshd: bool) -> None:
        for slot in self.slots:
            if machine.ip and self.addrs.get(slot) == machine.ip and slot in self.registered:
                job = self.job_on(slot)
                if job is not None and job.ends_s is not None and machine.slurmd and by_meshd:
                    raise Violation(f"{machine.token} was ended under job {job.id}")
                if job is not None:
                    self.put_back(job, self.clock.t_s + 120)
                self.registered.discard(slot)
                self.down.add(slot)
        machine.ended_s = self.clock.t_s
        machine.ended_listed_until_s = self.clock.t_s + self.rng.uniform(0, 100)
        machine.slurmd = False

    # -- time -----------------------------------------------------------------------------------------------------

    def schedule(self) -> None:
        """Slurm gives nodes to jobs: those that are up first. It starts those whose nodes are all up."""
        for job in self.queue.values():
            if not job.slots and job.begin_s <= self.clock.t_s:
                free = [s for s in self.slots if s not in self.drains and s not in self.down and not self.job_on(s)]
                free.sort(key=lambda slot: (slot not in self.registered, slot not in self.powering, slot))
                if len(free) >= job.count:
                    job.slots = tuple(free[: job.count])
                    self.powering |= set(job.slots) - self.registered
            if job.slots and job.ends_s is None and self.registered.issuperset(job.slots):
                job.ends_s = self.clock.t_s + job.run_s
                self.ran += 1

    def submit(self, count: int) -> None:
        self.submitted += 1
        job = Job(str(self.submitted), count, self.rng.uniform(5, 200), self.clock.t_s)
        self.queue[job.id] = job

    def move_on(self, delay_s: float) -> None:
        self.clock.t_s += delay_s
        t = self.clock.t_s
        for job in list(self.queue.values()):
            if (job.ends_s is not None and t >= job.ends_s) or self.chance(0.02):
                del self.queue[job.id]  # it has ended, or somebody cancels it
        for machine in self.machines.values():
            if machine.ended_s is None and t >= machine.dies_s:
                self._end(machine, by_meshd=False)
        if self.chance(0.25):
            self.submit(self.rng.choice((1, 1, 1, 2, 3, 4)))
        self.slurm_down = self.chance(0.1)
        if self.chance(0.02):
            self.tailnet_down_until_s = t + self.rng.uniform(10, 400)
        self.schedule()


class QueueDaemon(Daemon):
    """One life of meshd beside such a Slurm."""

    world: QueueWorld

    def __init__(self, world: QueueWorld, path: Path, policy: Policy, offers: tuple[Offer, ...] = OFFERS) -> None:
        self.powered_up = PoweredUp()
        self.needless: dict[str, int] = {}
        super().__init__(world, path, POOL, policy, offers)

    def snapshot(self) -> Snapshot:
        world, now = self.world, self.world.clock.now()
        peers = {
            m.id: TailnetPeer(m.id, m.token, m.ip, online=m.ended_s is None) for m in world.machines.values() if m.ip
        }
        seen: Fresh[SlurmView] | Unavailable = self.fresh("slurm", world.show(), down=world.slurm_down)
        if world.chance(0.1) and self.old_slurm is not None:
            seen = self.old_slurm  # its reader is slow, or stuck
        elif isinstance(seen, Fresh):
            self.old_slurm = seen
        self.powered_up = powered_up(self.powered_up, seen.value if isinstance(seen, Fresh) else None)
        settable = {m.slot: m.tailnet_ip for m in self.journal.machines() if m.phase in IN_SLURM and m.tailnet_ip}
        unread = Unavailable("fault", now)
        return Snapshot(
            instances={"cloud": unread if world.chance(0.1) else Fresh(world.listing(), now)},
            offers={"cloud": unread if world.chance(0.1) else Fresh(self.offers, now)},
            tailnet=self.fresh(
                "tailnet", TailnetView("100.64.0.1", "head", True, (), peers),
                down=world.clock.t_s < world.tailnet_down_until_s,
            ),
            slurm=seen, node_addrs=dict(world.published), settable_addrs=settable, reports=dict(self.reports.current),
            by_person=self.powered_up.slots,
        )  # fmt: skip

    def publish(self) -> None:
        """The rewritten file follows the addresses."""
        world = self.world
        world.published = {
            m.slot: m.tailnet_ip
            for m in self.journal.machines()
            if m.phase in IN_SLURM and m.tailnet_ip and not m.left_slurm
        }
        for slot in world.slots:
            world.addrs[slot] = world.published.get(slot, PLACEHOLDER)

    def people_act(self) -> None:
        """Nobody does anything by hand."""

    def care_for_slots(self) -> None:
        """What the plan says of Slurm's slots: what cannot be had goes back, what nobody wants is switched off."""
        tick, world = self.reconciler.last, self.world
        if tick is None or world.slurm_down:
            return
        for refused in tick.plan.refused:
            if refused.code is DemandCode.NO_CAPACITY and refused.until != self.first_offer_at():
                raise Violation(f"{refused}: the first offer can be had again at {self.first_offer_at()}")
            self.give_up(refused.jobs, refused.slots, refused.until)
        at = {m.slot for m in self.journal.machines() if m.phase in HOLDS_SLOT}
        for slot in tick.plan.unwanted_slots:
            if world.job_on(slot) is None:
                world.powering.discard(slot)
        for slot in world.slots:
            if slot in at or world.job_on(slot) is not None or slot in world.registered:
                continue
            if slot in world.down:
                world.down.discard(slot)
            world.drains.pop(slot, None)
        self.close_slots(tick.plan, at)

    def close_slots(self, plan: Plan, at: Collection[str]) -> None:
        left = plan.open_slots.get("h100")
        free = [
            s for s in self.world.slots
            if s not in at and s not in self.world.powering and s not in self.world.registered
        ]  # fmt: skip
        for slot in free[left.count :] if left is not None else []:
            self.world.drains[slot] = f"meshd: {left.reason}" if left else ""

    def first_offer_at(self) -> datetime:
        """When the first offer cools down no more."""
        cooldowns = self.journal.cooldowns(self.world.clock.now())
        ends = []
        for offer in self.offers:
            keys = (*scopes("h100", offer), CooldownKey.of_provider(offer.provider))
            ends.append(max((cooldowns[key].until for key in keys if key in cooldowns), default=START))
        return min(ends)

    def check_reasons(self, target: int) -> None:
        """No machine is on its way for long that neither a job nor the target needs."""
        if self.world.slurm_down or self.reconciler.last is None:
            return
        seen = self.reconciler.last.snapshot.slurm
        if not isinstance(seen, Fresh) or seen.at != self.world.clock.now():
            return  # it looked at an old view
        supply = [m for m in self.journal.machines() if m.phase in COUNTS_AS_SUPPLY and not m.removal and not m.failure]
        idle = {
            m.name
            for m in supply
            if m.for_jobs and m.phase is not Phase.READY and self.world.job_on(m.slot) is None
            and m.slot not in self.world.registered and len(supply) > target
        }  # fmt: skip
        self.needless = {name: self.needless.get(name, 0) + 1 for name in idle}
        if any(rounds > NEEDLESS_ROUNDS_MOST for rounds in self.needless.values()):
            raise Violation(f"nobody waits for {self.needless}")

    def give_up(self, jobs: Collection[str], slots: Collection[str], until: datetime) -> None:
        world = self.world
        until_s = (until - START).total_seconds()
        for name in jobs:
            job = world.queue.get(name)
            if job is None or not job.slots or job.ends_s is not None:
                continue
            if world.clock.t_s < job.given_up_until_s:
                raise Violation(f"job {name} was given up twice within {job.given_up_until_s - world.clock.t_s:.0f} s")
            if until_s <= world.clock.t_s:
                raise Violation(f"job {name} was given up until now")
            world.give_ups += 1
            job.given_up_until_s = until_s
            world.put_back(job, until_s)
        world.powering -= {slot for slot in slots if world.job_on(slot) is None}

    def check_steps(self, before: list[Machine]) -> None:
        """A machine has one step. What is rented for a job is in one place: that of its others, if they are in one."""
        tick = self.reconciler.last
        if tick is None or not isinstance(tick.snapshot.slurm, Fresh):
            return
        subjects = [step.subject for step in tick.plan.steps]
        if len(set(subjects)) < len(subjects):
            raise Violation(f"two steps at a time: {tick.plan.steps}")
        kept = {step.subject for step in tick.plan.steps if isinstance(step, CancelRemoval)}
        at = {
            m.slot: (m.provider, m.offer.region)
            for m in before
            if m.phase in COUNTS_AS_SUPPLY and not m.failure and (not m.removal or m.name in kept)
        }
        for job in tick.snapshot.slurm.value.jobs:
            asked = {
                (step.offer.provider, step.offer.region)
                for step in tick.plan.steps
                if isinstance(step, RequestMachine) and step.subject in job.nodes
            }
            there = {at[slot] for slot in job.nodes if slot in at}
            if len(asked) > 1 or (asked and len(there) == 1 and asked != there):
                raise Violation(f"machines for job {job.id} are rented in {asked}, and it has some in {there}")


async def live_with_queue(seed: int, directory: Path, rounds: int = 80) -> QueueWorld:
    """One history: chaos, then none; every promise is checked on the way and at the end."""
    Violation.seen.clear()
    rng, places = random.Random(seed), random.Random(-seed)
    world = QueueWorld(rng, SimClock(START), lies=random.Random(-1 - seed))
    policy = Policy(
        boot_timeout_s=200, join_timeout_s=200, configure_timeout_s=150, test_timeout_s=150,
        listing_lag_s=LAG_MAX_S + 5, launch_settle_s=EFFECT_MAX_S, orphan_grace_s=120, replace_unfit_after_s=60,
        replace_cooldown_s=20,
    )  # fmt: skip
    path = directory / f"{seed}.db"
    daemon = QueueDaemon(world, path, policy)
    target = 0
    for round_ in range(rounds + 300):
        if round_ == rounds:
            world.faults, world.sold_out = False, set()
        elif round_ in {rounds + 5, rounds + 20, rounds + 40}:
            for job in [job for job in world.queue.values() if job.ends_s is None and rng.random() < 0.5]:
                del world.queue[job.id]  # somebody cancels it, and nobody comes after it
            world.submit(rng.choice((1, 2, 4)))
        elif round_ < rounds and rng.random() < 0.05:
            target = rng.randrange(0, 4)
            order = Target("h100", target, at=world.clock.now())
            daemon.journal.set_target(order, "somebody wants it", world.clock.now())
        world.move_on(rng.uniform(1, 25))
        if round_ < rounds and places.random() < 0.3:
            place = places.choice([o.region for o in OFFERS] + ["everywhere", ""])
            world.sold_out = {o.key for o in OFFERS if place in {o.region, "everywhere"}}
        daemon.agents_act()
        before = daemon.journal.machines()
        daemon.reconciler.tick()
        daemon.check_steps(before)
        daemon.check_reasons(target)
        daemon.care_for_slots()
        await daemon.settle()
        assert not Violation.seen, (seed, round_, Violation.seen)
        if round_ > rounds + 60 and not world.queue and _at_rest(daemon, world, target):
            break
        if world.crashed or world.chance(0.05):
            await daemon.kill()
            daemon = QueueDaemon(world, path, policy)
    known = {m.instance_id: (m.slot, m.phase.value, m.reason) for m in daemon.journal.machines()}
    alive = {m.id for m in world.machines.values() if m.ended_s is None}
    rest, last = _at_rest(daemon, world, target), daemon.reconciler.last
    await daemon.kill()
    assert not world.queue, (seed, target, world.queue, known, world.show().nodes, last and last.plan)
    assert alive <= set(known), "a machine runs that the journal does not know"
    assert rest, (seed, target, known, list(world.show().nodes.values()), last and last.plan)
    return world


def _at_rest(daemon: Daemon, world: QueueWorld, target: int) -> bool:
    """All machines are nodes, as many as the target says and not one more, and no slot is left in between."""
    machines = daemon.journal.machines()
    alive = {m.id for m in world.machines.values() if m.ended_s is None}
    nodes = all(m.phase is Phase.READY and m.slot in world.registered for m in machines)
    quiet = not (world.powering or world.down or world.drains)
    return nodes and quiet and alive == {m.instance_id for m in machines} and len(machines) == target
