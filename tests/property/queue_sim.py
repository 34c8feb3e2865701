"""A world in which Slurm's power saving drives the pool: jobs come, wait, are cancelled, run, and are queued again.

Clouds lie, machines die, meshd is killed. Spot machines are taken back with notice. Slurm's slots without a machine,
and the jobs that cannot have theirs, are in the hands of the real controller.
"""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from meshd.codes import DemandCode
from meshd.config import ClusterSettings, PoolSettings, Settings
from meshd.model.budget import ALL, BudgetLimits
from meshd.model.cooldown import CooldownKey, scopes
from meshd.model.desired import Desired, Policy, Pool, Promise, Target
from meshd.model.machine import COUNTS_AS_SUPPLY, Machine, Phase
from meshd.model.observed import Fresh
from meshd.model.plan import CancelRemoval, RefusedDemand, RequestMachine
from meshd.plan.demand_growth import MOVES_S
from meshd.plan.ledger import budget_of
from meshd.plan.plan_input import believed
from meshd.provider_api import Offer, ProviderCapabilities
from meshd.simulate.clock import SimClock
from meshd.simulate.faults import Violation
from meshd.simulate.queue import QueueWorld
from meshd.simulate.queue_life import QueueLife
from tests.live import live_settings
from tests.property.sim import CLOUD, EFFECT_MAX_S, LAG_MAX_S, MIXED_OFFERS, START, TIMING, Checked, policy_of

SLOTS = 6
NEEDLESS_ROUNDS_MOST = 5
WAITING_ROUNDS_MOST = 4
LIMITS = {DemandCode.LIMIT_IN_ALL, DemandCode.BUDGET}
POOL = Pool("h100", "h100", 1, SLOTS, ("cloud",), spot="if_cheaper", from_queue=True, promise=Promise(8, 60000, 1))
OFFERS = (
    *(offer for offer in MIXED_OFFERS if offer.gpus == 1),
    Offer(CLOUD, "r2", "r2a", "gpu.1", "h100-sxm", 1, 80, 8, 65536, 1.2, spot=True),
)
SETTINGS = Settings.model_construct(
    cluster=ClusterSettings(name="lab"), timing=TIMING,
    pools={"h100": PoolSettings(gpu="h100", max_nodes=SLOTS, providers=("cloud",), spot="if_cheaper")},
)  # fmt: skip
SIZES = {"h100": SLOTS}


class QueueDaemon(QueueLife, Checked):
    """Slurm's queue drives the pool."""

    def __init__(self, world: QueueWorld, path: Path, policy: Policy, offers: tuple[Offer, ...] = OFFERS) -> None:
        self.needless: dict[str, int] = {}
        self.waiting: dict[str, int] = {}
        self.pool, self.policy = replace(POOL, max_usd_per_hour=world.limit_usd), policy_of(world, policy)
        super().__init__(world, path, live_settings(SETTINGS), {CLOUD: offers})

    def desired(self) -> Desired:
        usd, now = self.world.budget_usd, self.world.clock.now()
        limits = {ALL: BudgetLimits(usd_per_hour=usd)} if usd is not None else {}
        return replace(super().desired(), budget=budget_of(limits, {}, self.journal.machines(), {}, now))

    def people_act(self) -> None:
        """Nobody does anything by hand."""

    async def care_for_slots(self) -> None:
        """What the plan says of Slurm's slots: what cannot be had goes back, what nobody wants is switched off."""
        tick = self.reconciler.last
        for refused in tick.plan.refused if tick is not None else ():
            if refused.code is DemandCode.NO_CAPACITY and refused.until != self.first_offer_at():
                raise Violation(f"{refused}: the first offer can be had again at {self.first_offer_at()}")
            if refused.code is DemandCode.PLACE and self.could_move(refused):
                raise Violation(f"{refused}: another place could give all")
            if refused.until <= self.world.clock.now():
                raise Violation(f"{refused}: until now")
        await super().care_for_slots()

    def could_move(self, refused: RefusedDemand) -> bool:
        """Whether a gang that waits for its place for long could be in another one."""
        now = self.world.clock.now()
        if self.world.limit_usd or self.world.budget_usd or refused.until <= now + timedelta(seconds=MOVES_S):
            return False
        theirs = {slot for job in self.world.queue.values() if job.id in refused.jobs for slot in job.slots}
        here = {m.offer.region for m in self.journal.machines() if m.slot in theirs and m.phase in COUNTS_AS_SUPPLY}
        cooldowns = self.journal.cooldowns(now)
        usable = [o for o in self.offers[CLOUD] if not any(key in cooldowns for key in scopes("h100", o))]
        return any(offer.region not in here for offer in usable)

    def first_offer_at(self) -> datetime:
        """When the first offer cools down no more."""
        cooldowns = self.journal.cooldowns(self.world.clock.now())
        ends = []
        for offer in self.offers[CLOUD]:
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
            if m.for_jobs and m.phase is not Phase.READY and not self.world.jobs_on(m.slot)
            and m.slot not in self.world.registered and len(supply) > target
        }  # fmt: skip
        self.needless = {name: self.needless.get(name, 0) + 1 for name in idle}
        if any(rounds > NEEDLESS_ROUNDS_MOST for rounds in self.needless.values()):
            raise Violation(f"nobody waits for {self.needless}")

    def check_limit(self, before: list[Machine]) -> None:
        """No create call goes out while all machines cost more with it than the limit in USD.

        A machine that its cloud made unasked costs what it costs, and counts.
        """
        limit_usd = self.world.limit_usd or self.world.budget_usd
        waited = {m.name for m in before if m.phase is Phase.REQUESTED}
        there = [m for m in self.journal.machines() if m.phase is not Phase.REQUESTED]
        called, usd = [m.name for m in there if m.name in waited], sum(m.usd_per_hour for m in there)
        if called and limit_usd is not None and usd > limit_usd + 1e-9:
            raise Violation(f"{called} were ordered: {usd:.2f} USD per hour, and the limit is {limit_usd:.2f}")

    def check_waiting(self) -> None:
        """No job waits for long while as many nodes are idle as it asks for."""
        world = self.world
        ready = {m.slot for m in self.journal.machines() if m.phase is Phase.READY and not (m.removal or m.failure)}
        closed = {*world.drains, *world.leaving, *world.down, *world.off_s}
        idle = [slot for slot in world.registered if slot in ready - closed and not world.jobs_on(slot)]
        now_s = world.clock.t_s
        fits = {job.id for job in world.queue.values() if not job.slots and job.count <= len(idle) and not (
            job.begin_s > now_s and not job.comment)}  # fmt: skip
        self.waiting = {job: self.waiting.get(job, 0) + 1 for job in fits} if not world.slurm_down else self.waiting
        if any(rounds > WAITING_ROUNDS_MOST for rounds in self.waiting.values()):
            raise Violation(f"jobs {self.waiting} wait while {idle} are idle")

    def check_steps(self, before: list[Machine]) -> None:
        """A machine has one step. What is rented for a job is in one place: that of its others, if they are in one."""
        tick = self.reconciler.last
        if tick is None or not believed(tick.snapshot.slurm, self.policy, tick.at):
            return
        subjects = [step.subject for step in tick.plan.steps]
        if len(set(subjects)) < len(subjects):
            raise Violation(f"two steps at a time: {tick.plan.steps}")
        kept = {step.subject for step in tick.plan.steps if isinstance(step, CancelRemoval)}
        at = {
            m.slot: (m.provider, m.offer.region)
            for m in before
            if m.phase in COUNTS_AS_SUPPLY
            and not m.failure
            and (not m.removal or m.name in kept)
            and (m.preempted_at is None or m.phase is Phase.READY)
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


async def live_with_queue(
    seed: int,
    directory: Path,
    rounds: int = 80,
    *,
    wrong: float | None = None,
    freezes: float = 0.0,
    leaps: float = 0.0,
) -> QueueWorld:
    """One history: chaos, then none; every promise is checked on the way and at the end.

    Args:
        seed: of the history.
        directory: for its journal.
        rounds: how long the chaos lasts.
        wrong: how often the answer to a gang's create call is wrong; None: each machine has a call of its own.
        freezes: how often somebody freezes meshd, or ends that.
        leaps: how often somebody sets the head's clock.
    """
    Violation.seen.clear()
    rng, places, people = random.Random(seed), random.Random(-seed), random.Random(-3 - seed)
    world = QueueWorld(rng, SimClock(START), sizes=SIZES, lies=random.Random(-1 - seed))
    world.leaps, world.hands = leaps, random.Random(-3 - seed)
    if wrong is not None:
        world.capabilities = ProviderCapabilities(idempotent_launch=True, gang_max=4)
        world.wrong, world.answers = wrong, random.Random(-2 - seed)
    if seed % 3 == 0:
        world.limit_usd = 8.0
    elif seed % 3 == 1:
        world.budget_usd = 8.0
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
            daemon.thaw()
        elif round_ in {rounds + 5, rounds + 20, rounds + 40}:
            for job in [job for job in world.queue.values() if job.ends_s is None and rng.random() < 0.5]:
                world.forget(job)  # somebody cancels it, and nobody comes after it
            world.submit(rng.choice((1, 2, 4)))
        elif round_ < rounds and rng.random() < 0.05:
            target = rng.randrange(0, 4)
            order = Target("h100", target, at=world.clock.now())
            daemon.journal.set_target(order, "somebody wants it", world.clock.now())
        daemon.freeze_or_thaw(people.random() < freezes * (round_ < rounds))
        world.move_on(rng.uniform(1, 25))
        if round_ < rounds and places.random() < 0.3:
            place = places.choice([o.region for o in OFFERS] + ["everywhere", ""])
            world.sold_out = {o.key for o in OFFERS if place in {o.region, "everywhere"}}
        daemon.agents_act()
        daemon.hear_notices()
        before = daemon.journal.machines()
        daemon.reconciler.tick()
        daemon.check_steps(before)
        daemon.check_reasons(target)
        daemon.check_patience()
        await daemon.care_for_slots()
        await daemon.settle()
        daemon.check_limit(before)
        daemon.check_waiting()
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


def _at_rest(daemon: QueueDaemon, world: QueueWorld, target: int) -> bool:
    """All machines are nodes, as many as the target says and not one more, and no slot is left in between."""
    machines = daemon.journal.machines()
    alive = {m.id for m in world.machines.values() if m.ended_s is None}
    nodes = all(m.phase is Phase.READY and m.slot in world.registered for m in machines)
    opened = daemon.reconciler.last.plan.open_slots.get("h100") if daemon.reconciler.last is not None else None
    free = len(world.slots) - len(machines)
    closed = free - opened.count if opened is not None and opened.code in LIMITS else 0
    quiet = len(world.drains) == closed and not (world.powering or world.down or world.leaving or world.off_s)
    return nodes and quiet and alive == {m.instance_id for m in machines} and len(machines) == target


async def a_node_in_a_sold_out_place(directory: Path) -> QueueWorld:
    """A target's node is idle in the cheapest place, which sells nothing more, when a job of two nodes comes."""
    Violation.seen.clear()
    world = QueueWorld(random.Random(1), SimClock(START), sizes=SIZES, faults=False)
    daemon = QueueDaemon(world, directory / "place.db", Policy(listing_lag_s=LAG_MAX_S + 5))
    daemon.journal.set_target(Target("h100", 1, at=world.clock.now()), "somebody wants it", world.clock.now())
    for round_ in range(200):
        if round_ == 40:
            assert [m.offer.region for m in daemon.journal.machines() if m.phase is Phase.READY] == ["r2"]
            world.sold_out = {offer.key for offer in OFFERS if offer.region == "r2"}
            world.submit(2)
        world.move_on(10)
        daemon.agents_act()
        daemon.reconciler.tick()
        await daemon.care_for_slots()
        await daemon.settle()
        assert not Violation.seen, (round_, Violation.seen)
    await daemon.kill()
    return world


async def dear_nodes_under_a_limit(directory: Path, *, limit_usd: float | None, budget_usd: float | None) -> QueueWorld:
    """A target's three nodes are idle, and dear, when a job of four comes. With one more they would pass the limit."""
    Violation.seen.clear()
    world = QueueWorld(
        random.Random(1), SimClock(START), sizes=SIZES, faults=False, limit_usd=limit_usd, budget_usd=budget_usd
    )
    daemon = QueueDaemon(world, directory / "dear.db", Policy(listing_lag_s=LAG_MAX_S + 5))
    daemon.journal.set_target(Target("h100", 3, at=world.clock.now()), "somebody wants it", world.clock.now())
    dear = OFFERS[1]
    world.sold_out = {offer.key for offer in OFFERS if offer != dear}
    for round_ in range(400):
        if round_ == 60:
            assert [m.offer for m in daemon.journal.machines() if m.phase is Phase.READY] == [dear] * 3
            world.sold_out = set()
        elif round_ == 200:
            world.submit(4)
        before = daemon.journal.machines()
        world.move_on(10)
        daemon.agents_act()
        daemon.reconciler.tick()
        await daemon.care_for_slots()
        await daemon.settle()
        daemon.check_limit(before)
        assert not Violation.seen, (round_, Violation.seen)
    await daemon.kill()
    return world
