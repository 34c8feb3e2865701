"""Runs the user's cluster through a load, and sums up what came of it."""

from __future__ import annotations

import logging
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import fmean

import structlog

from meshd.config import Settings
from meshd.config.pools import pool_of
from meshd.daemon.live_settings import LiveSettings
from meshd.errors import MeshdError
from meshd.model.desired import Promise, Target
from meshd.model.ledger import Life
from meshd.plan.promise import suiting
from meshd.provider_api import Offer, ProviderCapabilities
from meshd.simulate.clock import SimClock
from meshd.simulate.cluster import ClusterLife, ClusterWorld, JobLog
from meshd.simulate.faults import Violation
from meshd.simulate.load import FaultTable, JobSpec, Scenario
from meshd.simulate.schema import KindRow, PoolRow, SimulationView, TroubleRow, WaitRow
from meshd.simulate.waits import Waits

TAIL_S = 7 * 86400.0
"""After the last job has come, the simulation goes on for at most so long, until all have ended."""
LEAVE_S = 6 * 3600.0
"""After the last job has ended, it goes on for at most so long, until all idle machines are given back."""
STEP_LEAST_S = 0.001
MICROS = 1_000_000
Told = Callable[[float, int, int, int], None]
"""Told how far it is: simulated seconds, jobs that have ended, jobs in all, and the machines there are."""


class SimulationFault(MeshdError):
    """meshd did in the simulation what it must never do: that is a fault of meshd, or of the simulation."""


@dataclass(frozen=True, slots=True)
class Market:
    """What can be rented.

    Attributes:
        able: the clouds.
        offers: by cloud.
        priced: where the prices come from and of when they are, for people.
    """

    able: Mapping[str, ProviderCapabilities]
    offers: Mapping[str, tuple[Offer, ...]]
    priced: tuple[str, ...] = ()

    def without(self, faults: Iterable[FaultTable]) -> Counter[str]:
        """The faults that concern nothing that can be rented, in words."""
        every = [offer for found in self.offers.values() for offer in found]
        return Counter(
            f"{fault.words}: nothing of it can be rented"
            for fault in faults
            if not any(fault.concerns(offer.provider, offer.key, spot=offer.spot) for offer in every)
        )


async def simulate(
    settings: Settings, market: Market, jobs: Sequence[JobSpec], scenario: Scenario, seed: int, told: Told
) -> SimulationView:
    """What would be rented, how long jobs would wait, and what would be paid.

    Args:
        settings: the user's.
        market: what can be rented.
        jobs: in the order in which they come.
        scenario: what goes wrong, how clouds are, and targets.
        seed: of all chance. The names of machines are made by chance of their own, which changes nothing.
        told: called now and then.
    """
    start = datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    driven = frozenset(name for name, pool in settings.pools.items() if settings.from_queue(pool))
    world = ClusterWorld(
        random.Random(seed), SimClock(start), faults=False, in_order=True,
        sizes={name: pool.max_nodes for name, pool in settings.pools.items()}, able=market.able,
        boot_range_s=scenario.cloud.boot, troubles=scenario.faults, driven=driven,
    )  # fmt: skip
    Violation.seen.clear()
    shm = Path("/dev/shm")  # noqa: S108 - a directory of its own is made in it
    with (
        _quiet(),
        tempfile.TemporaryDirectory(prefix="meshd-simulate-", dir=shm if shm.is_dir() else None) as directory,
    ):
        live = LiveSettings(settings, Path(directory) / "settings.toml", list)
        life = ClusterLife(world, Path(directory) / "journal.db", live, _wanted(settings, market))
        try:
            promised = life.promise()
            for pool, gpus in scenario.targets.items():
                life.journal.set_target(Target(pool, gpus, at=world.clock.now()), "asked for", world.clock.now())
            fit, unfit = fitting(jobs, settings, promised)
            world.coming = list(reversed(fit))
            peaks = await _live(life, max((j.at_s for j in fit), default=0.0), told)
            return _view(life, peaks, unfit, market, seed)
        finally:
            await life.kill()


@contextmanager
def _quiet() -> Iterator[None]:
    """What the simulated daemon logs is of no use to anybody."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)


def _wanted(settings: Settings, market: Market) -> dict[str, tuple[Offer, ...]]:
    """By cloud, the offers that some pool may rent: the planner would look at the others in vain, in each tick."""
    pools = [pool_of(name, settings, market.able, able=market.able) for name in settings.pools]
    every = [offer for found in market.offers.values() for offer in found]
    keys = {offer.key for pool in pools for offer in suiting(every, pool)}
    return {name: tuple(offer for offer in found if offer.key in keys) for name, found in market.offers.items()}


def fitting(
    jobs: Sequence[JobSpec], settings: Settings, promised: Mapping[str, Promise]
) -> tuple[list[JobSpec], Counter[str]]:
    """The jobs that can run at all; how many can not, by why."""
    fit, unfit = [], Counter[str]()
    for job in jobs:
        if why := _why_never(job, settings, promised):
            unfit[why] += 1
        else:
            fit.append(job)
    return fit, unfit


def _why_never(job: JobSpec, settings: Settings, promised: Mapping[str, Promise]) -> str:
    pool = settings.pools.get(job.pool)
    if pool is None:
        return f"there is no pool {job.pool}"
    if job.nodes > pool.max_nodes:
        return f"pool {job.pool} has {pool.max_nodes} slots, and they ask for more nodes"
    if not settings.from_queue(pool):
        return ""
    promise = promised.get(job.pool)
    if promise is None:
        return f"nothing that is offered suits pool {job.pool}"
    if (job.gpus or 0) > promise.gpus:
        return f"a node of pool {job.pool} promises {promise.gpus} GPUs, and they ask for more"
    if (job.cpus or 0) > promise.cpus:
        return f"a node of pool {job.pool} promises {promise.cpus} CPUs, and they ask for more"
    return ""


async def _live(life: ClusterLife, last_s: float, told: Told) -> Counter[str]:
    """Until all jobs have ended and what they needed is given back; the most machines of each pool at once."""
    world, peaks = life.world, Counter[str]()
    end_s, quiet_s, look_s, in_all = last_s + TAIL_S, None, 0.0, len(world.coming)
    while world.clock.t_s < end_s:
        world.move_on(max(STEP_LEAST_S, min(look_s, world.next_event_s()) - world.clock.t_s))
        if world.job_ended:
            world.job_ended, look_s = False, min(look_s, life.sees_end_s())
        if not world.rang and world.clock.t_s < look_s:
            continue
        world.rang = False
        life.agents_act()
        life.hear_notices()
        life.reconciler.tick()
        await life.care_for_slots()
        await life.settle()
        if life.reconciler.last is not None:
            world.waits.hear(life.reconciler.last.plan)
        if Violation.seen:
            raise SimulationFault(Violation.seen[0])
        look_s = life.next_look_s()
        machines = life.journal.machines()
        there = Counter(str(m.pool) for m in machines)
        peaks = Counter({pool: max(peaks[pool], there[pool]) for pool in {*peaks, *there}})
        left = len(world.coming) + len(world.queue)
        told(world.clock.t_s, in_all - left, in_all, len(machines))
        if world.coming or world.queue:
            quiet_s = None
            continue
        quiet_s = world.clock.t_s if quiet_s is None else quiet_s
        if not machines or world.clock.t_s - quiet_s > LEAVE_S:
            break
    return peaks


def _view(
    life: ClusterLife, peaks: Mapping[str, int], unfit: Counter[str], market: Market, seed: int
) -> SimulationView:
    world, now = life.world, life.world.clock.now()
    lives = life.ledger.lives(world.clock.start, now + timedelta(days=1))
    logs = list(world.log.values())
    pools = [
        _pool_row(
            name, [log for log in logs if log.spec.pool == name], [x for x in lives if x.pool == name], peaks, now
        ).model_copy(update={"waited": _waited(world.waits, name)})
        for name in life.live.settings.pools
    ]
    whole = _pool_row("", logs, lives, {"": 0}, now)
    return SimulationView(
        simulated_s=round(world.clock.t_s), seed=seed, pools=pools,
        all_pools=whole.model_copy(update={"machines_peak": sum(peaks.values())}),
        rented=_kinds(lives, now), never=[TroubleRow(text=text, count=count) for text, count in unfit.most_common()],
        orders_refused=world.refused, taken_back=world.taken_back, priced=list(market.priced),
    )  # fmt: skip


def _pool_row(
    name: str, logs: Sequence[JobLog], lives: Sequence[Life], peaks: Mapping[str, int], now: datetime
) -> PoolRow:
    waits = sorted(log.started_s - log.spec.at_s for log in logs if log.started_s is not None)
    hours = sum(_hours(life, now) for life in lives)
    used = sum(log.nodes_s for log in logs) / 3600
    return PoolRow(
        pool=name,
        jobs=len(logs),
        started=len(waits),
        restarted=sum(log.starts > 1 for log in logs),
        wait_mean_s=_round(fmean(waits)) if waits else None,
        wait_median_s=_at(waits, 0.5),
        wait_p90_s=_at(waits, 0.9),
        wait_max_s=_at(waits, 1.0),
        machines=len({life.machine for life in lives}),
        machines_peak=peaks.get(name, 0),
        machine_hours=round(hours, 3),
        job_node_hours=round(used, 3),
        usd=_usd(lives, now),
    )


def _waited(waits: Waits, pool: str) -> list[WaitRow]:
    found = Counter({code: round(seconds) for (name, code), seconds in waits.seconds.items() if name == pool})
    return [WaitRow(code=code, job_s=job_s) for code, job_s in found.most_common() if job_s > 0]


def _kinds(lives: Sequence[Life], now: datetime) -> list[KindRow]:
    found: dict[tuple[str, str, str, bool], list[Life]] = {}
    for life in lives:
        found.setdefault((life.provider, life.region, life.instance_type, life.spot), []).append(life)
    rows = [
        KindRow(
            provider=provider, region=region, instance_type=kind, spot=spot, machines=len({x.machine for x in some}),
            machine_hours=round(sum(_hours(life, now) for life in some), 3), usd=_usd(some, now),
        )
        for (provider, region, kind, spot), some in found.items()
    ]  # fmt: skip
    return sorted(rows, key=lambda row: (-row.usd, row.provider, row.instance_type))


def _hours(life: Life, now: datetime) -> float:
    return (life.billed_until(now) - life.since).total_seconds() / 3600


def _usd(lives: Sequence[Life], now: datetime) -> float:
    return round(sum(life.cost(life.since, life.billed_until(now)) for life in lives) / MICROS, 2)


def _at(ordered: Sequence[float], part: float) -> float | None:
    """The value below which this part of them lies."""
    return _round(ordered[min(len(ordered) - 1, int(part * len(ordered)))]) if ordered else None


def _round(value: float) -> float:
    return round(value, 1)
