"""The metrics: how everything stands, as a scrape sees it, and the server of their page."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime

import structlog

from meshd.api.listen import SocketError
from meshd.api.metrics import MetricsServer
from meshd.api.schema import ProblemView
from meshd.codes import ProblemCode
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
from meshd.model.machine import COSTS_MONEY, Machine, Phase, UnfitReason
from meshd.model.observed import Snapshot
from meshd.obs.metrics import Metrics, MetricsSnapshot
from meshd.plan.budget import used
from meshd.plan.fitness import count, is_ready
from meshd.plan.paths import demands_direct, head_path
from meshd.plan.plan_input import ClusterView
from meshd.plan.scale import units
from meshd.runtime.clock import Clock
from meshd.store.journal import Journal
from meshd.store.ledger import Ledger

SEVERITIES = ("error", "warning", "info")


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
) -> MetricsSnapshot:
    """Everything at this moment. Pools and severities that have nothing are there with 0: alerts can rely on them."""
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
            source.name: max(0.0, (now - at).total_seconds())
            for source in seen
            if (at := source.at if source.ok else source.since)
        },
        breaker_open={name: breaker.is_open for name, breaker in breakers.items()},
        reconfigures=reconfigures,
        steps_in_flight=steps_in_flight,
        tick_age_s=max(0.0, (now - ticked_at).total_seconds()) if ticked_at else None,
        auth_key_dead=bool(snapshot.dead_key),
        frozen=desired.freeze is not None,
        cost_usd={key: value / MICROS for key, value in (cost or {}).items()},
        job_cost_usd={key: value / MICROS for key, value in (job_cost or {}).items()},
        budget_usd={(one.scope, one.period.value): one.limit / MICROS for one in limits},
        budget_spent_usd={(one.scope, one.period.value): one.spent / MICROS for one in limits},
    )


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
        )  # fmt: skip


RETRY_S = 15.0
log = structlog.get_logger(__name__)


class MetricsService(Reporter):
    """Serves the metrics where the settings say. An address that is taken stops nothing else: it is tried again.

    Args:
        metrics: what is served.
        live: the settings: the address, or none.
        clock: for the pause between two tries.
    """

    def __init__(self, metrics: Metrics, live: LiveSettings, clock: Clock) -> None:
        self._metrics = metrics
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
            server = MetricsServer(self._metrics.registry)
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
