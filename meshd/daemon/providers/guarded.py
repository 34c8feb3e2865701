"""A provider with guards around it is a provider again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache, reduce
from typing import Literal, Protocol, TypeVar, cast

from meshd.price_list import PriceList
from meshd.provider_api import (
    Auditor,
    BilledListing,
    Console,
    GangLauncher,
    GangRequest,
    Image,
    ImageBaker,
    ImageRequest,
    Instance,
    LaunchRequest,
    Offer,
    PriceBook,
    Provider,
    ProviderCapabilities,
    ProviderName,
)

T = TypeVar("T")
Operation = Literal[
    "offers", "launch", "get", "list", "terminate", "check", "fetch_prices", "console", "create_image", "images",
    "delete_image", "billed",
]  # fmt: skip


class Guard(Protocol):
    """Stands around each call to one provider."""

    async def call(self, operation: Operation, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask, or do not; returns what was answered, or raises a leaf of ProviderError."""
        ...


class GuardedProvider:
    """A provider whose calls all go through guards.

    Args:
        provider: whom to ask.
        guards: the outermost first.
    """

    def __init__(self, provider: Provider, guards: Sequence[Guard]) -> None:
        self._provider = provider
        self._guards = tuple(guards)

    @property
    def name(self) -> ProviderName:
        """The provider's own."""
        return self._provider.name

    @property
    def capabilities(self) -> ProviderCapabilities:
        """The provider's own."""
        return self._provider.capabilities

    async def offers(self) -> Sequence[Offer]:
        """See Provider."""
        return await self._ask("offers", self._provider.offers)

    async def launch(self, request: LaunchRequest) -> Instance:
        """See Provider."""
        return await self._ask("launch", lambda: self._provider.launch(request))

    async def get(self, instance: Instance) -> Instance:
        """See Provider."""
        return await self._ask("get", lambda: self._provider.get(instance))

    async def list(self) -> Sequence[Instance]:
        """See Provider."""
        return await self._ask("list", self._provider.list)

    async def terminate(self, instance: Instance) -> None:
        """See Provider."""
        await self._ask("terminate", lambda: self._provider.terminate(instance))

    async def check(self) -> str:
        """See Provider."""
        return await self._ask("check", self._provider.check)

    async def aclose(self) -> None:
        """See Provider."""
        await self._provider.aclose()

    async def _ask(self, operation: Operation, ask: Callable[[], Awaitable[T]]) -> T:
        def within(inner: Callable[[], Awaitable[T]], guard: Guard) -> Callable[[], Awaitable[T]]:
            return lambda: guard.call(operation, inner)

        return await reduce(within, reversed(self._guards), ask)()


class GuardedPriceBook(GuardedProvider):
    """The same for a provider that can also be asked for all its prices."""

    async def fetch_prices(self) -> PriceList:
        """See PriceBook."""
        return await self._ask("fetch_prices", cast("PriceBook", self._provider).fetch_prices)


class GuardedConsole(GuardedProvider):
    """The same for a provider that shows consoles."""

    async def console(self, instance: Instance) -> str:
        """See Console."""
        return await self._ask("console", lambda: cast("Console", self._provider).console(instance))


class GuardedGangLauncher(GuardedProvider):
    """The same for a provider that rents several machines with one call."""

    async def launch_gang(self, request: GangRequest) -> Sequence[Instance]:
        """See GangLauncher. For the guards it is a launch."""
        return await self._ask("launch", lambda: cast("GangLauncher", self._provider).launch_gang(request))


class GuardedImageBaker(GuardedProvider):
    """The same for a provider that makes images."""

    def named_image(self, offer: Offer) -> str:
        """See ImageBaker."""
        return cast("ImageBaker", self._provider).named_image(offer)

    async def create_image(self, request: ImageRequest) -> Image:
        """See ImageBaker."""
        return await self._ask("create_image", lambda: cast("ImageBaker", self._provider).create_image(request))

    async def images(self) -> Sequence[Image]:
        """See ImageBaker."""
        return await self._ask("images", cast("ImageBaker", self._provider).images)

    async def delete_image(self, image: Image) -> None:
        """See ImageBaker."""
        await self._ask("delete_image", lambda: cast("ImageBaker", self._provider).delete_image(image))


class GuardedAuditor(GuardedProvider):
    """The same for a provider that lists what lies on its account."""

    async def billed(self) -> Sequence[BilledListing]:
        """See Auditor."""
        return await self._ask("billed", cast("Auditor", self._provider).billed)


_OPTIONAL: tuple[tuple[type, type[GuardedProvider]], ...] = (
    (PriceBook, GuardedPriceBook),
    (Console, GuardedConsole),
    (GangLauncher, GuardedGangLauncher),
    (ImageBaker, GuardedImageBaker),
    (Auditor, GuardedAuditor),
)


@lru_cache
def _kind_of(parts: tuple[type[GuardedProvider], ...]) -> type[GuardedProvider]:
    """The class with these optional interfaces."""
    return cast("type[GuardedProvider]", type("GuardedProvider", parts or (GuardedProvider,), {}))


def guarded(provider: Provider, guards: Sequence[Guard]) -> GuardedProvider:
    """The provider with guards around it, the outermost first; with its optional interfaces as well."""
    parts = tuple(part for interface, part in _OPTIONAL if isinstance(provider, interface))
    return _kind_of(parts)(provider, guards)
