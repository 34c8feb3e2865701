"""Adapters, found by their entry points and loaded only when enabled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from importlib.metadata import entry_points

import structlog

from meshd.config import Settings
from meshd.errors import ConfigError
from meshd.price_list import PriceList
from meshd.provider_api import Provider, ProviderContext, ProviderFactory

GROUP = "meshd.providers"
log = structlog.get_logger(__name__)


def installed() -> Mapping[str, str]:
    """Names of all adapters that are installed, with where they come from."""
    return {point.name: point.value for point in entry_points(group=GROUP)}


def load_providers(
    settings: Settings, now: Callable[[], datetime], prices: Callable[[str], PriceList | None]
) -> dict[str, Provider]:
    """One adapter for each enabled provider.

    Args:
        settings: which, and their tables.
        now: UTC clock.
        prices: those that a provider has fetched; asked again and again.

    Raises:
        ConfigError: an unknown provider, a missing SDK, or settings that the adapter does not accept: all of them.
    """
    points = {point.name: point for point in entry_points(group=GROUP)}
    providers: dict[str, Provider] = {}
    problems: list[str] = []
    for name, table in settings.providers.items():
        if not table.enabled:
            continue
        if name not in points:
            problems.append(f"providers.{name}: no such adapter is installed (there is {', '.join(sorted(points))})")
            continue
        try:
            factory: ProviderFactory = points[name].load()
            providers[name] = factory(ProviderContext(settings.cluster.name, table.own(), now, partial(prices, name)))
        except ConfigError as error:
            problems += error.problems
        except ImportError as error:
            problems.append(f"providers.{name}: its SDK is not installed ({error.name}): pip install 'meshd[{name}]'")
    if problems:
        raise ConfigError("settings", problems)
    return providers
