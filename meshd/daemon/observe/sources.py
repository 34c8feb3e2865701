"""What the daemon reads again and again, and how often: the clouds, Slurm, the auth key's state.

A source is read often while a machine waits for what it will say, and seldom otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Protocol

from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.observe.source import Source, sources_of
from meshd.model.machine import Phase
from meshd.model.observed import Observation, SlurmView, value_of
from meshd.model.plan import OpenSlots
from meshd.provider_api import Instance, Offer, Provider
from meshd.runtime.clock import Clock
from meshd.store.journal import Journal
from meshd.tailnet.admin import AuthKey

FIRST_LOOK_S = 60.0
KEY_CHECK_S = 30.0


class SlurmReader(Protocol):
    """Reads Slurm."""

    async def view(self) -> SlurmView:
        """Nodes and jobs now. Raises SlurmError."""
        ...


class KeyReader(Protocol):
    """Reads what the tailnet's API tells of the auth key in use."""

    async def key_record(self) -> AuthKey | None:
        """Its record; None when the API does not know it or there is no API. Raises TailnetError."""
        ...


class Sources:
    """The sources that are asked. The tailnet is not among them: it tells by itself.

    Args:
        providers: guarded: each of their calls has its own deadline.
        slurm: reads Slurm.
        keys: read what the API tells of the auth key in use.
        live: the settings.
        journal: how often a source is read follows from it.
        changed: called after each read.
        open_slots: by pool that Slurm's queue drives, which of its free slots are open, as the last plan says.
    """

    def __init__(
        self,
        providers: Mapping[str, Provider],
        slurm: SlurmReader,
        keys: KeyReader,
        journal: Journal,
        live: LiveSettings,
        clock: Clock,
        changed: Callable[[], None],
        open_slots: Callable[[], Mapping[str, OpenSlots]] = dict,
    ) -> None:
        self._changed = changed
        self._intervals = intervals = PollIntervals(journal, live, open_slots)
        self.listings = {
            name: Source(
                f"provider:{name}",
                _listing(provider),
                clock,
                interval_s=partial(intervals.cloud_s, name),
                changed=changed,
                spacing_s=partial(intervals.cloud_spacing_s, name),
            )
            for name, provider in providers.items()
        }
        self.offers = {
            name: Source(
                f"offers:{name}", _offers(provider), clock, interval_s=partial(self._offers_s, name), changed=changed,
            )
            for name, provider in providers.items()
        }  # fmt: skip
        self.slurm = Source(
            "slurm", slurm.view, clock, timeout_s=2 * live.settings.slurm.command_timeout_s,
            interval_s=intervals.slurm_s, changed=changed,
        )  # fmt: skip
        journal.on_event(self.reconsider)
        self.key = Source(
            "auth key", keys.key_record, clock, timeout_s=live.settings.timing.provider_timeout_s,
            interval_s=lambda: KEY_CHECK_S, changed=changed,
        )  # fmt: skip

    def bodies(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """The loops that read, by the names of their tasks."""
        return {
            "slurm": self.slurm.run,
            "auth_key": self.key.run,
            **{source.name: source.run for source in self.listings.values()},
            **{source.name: source.run for source in self.offers.values()},
        }

    def list_again(self, provider: str) -> None:
        """Have a provider's machines listed soon."""
        self.listings[provider].hurry()

    def _offers_s(self, provider: str) -> float:
        return self._intervals.offers_s(provider, self.offers[provider].current)

    def seen_offers(self) -> dict[str, Observation[tuple[Offer, ...]]]:
        """What each provider's offers were when they were read last."""
        return sources_of(self.offers)

    async def read_offers(self, provider: str) -> None:
        """Read a provider's offers now."""
        await self.offers[provider].read_once()

    def wake(self) -> None:
        """The settings have changed: plan with them, and read as often as they say."""
        self._changed()
        self.reconsider()

    def reconsider(self) -> None:
        """Look again how often each is read. Call it when the journal or the settings have changed."""
        everything: tuple[Source[Any], ...] = (self.slurm, *self.listings.values(), *self.offers.values())
        for source in everything:
            source.reconsider()

    async def first_look(self) -> None:
        """Read each once, so that the first tick knows as much as can be known."""
        listings = [source.read_once() for source in self.listings.values()]
        offers = [source.read_once() for source in self.offers.values()]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LOOK_S):
                # A fault in one of them is logged by its own task, and does not keep meshd from starting.
                slurm, key = self.slurm.read_once(), self.key.read_once()
                await asyncio.gather(slurm, key, *listings, *offers, return_exceptions=True)

    def dead_key(self) -> str:
        """Why the auth key is dead; "" while it lives or nobody can tell."""
        return dead_key(self.key_record())

    def key_record(self) -> AuthKey | None:
        """What the API tells of the auth key in use; None when it does not."""
        return value_of(self.key.current)


def dead_key(record: AuthKey | None) -> str:
    """Why the key is dead; "" when it is alive or the API does not say."""
    return f"the auth key {record.id} is expired or revoked" if record is not None and not record.valid else ""


def _listing(provider: Provider) -> Callable[[], Awaitable[tuple[Instance, ...]]]:
    async def read() -> tuple[Instance, ...]:
        return tuple(await provider.list())

    return read


def _offers(provider: Provider) -> Callable[[], Awaitable[tuple[Offer, ...]]]:
    async def read() -> tuple[Offer, ...]:
        return tuple(await provider.offers())

    return read


SLURM_FAST_S = 0.1
"""While a node is about to turn up: a matter of seconds."""
SLURM_BRISK_S = 1.0
"""While a node waits for its jobs: it may be days."""
CLOUD_FAST_S = 2.0
CLOUD_SPACING_S = 1.0
"""The least time between two listings of a cloud: 50 launches that end within it are one listing."""
LISTED_PER_S = 200.0
"""Machines that are listed per second in the long run: 10,000 once in 50 s. A listing of EC2 takes 0.18 ms of CPU for
each (docs/benchmarks.md), so this holds it at 4 % of one core."""
LISTED_FAST_PER_S = 2000.0
"""The same while somebody waits for a cloud's news: 10,000 once in 5 s."""

SOLD_OUT_S = 60.0
"""How often offers are read while a pool's slots are closed, and its cloud showed none free."""

_CLOUD_AWAITED = frozenset({Phase.LAUNCHING, Phase.TERMINATING})


class PollIntervals:
    """Looks at the journal once for each of its revisions."""

    def __init__(
        self, journal: Journal, live: LiveSettings, open_slots: Callable[[], Mapping[str, OpenSlots]] = dict
    ) -> None:
        self._journal = journal
        self._live = live
        self._open_slots = open_slots
        self._revision = -1
        self._slurm_fastest_s = float("inf")
        self._clouds_awaited: frozenset[str] = frozenset()
        self._machines: Counter[str] = Counter()

    def _look(self) -> None:
        if self._revision == self._journal.revision:
            return
        self._revision = self._journal.revision
        machines = self._journal.machines()
        # A machine on a slot that a person has closed may stay TESTING for days, and Slurm shows nothing of a path.
        tested = any(m.phase is Phase.TESTING and m.may_run_jobs and m.unfit_reason is None for m in machines)
        leaving = any(m.phase is Phase.DRAINING for m in machines)
        self._slurm_fastest_s = SLURM_FAST_S if tested else SLURM_BRISK_S if leaving else float("inf")
        self._clouds_awaited = frozenset(m.provider for m in machines if m.phase in _CLOUD_AWAITED)
        self._machines = Counter(m.provider for m in machines)

    def slurm_s(self) -> float:
        """Seconds between two looks at Slurm."""
        self._look()
        return min(self._slurm_fastest_s, self._live.settings.slurm.poll_interval_s)

    def cloud_s(self, provider: str) -> float:
        """Seconds between two listings of a cloud; more where it has many machines, since a listing reads them all."""
        self._look()
        interval_s, count = self._live.settings.timing.provider_poll_interval_s, self._machines[provider]
        if provider in self._clouds_awaited:
            return max(min(CLOUD_FAST_S, interval_s), count / LISTED_FAST_PER_S)
        return max(interval_s, count / LISTED_PER_S)

    def offers_s(self, provider: str, seen: Observation[tuple[Offer, ...]]) -> float:
        """Seconds between two looks at a cloud's offers: less while closed slots wait for what it will have again."""
        interval_s, pools = self._live.settings.timing.offers_interval_s, self._live.settings.pools
        closed = (pools[name] for name, one in self._open_slots().items() if one.code is not None and name in pools)
        awaited = any(provider in pool.providers for pool in closed)
        if awaited and any(offer.available is False for offer in value_of(seen) or ()):
            return min(SOLD_OUT_S, interval_s)
        return interval_s

    def cloud_spacing_s(self, provider: str) -> float:
        """The least seconds between two listings of a cloud, however much somebody hurries."""
        self._look()
        spacing_s = min(CLOUD_SPACING_S, self._live.settings.timing.provider_poll_interval_s)
        return max(spacing_s, self._machines[provider] / LISTED_FAST_PER_S)
