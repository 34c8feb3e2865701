"""A world in which Slurm's power saving drives the pool: jobs come, wait, are cancelled, run, and are queued again.

The rest of the world is that of `sim`: clouds that lie, machines that die, kill -9. Spot machines are taken back with
notice. Slurm's slots without a machine, and the jobs that cannot have theirs, are in the hands of the real controller.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

from meshd.codes import DemandCode, EventKind
from meshd.config import ClusterSettings, PoolSettings, Settings
from meshd.daemon.slurm.slots import SlotController
from meshd.errors import SlurmError
from meshd.model.budget import ALL, BudgetLimits
from meshd.model.cooldown import CooldownKey, scopes
from meshd.model.desired import Desired, Policy, Pool, Promise, Target
from meshd.model.machine import COUNTS_AS_SUPPLY, IN_SLURM, Machine, Phase
from meshd.model.observed import (
    Fresh,
    Observation,
    SlurmJob,
    SlurmNode,
    SlurmView,
    Snapshot,
    TailnetPeer,
    TailnetView,
    Unavailable,
)
from meshd.model.plan import CancelRemoval, RefusedDemand, RequestMachine
from meshd.plan.demand import PoweredUp, powered_up
from meshd.plan.demand_growth import MOVES_S
from meshd.plan.ledger import budget_of
from meshd.plan.plan_input import believed
from meshd.provider_api import Offer, ProviderCapabilities
from meshd.slurm.job_signal import JobSignal
from tests.clocks import SimClock
from tests.live import live_settings
from tests.property.sim import (
    CLOUD,
    EFFECT_MAX_S,
    LAG_MAX_S,
    MIXED_OFFERS,
    START,
    Crash,
    Daemon,
    SimMachine,
    Violation,
    World,
)

SLOTS = 6
NEEDLESS_ROUNDS_MOST = 5
WAITING_ROUNDS_MOST = 4
REQUEUED_WAITS_S = 120.0
"""So long Slurm lets a job wait that it has put back into the queue."""
LIMITS = {DemandCode.LIMIT_IN_ALL, DemandCode.BUDGET}
SUSPEND_S = 10.0
"""SuspendTimeout."""
PLACEHOLDER = "192.0.2.1"
POOL = Pool("h100", "h100", 1, SLOTS, ("cloud",), spot="if_cheaper", from_queue=True, promise=Promise(8, 60000, 1))
OFFERS = (
    *(offer for offer in MIXED_OFFERS if offer.gpus == 1),
    Offer(CLOUD, "r2", "r2a", "gpu.1", "h100-sxm", 1, 80, 8, 65536, 1.2, spot=True),
)


@dataclass
class Job:
    """A job of the queue.

    Attributes:
        begin_s: it is not started before.
        slots: those that it has; () while it waits.
        ends_s: when it ends; None before it runs.
        given_up_until_s: until when it was put back for lack of machines.
        comment: its AdminComment.
        batch: somebody waits at a terminal otherwise.
    """

    id: str
    count: int
    run_s: float
    begin_s: float
    slots: tuple[str, ...] = ()
    ends_s: float | None = None
    given_up_until_s: float = 0.0
    comment: str = ""
    batch: bool = True


@dataclass
class QueueWorld(World):
    """Slurm with CLOUD nodes, in which what it is told happens at once."""

    queue: dict[str, Job] = field(default_factory=dict)
    powering: set[str] = field(default_factory=set)
    registered: set[str] = field(default_factory=set)
    down: set[str] = field(default_factory=set)
    drains: dict[str, str] = field(default_factory=dict)
    leaving: set[str] = field(default_factory=set)  # POWER_DOWN: no new job comes, the one that is there ends first
    off_s: dict[str, float] = field(default_factory=dict)  # POWERING_DOWN until then
    addrs: dict[str, str] = field(default_factory=dict)
    notices: dict[str, float] = field(default_factory=dict)  # machine id -> when its cloud takes it back
    limit_usd: float | None = None  # the pool's, per hour
    budget_usd: float | None = None  # of the budget over all pools, per hour
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
        elif slot in self.off_s:
            states |= {"POWERING_DOWN"}
        elif slot in self.powering:
            states |= {"POWERING_UP", "NOT_RESPONDING"}
        elif slot not in self.registered:
            states |= {"POWERED_DOWN"}
        if slot in self.leaving:
            states |= {"POWER_DOWN"}
        reason = self.drains.get(slot, "")
        return SlurmNode(
            slot, self.addrs.get(slot, PLACEHOLDER), frozenset(states | ({"DRAIN"} if reason else set())), reason
        )

    def show(self) -> SlurmView:
        jobs = tuple(
            SlurmJob(
                job.id, "u", "h100", "PENDING" if not job.slots else "RUNNING" if job.ends_s else "CONFIGURING",
                job.slots, "" if job.slots else "BeginTime" if job.begin_s > self.clock.t_s else "Resources",
                batch=job.batch, admin_comment=job.comment, node_count=job.count,
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
        await self.drain_slots([slot], reason)

    async def drain_slots(self, slots: Collection[str], reason: str) -> None:
        self.maybe_crash()
        for slot in slots:
            if slot in self.powering and self.job_on(slot) is not None:
                raise Violation(f"{slot} was drained while it powers up for a job: Slurm queues the job again")
            self.drains[slot] = reason

    async def resume(self, slot: str) -> None:
        await self.resume_slots([slot])

    async def resume_slots(self, slots: Collection[str]) -> None:
        for slot in slots:
            self.drains.pop(slot, None)
            self.off_s.pop(slot, None)
        self.maybe_crash()

    async def set_down(self, slot: str, reason: str) -> None:
        self.maybe_crash()
        self.lose(slot, f"{slot} set down")
        self.down.add(slot)

    async def power_down(self, slots: Collection[str], reason: str = "", *, force: bool = False) -> None:
        self.maybe_crash()
        for slot in slots:
            self.leaving.add(slot)
            self.drains.setdefault(slot, reason)
            if force:
                self.lose(slot, f"{slot} switched off")
                self.switch_off(slot)
            elif self.job_on(slot) is None and slot not in self.powering:
                self.switch_off(slot)
        self.maybe_crash()

    def switch_off(self, slot: str) -> None:
        for states in (self.leaving, self.down, self.powering, self.registered):
            states.discard(slot)
        self.drains.pop(slot, None)
        self.off_s[slot] = self.clock.t_s + SUSPEND_S

    async def set_node_addrs(self, addrs: Mapping[str, str]) -> None:
        self.maybe_crash()
        self.addrs.update(addrs)

    async def requeue(self, job: str) -> None:
        self.maybe_crash()
        found = self.queue.get(job)
        if found is None or not found.batch:
            raise SlurmError(f"job {job} has ended")
        if found.ends_s is not None and not self.is_preempted(found):
            raise Violation(f"job {job} runs, and was put back into the queue")
        self.put_back(found, self.clock.t_s + REQUEUED_WAITS_S)
        self.maybe_crash()

    async def update_job(
        self, job: str, *, wait_s: float | None = None, admin_comment: str | None = None, requeue: bool | None = None
    ) -> None:
        self.maybe_crash()
        found = self.queue.get(job)
        if found is None:
            raise SlurmError(f"job {job} has ended")
        found.comment = found.comment if admin_comment is None else admin_comment
        if wait_s is not None and not found.slots:
            self.may_wait(found, wait_s)
            found.begin_s = self.clock.t_s + wait_s

    def may_wait(self, job: Job, wait_s: float) -> None:
        """A job that cannot have its machines waits once, until the next try."""
        until_s = self.clock.t_s + wait_s
        if wait_s > 0:
            if self.clock.t_s < job.given_up_until_s:
                left_s = job.given_up_until_s - self.clock.t_s
                raise Violation(f"job {job.id} was given up twice within {left_s:.0f} s")
            self.give_ups += 1
        job.given_up_until_s = until_s

    async def tell(self, job: str, message: str) -> None:
        self.maybe_crash()

    async def cancel(self, job: str) -> None:
        if (found := self.queue.get(job)) is not None and found.ends_s is not None:
            raise Violation(f"job {job} runs, and was cancelled")
        self.queue.pop(job, None)
        self.give_ups += 1

    async def own_signal(self, job: str) -> JobSignal | None:
        if not self.is_preempted(self.queue.get(job)):
            raise Violation(f"job {job} is to get a signal, and no cloud takes its machine back")
        return None

    def is_preempted(self, job: Job | None) -> bool:
        """Whether a cloud has given notice of the end of one of its machines, or of one that it had until now."""
        behind = [self.behind(slot) for slot in job.slots] if job is not None else []
        return job is None or not job.slots or any(m is None or m.id in self.notices for m in behind)

    def lose(self, slot: str, how: str) -> None:
        """The slot is no node any more, and its job goes back to the queue."""
        job, machine = self.job_on(slot), self.behind(slot)
        if job is not None and job.ends_s is not None and machine is not None and machine.slurmd:
            raise Violation(f"job {job.id} was killed: {how}")
        if job is not None:
            self.put_back(job, self.clock.t_s + REQUEUED_WAITS_S)
        self.powering.discard(slot)
        self.registered.discard(slot)

    def put_back(self, job: Job, begin_s: float) -> None:
        if not job.batch:
            self.queue.pop(job.id, None)  # its allocation ends
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
        if found.slurmd and slot and slot not in self.down and slot not in self.off_s:
            self.registered.add(slot)
            self.powering.discard(slot)
        elif verb == "leave" and slot in self.registered:
            self.registered.discard(slot)
            self.down.add(slot)
            if job is not None:
                self.put_back(job, self.clock.t_s + REQUEUED_WAITS_S)
        self.maybe_crash()
        return ""

    def _end(self, machine: SimMachine, *, by_meshd: bool) -> None:
        for slot in self.slots:
            if machine.ip and self.addrs.get(slot) == machine.ip and slot in self.registered:
                job = self.job_on(slot)
                if job is not None and job.ends_s is not None and machine.slurmd and by_meshd:
                    raise Violation(f"{machine.token} was ended under job {job.id}")
                if job is not None:
                    self.put_back(job, self.clock.t_s + REQUEUED_WAITS_S)
                self.registered.discard(slot)
                self.down.add(slot)
        machine.ended_s = self.clock.t_s
        machine.ended_listed_until_s = self.clock.t_s + self.rng.uniform(0, 100)
        machine.slurmd = False

    # -- time -----------------------------------------------------------------------------------------------------

    def schedule(self) -> None:
        """Slurm gives nodes to jobs: those that are up first. It starts those whose nodes are all up."""
        self.off_s = {slot: until_s for slot, until_s in self.off_s.items() if self.clock.t_s < until_s}
        for slot in [s for s in self.leaving if self.job_on(s) is None and s not in self.powering]:
            self.switch_off(slot)
        for job in self.queue.values():
            if not job.slots and job.begin_s <= self.clock.t_s:
                closed = {*self.drains, *self.down, *self.leaving, *self.off_s}
                free = [s for s in self.slots if s not in closed and not self.job_on(s)]
                free.sort(key=lambda slot: (slot not in self.registered, slot not in self.powering, slot))
                if len(free) >= job.count:
                    job.slots = tuple(free[: job.count])
                    self.powering |= set(job.slots) - self.registered
            if job.slots and job.ends_s is None and self.registered.issuperset(job.slots):
                job.ends_s = self.clock.t_s + job.run_s
                self.ran += 1

    def submit(self, count: int) -> None:
        self.submitted += 1
        job = Job(str(self.submitted), count, self.rng.uniform(5, 200), self.clock.t_s, batch=not self.chance(0.1))
        self.queue[job.id] = job

    def set_clock(self) -> None:
        """What was to be tried later may be tried at once then."""
        before = self.clock.shift
        super().set_clock()
        for job in self.queue.values() if self.clock.shift != before else ():
            job.given_up_until_s = 0.0

    def move_on(self, delay_s: float) -> None:
        self.clock.t_s += delay_s
        t = self.clock.t_s
        self.set_clock()
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
        for machine in self.machines.values():
            running = machine.offer.spot and machine.ip and machine.ended_s is None and machine.id not in self.notices
            if running and self.chance(0.02):
                self.notices[machine.id] = machine.dies_s = t + self.rng.choice((30.0, 120.0))
        self.schedule()


class QueueDaemon(Daemon):
    """One life of meshd beside such a Slurm."""

    world: QueueWorld

    def __init__(self, world: QueueWorld, path: Path, policy: Policy, offers: tuple[Offer, ...] = OFFERS) -> None:
        self.powered_up = PoweredUp()
        self.needless: dict[str, int] = {}
        self.waiting: dict[str, int] = {}
        super().__init__(world, path, replace(POOL, max_usd_per_hour=world.limit_usd), policy, offers)
        pools = {"h100": PoolSettings(gpu="h100", max_nodes=SLOTS, providers=("cloud",), spot="if_cheaper")}
        settings = Settings.model_construct(cluster=ClusterSettings(name="lab"), pools=pools)
        self.slots = SlotController(
            live_settings(settings), self.journal, world, world.clock, self,
            plan=lambda: self.reconciler.last.plan if self.reconciler.last is not None else None,
            waiting=tuple, changed=lambda: None,
        )  # fmt: skip

    def desired(self) -> Desired:
        usd, now = self.world.budget_usd, self.world.clock.now()
        limits = {ALL: BudgetLimits(usd_per_hour=usd)} if usd is not None else {}
        return replace(super().desired(), budget=budget_of(limits, {}, self.journal.machines(), {}, now))

    @property
    def current(self) -> Observation[SlurmView]:
        """What Slurm said last."""
        return self.reconciler.last.snapshot.slurm if self.reconciler.last is not None else Unavailable("", START)

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
            tailnet=self.lag.heard(self.fresh(
                "tailnet", TailnetView("100.64.0.1", "head", True, (), peers),
                down=world.clock.t_s < world.tailnet_down_until_s,
            )),
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
        with suppress(Crash):
            await self.slots.reconcile()

    def hear_notices(self) -> None:
        """Agents tell that their cloud takes the machine back."""
        world = self.world
        for instance, ends_s in world.notices.items():
            machine = world.machines[instance]
            record = self.journal.machine(machine.token)
            if record is None or machine.ended_s is not None or record.preempted_at is not None:
                continue
            if record.phase in IN_SLURM and record.facts is not None and record.instance_id == instance:
                ends_at = world.clock.now() + timedelta(seconds=ends_s - world.clock.t_s)
                self.machine_store.node_change(
                    record.name, EventKind.SPOT_NOTICE, "its cloud takes it back", preempted_at=ends_at
                )

    def could_move(self, refused: RefusedDemand) -> bool:
        """Whether a gang that waits for its place for long could be in another one."""
        now = self.world.clock.now()
        if self.world.limit_usd or self.world.budget_usd or refused.until <= now + timedelta(seconds=MOVES_S):
            return False
        theirs = {slot for job in self.world.queue.values() if job.id in refused.jobs for slot in job.slots}
        here = {m.offer.region for m in self.journal.machines() if m.slot in theirs and m.phase in COUNTS_AS_SUPPLY}
        cooldowns = self.journal.cooldowns(now)
        usable = [o for o in self.offers if not any(key in cooldowns for key in scopes("h100", o))]
        return any(offer.region not in here for offer in usable)

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
        idle = [slot for slot in world.registered if slot in ready - closed and world.job_on(slot) is None]
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
    world = QueueWorld(rng, SimClock(START), lies=random.Random(-1 - seed))
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
                del world.queue[job.id]  # somebody cancels it, and nobody comes after it
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


def _at_rest(daemon: Daemon, world: QueueWorld, target: int) -> bool:
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
    world = QueueWorld(random.Random(1), SimClock(START), faults=False)
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
    world = QueueWorld(random.Random(1), SimClock(START), faults=False, limit_usd=limit_usd, budget_usd=budget_usd)
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
