"""The metrics: how everything stands, as a scrape sees it, and the server of their page."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import fmean

import structlog

from meshd.api.listen import SocketError
from meshd.api.monitoring import MetricsServer, MonitoringPages
from meshd.api.schema import ProblemView
from meshd.codes import ProblemCode
from meshd.daemon.active_rotation import ActiveRotation
from meshd.daemon.head_api.service import HeadService
from meshd.daemon.head_api.views import sources
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.machines.wiring import MachineParts
from meshd.daemon.providers.breaker import Breaker
from meshd.daemon.providers.guards import Guards
from meshd.daemon.reporting import Reporter, problem
from meshd.daemon.slurm.controller import SlurmFilesController
from meshd.model.budget import MICROS
from meshd.model.desired import Desired
from meshd.model.ids import slot_index
from meshd.model.machine import COSTS_MONEY, Machine, Phase, UnfitReason
from meshd.model.observed import SlurmJob, Snapshot, value_of
from meshd.obs.metrics import MetricsSnapshot
from meshd.plan.budget import used
from meshd.plan.fitness import count, is_ready
from meshd.plan.paths import FRESH_S, demands_direct, head_path
from meshd.plan.plan_input import ClusterView
from meshd.plan.scale import units
from meshd.plan.waiting import Wait, WaitingJob
from meshd.runtime.clock import Clock
from meshd.store.journal import Journal
from meshd.store.ledger import Ledger

SEVERITIES = ("error", "warning", "info")
JOB_STATES = ("pending", "configuring", "running", "suspended", "completing")
OTHER = "other"
"""The state of a job that is in none of these; Slurm has many."""
ROTATED = ("auth", "munge")
NODE_PHASES = frozenset({Phase.TESTING, Phase.READY, Phase.DRAINING})


@dataclass(frozen=True, slots=True)
class KeyTimes:
    """What is known of the cluster's keys.

    Attributes:
        auth_key_ends_at: when the shared auth key ends; None when that is not known.
        munge_key_made_at: when the munge key was made; None when that is not known.
        rotation: the one that is active.
    """

    auth_key_ends_at: datetime | None = None
    munge_key_made_at: datetime | None = None
    rotation: ActiveRotation | None = None


def metrics_snapshot(
    *,
    machines: Sequence[Machine],
    desired: Desired,
    snapshot: Snapshot,
    problems: Iterable[ProblemView],
    breakers: Mapping[str, Breaker],
    reconfigures: int,
    steps_in_flight: int,
    ticked_at: datetime | None,
    now: datetime,
    cost: Mapping[tuple[str, str], int] | None = None,
    job_cost: Mapping[tuple[str, str, str], int] | None = None,
    partitions: Mapping[str, str] | None = None,
    waiting: Iterable[WaitingJob] = (),
    keys: KeyTimes | None = None,
) -> MetricsSnapshot:
    """Everything at this moment. Pools and severities that have nothing are there with 0: alerts can rely on them.

    Args: see MetricsReader. `partitions` has the partition of each pool.
    """
    cluster_view = ClusterView.of(snapshot, desired.policy, now)
    unfit = {(pool, why.value): 0 for pool in desired.pools for why in UnfitReason}
    unfit.update({(pool, why.value): number for (pool, why), number in count(machines, cluster_view).items()})
    ready = Counter(dict.fromkeys(desired.pools, 0))
    usd: defaultdict[tuple[str, str], float] = defaultdict(float)
    for machine in machines:
        if is_ready(machine, cluster_view):
            ready[machine.pool] += units(machine)
        if machine.phase in COSTS_MONEY:
            usd[machine.pool, machine.provider] += machine.usd_per_hour
    paths = {
        (str(m.pool), str(m.slot), "direct" if demands_direct(m, desired.policy) else "any"): path
        for m in machines
        if m.phase in {Phase.TESTING, Phase.READY} and (path := head_path(m, cluster_view)) is not None
    }
    nodes = {(str(m.pool), str(m.slot)): m for m in machines if m.phase in NODE_PHASES}
    reports = {key: report for key, m in nodes.items() if (report := cluster_view.report(m)) is not None}
    fresh = {key: report for key, report in reports.items() if _age_s(report.at, now) <= FRESH_S}
    keys = keys or KeyTimes()
    rotated = keys.rotation
    seen = sources(snapshot, now)
    limits = list(used(desired.budget, now))
    return MetricsSnapshot(
        machines=Counter((m.pool, m.provider, m.phase.value) for m in machines),
        gpus_ready=ready,
        nodes_unfit=unfit,
        path_direct={key: path.direct for key, path in paths.items()},
        path_rtt_s={key[:2]: path.rtt_s for key, path in paths.items()},
        gpus_wanted={
            n: target.gpus for n, pool in desired.pools.items() if (target := desired.target(pool)) is not None
        },
        usd_per_hour=usd,
        problems={**dict.fromkeys(SEVERITIES, 0), **Counter(p.severity for p in problems)},
        source_up={source.name: source.ok for source in seen},
        source_age_s={
            source.name: _age_s(at, now) for source in seen if (at := source.at if source.ok else source.since)
        },
        breaker_open={name: breaker.is_open for name, breaker in breakers.items()},
        reconfigures=reconfigures,
        steps_in_flight=steps_in_flight,
        tick_age_s=_age_s(ticked_at, now) if ticked_at else None,
        auth_key_dead=bool(snapshot.dead_key),
        frozen=desired.freeze is not None,
        cost_usd={key: value / MICROS for key, value in (cost or {}).items()},
        job_cost_usd={key: value / MICROS for key, value in (job_cost or {}).items()},
        budget_usd={(one.scope, one.period.value): one.limit / MICROS for one in limits},
        budget_spent_usd={(one.scope, one.period.value): one.spent / MICROS for one in limits},
        oldest_in_phase_s=_oldest_s(machines, now),
        jobs=_jobs(snapshot, desired, partitions or {}),
        jobs_waiting=_jobs_waiting(desired, waiting),
        node_info={
            (*key, m.provider, m.region or m.offer.region, m.offer.instance_type): True for key, m in nodes.items()
        },
        node_load1={key: report.load1 for key, report in fresh.items()},
        node_heartbeat_age_s={key: _age_s(report.at, now) for key, report in reports.items()},
        node_gpu_use={
            key: fmean(gpu.utilization_percent for gpu in report.gpus) / 100
            for key, report in fresh.items()
            if report.gpus
        },
        node_gpu_memory_b={
            key: float(sum(gpu.memory_used_mib for gpu in report.gpus) * 2**20)
            for key, report in fresh.items()
            if report.gpus
        },
        auth_key_ends_at=keys.auth_key_ends_at.timestamp() if keys.auth_key_ends_at else None,
        munge_key_made_at=keys.munge_key_made_at.timestamp() if keys.munge_key_made_at else None,
        rotation_active_s={
            key: _age_s(rotated.since, now) if rotated is not None and rotated.key == f"{key} key" else 0.0
            for key in ROTATED
        },
    )


def _age_s(at: datetime, now: datetime) -> float:
    return max(0.0, (now - at).total_seconds())


def _oldest_s(machines: Iterable[Machine], now: datetime) -> dict[tuple[str, str, str], float]:
    found: dict[tuple[str, str, str], float] = {}
    for m in machines:
        key = (str(m.pool), m.provider, m.phase.value)
        found[key] = max(found.get(key, 0.0), _age_s(m.phase_since, now))
    return found


def _jobs(snapshot: Snapshot, desired: Desired, partitions: Mapping[str, str]) -> dict[tuple[str, str], int]:
    """The jobs of each pool, by state; {} while Slurm cannot be read. Jobs elsewhere do not count."""
    slurm = value_of(snapshot.slurm)
    if slurm is None:
        return {}
    found = {(pool, state): 0 for pool in desired.pools for state in (*JOB_STATES, OTHER)}
    for job in slurm.jobs:
        if pool := _pool_of(job, desired, partitions):
            state = job.state.lower()
            found[pool, state if state in JOB_STATES else OTHER] += 1
    return found


def _pool_of(job: SlurmJob, desired: Desired, partitions: Mapping[str, str]) -> str:
    """The pool of its first node, or of the first partition that it may run in; "" for none."""
    asked = job.partition.split(",")
    for pool in desired.pools:
        if slot_index(pool, job.nodes[0]) if job.nodes else partitions.get(pool, pool) in asked:
            return pool
    return ""


def _jobs_waiting(desired: Desired, waiting: Iterable[WaitingJob]) -> dict[tuple[str, str], int]:
    found = {(name, wait.value): 0 for name, pool in desired.pools.items() if pool.from_queue for wait in Wait}
    return {**found, **Counter((one.pool, one.wait.value) for one in waiting)}


class MetricsReader:
    """Calling it returns the snapshot of this moment.

    Args:
        journal: the machines.
        desired: what is desired now.
        snapshot: what every source said last.
        head: knows all problems.
        guards: the providers' breakers.
        slurm_files: counts reconfigures.
        machines: the last tick, and the steps in flight.
        ledger: what was spent.
        live: the settings.
        waiting: the jobs that wait for machines.
        keys: what is known of the cluster's keys.
        clock: time.
    """

    def __init__(
        self,
        journal: Journal,
        desired: Callable[[], Desired],
        snapshot: Callable[[], Snapshot],
        head: HeadService,
        guards: Guards,
        slurm_files: SlurmFilesController,
        machines: MachineParts,
        ledger: Ledger,
        live: LiveSettings,
        waiting: Callable[[], Iterable[WaitingJob]],
        keys: Callable[[], KeyTimes],
        clock: Clock,
    ) -> None:
        self._journal = journal
        self._desired = desired
        self._snapshot = snapshot
        self._head = head
        self._guards = guards
        self._slurm_files = slurm_files
        self._machines = machines
        self._ledger = ledger
        self._live = live
        self._waiting = waiting
        self._keys = keys
        self._clock = clock

    def __call__(self) -> MetricsSnapshot:
        """Everything at this moment."""
        tick, now = self._machines.controller.last, self._clock.now()
        return metrics_snapshot(
            machines=self._journal.machines(), desired=self._desired(), snapshot=self._snapshot(),
            problems=self._head.problems(), breakers=self._guards.breakers(),
            reconfigures=self._slurm_files.view().reconfigures, steps_in_flight=self._machines.executor.in_flight,
            ticked_at=tick.at if tick else None, now=now, cost=self._ledger.totals(now),
            job_cost=self._ledger.job_costs(),
            partitions={name: pool.partition or name for name, pool in self._live.settings.pools.items()},
            waiting=self._waiting(), keys=self._keys(),
        )  # fmt: skip


RETRY_S = 15.0
log = structlog.get_logger(__name__)


class MetricsService(Reporter):
    """Serves the metrics where the settings say. An address that is taken stops nothing else: it is tried again.

    Args:
        pages: what is served.
        live: the settings: the address, or none.
        clock: for the pause between two tries.
    """

    def __init__(self, pages: MonitoringPages, live: LiveSettings, clock: Clock) -> None:
        self._pages = pages
        self._live = live
        self._clock = clock
        self._problem = ""

    def problems(self) -> Iterable[ProblemView]:
        """Why nobody can read them."""
        if self._problem:
            cure = "free the address, or set metrics.listen to another one"
            yield problem(ProblemCode.METRICS_NOT_SERVED, "warning", self._problem, cure)

    async def run(self) -> None:
        """Serve until cancelled."""
        address = self._live.settings.metrics.address
        if address is None:
            await asyncio.Event().wait()
            return
        while True:
            server = MetricsServer(self._pages)
            try:
                await server.start(*address)
            except SocketError as error:
                if not self._problem:
                    log.warning("metrics_not_served", reason=str(error))
                self._problem = f"the metrics are not served: {error}"
                await self._clock.sleep(RETRY_S)
                continue
            self._problem = ""
            try:
                await asyncio.Event().wait()
            finally:
                await server.stop()
