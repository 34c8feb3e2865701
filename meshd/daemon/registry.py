"""Adapters, found by their entry points and loaded only when enabled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from importlib.metadata import entry_points

import structlog

from meshd.config import Settings
from meshd.errors import ConfigError
from meshd.provider_api import Provider, ProviderContext, ProviderFactory

GROUP = "meshd.providers"
log = structlog.get_logger(__name__)


def installed() -> Mapping[str, str]:
    """Names of all adapters that are installed, with where they come from."""
    return {point.name: point.value for point in entry_points(group=GROUP)}


def load_providers(settings: Settings, now: Callable[[], datetime]) -> dict[str, Provider]:
    """One adapter for each enabled provider.

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
            providers[name] = factory(ProviderContext(settings.cluster.name, table.own(), now))
        except ConfigError as error:
            problems += error.problems
        except ImportError as error:
            problems.append(f"providers.{name}: its SDK is not installed ({error.name}): pip install 'meshd[{name}]'")
    if problems:
        raise ConfigError("settings", problems)
    return providers
