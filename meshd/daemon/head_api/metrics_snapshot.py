"""How everything stands, for a scrape of the metrics. No I/O."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from meshd.api.schema import ProblemView
from meshd.daemon.head_api.views import sources
from meshd.daemon.providers.breaker import Breaker
from meshd.model.desired import Desired
from meshd.model.machine import COSTS_MONEY, Machine, UnfitReason
from meshd.model.observed import Snapshot
from meshd.obs.metrics import Standing
from meshd.plan.fitness import count, is_ready
from meshd.plan.plan_input import ClusterView
from meshd.plan.scale import units

SEVERITIES = ("error", "warning", "info")


def standing(
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
) -> Standing:
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
    seen = sources(snapshot, now)
    return Standing(
        machines=Counter((m.pool, m.provider, m.phase.value) for m in machines),
        gpus_ready=ready,
        nodes_unfit=unfit,
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
    )
