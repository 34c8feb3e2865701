"""The enabled providers. One that cannot be made is off: it refuses every call, and the others work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial

import structlog

from meshd.config import Settings
from meshd.errors import Fault, ProviderOff
from meshd.model.host import PROVIDER
from meshd.plugins import installed, make
from meshd.price_list import PriceList
from meshd.provider_api import (
    Instance,
    LaunchRequest,
    Offer,
    Provider,
    ProviderCapabilities,
    ProviderContext,
    ProviderName,
)

log = structlog.get_logger(__name__)


def load_providers(
    settings: Settings, now: Callable[[], datetime], prices: Callable[[str], PriceList | None]
) -> dict[str, Provider]:
    """One adapter for each enabled provider; an `OffProvider` for each that cannot be made.

    Args:
        settings: which, and their tables.
        now: UTC clock.
        prices: those that a provider has fetched; asked again and again.
    """
    adapters = installed()
    providers: dict[str, Provider] = {}
    for name, table in settings.providers.items():
        if table.enabled and name != PROVIDER:  # owned machines are no adapter's
            made = make(name, adapters, ProviderContext(settings.cluster.name, table.own(), now, partial(prices, name)))
            if isinstance(made, tuple):
                log.error("provider_off", provider=name, problems=[str(fault) for fault in made])
                made = OffProvider(name, made)
            providers[name] = made
    return providers


RESTART = "`systemctl restart meshd`"


class OffProvider:
    """Stands in for a provider that could not be made.

    Args:
        name: the provider's, in the settings.
        faults: why it is off; at least one.
    """

    def __init__(self, name: str, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        self._name = name

    @property
    def name(self) -> ProviderName:
        """As in the settings."""
        return ProviderName(self._name)

    @property
    def capabilities(self) -> ProviderCapabilities:
        """Nothing is promised."""
        return ProviderCapabilities()

    @property
    def error(self) -> ProviderOff:
        """What each call ends with."""
        texts = "; ".join(f"{fault.text}" for fault in self.faults)
        cures = "; ".join(dict.fromkeys(fault.cure for fault in self.faults if fault.cure))
        cure = f"{cures}; then {RESTART}" if cures else f"correct it, then {RESTART}"
        return ProviderOff(f"{self._name} is off: {texts}", cure, provider="")

    async def offers(self) -> Sequence[Offer]:
        """Raises ProviderOff."""
        raise self.error

    async def launch(self, request: LaunchRequest) -> Instance:
        """Raises ProviderOff."""
        raise self.error

    async def get(self, instance: Instance) -> Instance:
        """Raises ProviderOff."""
        raise self.error

    async def list(self) -> Sequence[Instance]:
        """Raises ProviderOff."""
        raise self.error

    async def terminate(self, instance: Instance) -> None:
        """Raises ProviderOff."""
        raise self.error

    async def check(self) -> str:
        """Raises ProviderOff."""
        raise self.error

    async def aclose(self) -> None:
        """There is nothing to close."""
