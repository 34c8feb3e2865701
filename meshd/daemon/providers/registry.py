"""The enabled providers. One that cannot be made is off; the others work."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial

import structlog

from meshd.config import Settings
from meshd.daemon.providers.off import OffProvider
from meshd.plugins import installed, make
from meshd.price_list import PriceList
from meshd.provider_api import Provider, ProviderContext

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
        if table.enabled:
            made = make(name, adapters, ProviderContext(settings.cluster.name, table.own(), now, partial(prices, name)))
            if isinstance(made, tuple):
                log.error("provider_off", provider=name, problems=[str(fault) for fault in made])
                made = OffProvider(name, made)
            providers[name] = made
    return providers
