"""PURE: the pools of the settings, as planner and promise know them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from meshd.config.models import PoolSettings, Settings
from meshd.model.budget import ALL
from meshd.model.desired import Pool
from meshd.plan.promise import Fixed
from meshd.plan.provider_capabilities import rents_pods
from meshd.provider_api import ProviderCapabilities

CPUS_MIN = 1
MEMORY_MIN_MIB = 1024
"""The smallest machine that is rented where the settings do not say, and what a free slot promises then."""


def pool_of(
    name: str,
    settings: Settings,
    enabled: Iterable[str],
    *,
    able: Mapping[str, ProviderCapabilities] | None = None,
    prices_since: datetime | None = None,
) -> Pool:
    """A pool of the settings. One that names no provider takes every enabled one.

    Args:
        name: the pool's.
        settings: the settings.
        enabled: the enabled providers.
        able: what they can do; None when that is not known.
        prices_since: see Pool.
    """
    pool, there = settings.pools[name], tuple(enabled)
    providers = tuple(p for p in pool.providers or there if p in there)
    pods = frozenset(n for n, can in able.items() if rents_pods(can)) if able is not None else frozenset()
    with_spot = frozenset(n for n in providers if n in able and able[n].spot) if able is not None else None
    return Pool(
        name=name,
        gpu=pool.gpu,
        gpus_per_node=pool.gpus_per_node,
        max_nodes=pool.max_nodes,
        providers=providers,
        max_usd_per_gpu_hour=pool.max_usd_per_gpu_hour,
        spot=pool.spot,
        pods=settings.pod_policy(pool),
        cpus_min=pool.cpus_min or CPUS_MIN,
        memory_min_mib=pool.memory_min_mib or MEMORY_MIN_MIB,
        gpus_per_node_max=pool.gpus_per_node_max,
        gpu_memory_min_gib=pool.gpu_memory_min_gib,
        arch=pool.arch,
        regions=pool.regions,
        max_usd_per_hour=pool.max_usd_per_hour,
        overshoot_max_gpus=pool.overshoot_max_gpus,
        min_gpus=pool.min_gpus,
        idle_timeout_s=pool.idle_timeout_s,
        prices_since=prices_since,
        budgeted=bool(settings.budgets.keys() & {ALL, name}),
        replace_unfit=pool.replace_unfit,
        spread=pool.spread,
        pod_providers=pods,
        with_spot=with_spot,
    )


def fixed_of(pool: PoolSettings) -> Fixed:
    """What the settings say of each slot of a pool."""
    return Fixed(pool.cpus_min, pool.memory_min_mib)
