"""Everything that is read again and again, each at its own pace: clouds, Slurm, the auth key's state."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Protocol

from meshd.daemon.auth_key.ports import dead_key
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.observe.poll_intervals import PollIntervals
from meshd.daemon.observe.source import Source, sources_of
from meshd.model.observed import Fresh, Observation, SlurmView
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
    ) -> None:
        self._changed = changed
        intervals = PollIntervals(journal, live)
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
                f"offers:{name}", _offers(provider), clock, interval_s=lambda: live.settings.timing.offers_interval_s,
                changed=changed,
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
        """What has to run for ever, by its task's name."""
        return {
            "slurm": self.slurm.run,
            "auth_key": self.key.run,
            **{source.name: source.run for source in self.listings.values()},
            **{source.name: source.run for source in self.offers.values()},
        }

    def list_again(self, provider: str) -> None:
        """Have a provider's machines listed soon."""
        self.listings[provider].hurry()

    def seen_offers(self) -> dict[str, Observation[tuple[Offer, ...]]]:
        """The newest word of each provider's offers."""
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
                # A fault in one of them is told by its own task; it keeps nobody from starting.
                slurm, key = self.slurm.read_once(), self.key.read_once()
                await asyncio.gather(slurm, key, *listings, *offers, return_exceptions=True)

    def slurm_view(self) -> SlurmView | None:
        """Slurm's newest word; None when it cannot be read."""
        return self.slurm.current.value if isinstance(self.slurm.current, Fresh) else None

    def dead_key(self) -> str:
        """Why the auth key is dead; "" while it lives or nobody can tell."""
        return dead_key(self.key_record())

    def key_record(self) -> AuthKey | None:
        """What the API tells of the auth key in use; None when it does not."""
        return self.key.current.value if isinstance(self.key.current, Fresh) else None


def _listing(provider: Provider) -> Callable[[], Awaitable[tuple[Instance, ...]]]:
    async def read() -> tuple[Instance, ...]:
        return tuple(await provider.list())

    return read


def _offers(provider: Provider) -> Callable[[], Awaitable[tuple[Offer, ...]]]:
    async def read() -> tuple[Offer, ...]:
        return tuple(await provider.offers())

    return read
