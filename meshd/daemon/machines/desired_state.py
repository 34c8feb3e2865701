"""What the planner should bring about: settings, targets and cooldowns, put together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol

from meshd.config import PriceSettings, Settings, TimingSettings
from meshd.config.pools import pool_of
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.observe.source import Observed
from meshd.model.budget import Budget, Spent
from meshd.model.desired import Desired, Policy, Pool, Promise
from meshd.model.freeze import Freeze
from meshd.model.host import Host
from meshd.model.observed import SlurmView, value_of
from meshd.model.restored import Restored
from meshd.plan.ledger import budget_of
from meshd.plan.provider_capabilities import limits, rents_pods
from meshd.provider_api import Provider
from meshd.runtime.clock import Clock
from meshd.store.journal import Journal
from meshd.store.launches import Launches

DAY_S = 86400.0
LATE_SLACK_S = 10.0
"""The longest time from the end of a held poll to the agent's next one."""


def pools(
    settings: Settings,
    enabled: Iterable[str],
    now: datetime,
    *,
    shapes_fixed: bool,
    able: Mapping[str, Provider] | None = None,
    promises: Mapping[str, Promise] | None = None,
    power_saving: bool = False,
) -> Mapping[str, Pool]:
    """The pools as the planner knows them. A pool that names no provider takes every enabled one.

    `able` are the providers themselves, for what they can do; None when that is not known.

    `promises` are those of the pools that Slurm's queue drives. With `power_saving` it does drive them: Slurm has its
    part of the settings in force.

    With `shapes_fixed` only machines of a pool's smallest shape will do: Slurm could use no more of a larger one.
    """
    prices = settings.prices
    since = now - timedelta(days=prices.stale_after_d) if prices.budget_needs_fresh else None
    providers, can = tuple(enabled), {n: p.capabilities for n, p in able.items()} if able is not None else None
    found = {name: pool_of(name, settings, providers, able=can, prices_since=since) for name in settings.pools}
    if power_saving:
        found = {n: replace(pool, from_queue=settings.from_queue(settings.pools[n])) for n, pool in found.items()}
    if promises:
        found = {name: replace(pool, promise=promises.get(name)) for name, pool in found.items()}
    return {n: replace(pool, gpus_per_node_max=None) for n, pool in found.items()} if shapes_fixed else found


def pod_limits(providers: Mapping[str, Provider]) -> dict[str, str]:
    """The providers that rent pods, each with what its pods lack, for people."""
    found = {name: provider.capabilities for name, provider in providers.items()}
    return {name: limits(systemd=can.systemd, tun=can.tun) for name, can in found.items() if rents_pods(can)}


def policy(
    timing: TimingSettings,
    prices: PriceSettings,
    *,
    may_change_devices: bool,
    providers: Mapping[str, Provider],
    poll_hold_s: float = 25.0,
    direct_pools: frozenset[str] = frozenset(),
) -> Policy:
    """The deadlines and limits as the planner knows them.

    Args:
        timing: the deadlines.
        prices: how old prices may be.
        may_change_devices: the tailnet's API can be asked to change devices.
        providers: the enabled ones.
        poll_hold_s: for how long the node API holds a poll: it is the pace of the heartbeats.
        direct_pools: the pools whose machines need a direct path to the head.
    """
    return Policy(
        heartbeat_late_s=poll_hold_s + LATE_SLACK_S,
        unfit_grace_s=timing.unfit_grace_s,
        replace_unfit_after_s=timing.replace_unfit_after_s,
        replace_cooldown_s=timing.breaker_cooldown_s,
        billing={name: provider.capabilities for name, provider in providers.items()},
        idempotent_launch=frozenset(n for n, provider in providers.items() if provider.capabilities.idempotent_launch),
        gang_max={name: most for name, one in providers.items() if (most := one.capabilities.gang_max) > 1},
        pod_limits=pod_limits(providers),
        direct_pools=direct_pools,
        launch_timeout_s=timing.launch_timeout_s,
        launch_settle_s=timing.launch_settle_s,
        boot_timeout_s=timing.boot_timeout_s,
        join_timeout_s=timing.join_timeout_s,
        configure_timeout_s=timing.configure_timeout_s,
        test_timeout_s=timing.test_timeout_s,
        heartbeat_lost_s=timing.heartbeat_lost_s,
        listing_lag_s=timing.listing_lag_s,
        orphan_grace_s=timing.orphan_grace_s,
        terminate_again_s=timing.terminate_again_s,
        lost_after_s=timing.lost_after_s,
        may_change_devices=may_change_devices,
        price_stale_after_s=prices.stale_after_d * DAY_S,
    )


class Shapes(Protocol):
    """What Slurm's files can say of a pool's machines."""

    @property
    def shapes_fixed(self) -> bool:
        """All nodes of a pool have to be of its smallest shape."""
        ...


class PoolPromises(Protocol):
    """What the slots of pools promise."""

    @property
    def current(self) -> Mapping[str, Promise]:
        """By pool, where it is known."""
        ...


@dataclass(frozen=True, slots=True)
class _PoolsOf:
    """What the pools follow from, but for the time."""

    settings: Settings
    promises: Mapping[str, Promise]
    shapes_fixed: bool
    power_saving: bool


class Spending(Protocol):
    """What is spent."""

    def spent(self, now: datetime) -> Mapping[str, Spent]:
        """By pool, and for all together (""), in the day and the month of `now`. Reads memory."""
        ...


class DesiredState:
    """Calling it returns what is desired at this moment. Reads memory only.

    Args:
        live: the settings.
        journal: targets and cooldowns.
        providers: the enabled ones.
        shapes: what Slurm's files can say.
        promises: what the slots of pools promise.
        slurm: what Slurm said last.
        clock: time.
        ledger: what is spent.
        may_change_devices: the tailnet's API can be asked to change devices.
        hosts: owned machines, and invitations.
        freeze: the freeze that holds; None for none.
        restored: the clouds that were not listed since an older journal was restored; None for none.
    """

    def __init__(
        self,
        live: LiveSettings,
        journal: Journal,
        providers: Mapping[str, Provider],
        shapes: Shapes,
        promises: PoolPromises,
        slurm: Observed[SlurmView],
        clock: Clock,
        ledger: Spending,
        *,
        may_change_devices: bool,
        hosts: Callable[[], tuple[Host, ...]] = tuple,
        freeze: Callable[[], Freeze | None] = lambda: None,
        restored: Callable[[], Restored | None] = lambda: None,
    ) -> None:
        self._freeze = freeze
        self._restored = restored
        self._launches = Launches(journal, clock.now())
        self._hosts = hosts
        self._live = live
        self._ledger = ledger
        self._minimum_s = {name: provider.capabilities.billing_minimum_s for name, provider in providers.items()}
        self._journal = journal
        self._providers = providers
        self._shapes = shapes
        self._promises = promises
        self._slurm = slurm
        # Until Slurm was read the settings alone decide: a pool that was driven by the queue is not taken for another.
        self._power_saving = True
        self._clock = clock
        self._may_change_devices = may_change_devices
        self._pools_of: _PoolsOf | None = None
        self._made: Mapping[str, Pool] = {}

    def __call__(self) -> Desired:
        """The pools, targets, limits and cooldowns of now."""
        now, settings = self._clock.now(), self._live.settings
        view = value_of(self._slurm.current)
        self._power_saving = self._power_saving if view is None else view.power_saving
        return Desired(
            cluster=settings.cluster.name,
            pools=self._pools(settings, now),
            targets=self._journal.targets(),
            policy=policy(
                settings.timing, settings.prices, may_change_devices=self._may_change_devices,
                providers=self._providers, poll_hold_s=settings.node_api.poll_hold_s,
                direct_pools=frozenset(name for name, pool in settings.pools.items() if pool.path == "direct"),
            ),
            cooldowns=self._journal.cooldowns(now),
            expired_cooldowns=self._journal.expired_cooldowns(now),
            budget=self._budget(now),
            hosts=self._hosts(),
            freeze=self._freeze(),
            restored=self._restored(),
            guards=settings.guards.guards,
            launches=self._launches.within(settings.guards.launch_interval_s, now),
        )  # fmt: skip

    def _pools(self, settings: Settings, now: datetime) -> Mapping[str, Pool]:
        """The pools; those of the last time while what they follow from is the same."""
        given = _PoolsOf(settings, dict(self._promises.current), self._shapes.shapes_fixed, self._power_saving)
        if given != self._pools_of or settings.prices.budget_needs_fresh:
            self._pools_of, self._made = given, pools(
                settings, self._providers, now, shapes_fixed=given.shapes_fixed, able=self._providers,
                promises=given.promises, power_saving=given.power_saving,
            )  # fmt: skip
        return self._made

    def _budget(self, now: datetime) -> Budget:
        limits = self._live.settings.budgets
        if not limits:
            return Budget()
        return budget_of(limits, self._ledger.spent(now), self._journal.machines(), self._minimum_s, now)
