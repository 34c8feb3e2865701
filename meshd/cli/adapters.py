"""The providers' own tables of the settings, checked by the adapters themselves."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from importlib.metadata import EntryPoint, entry_points
from typing import cast

from meshd.api.schema import CheckRow
from meshd.config import Settings
from meshd.errors import ConfigError, MeshdError
from meshd.provider_api import ProviderContext, ProviderFactory

GROUP = "meshd.providers"


def check_providers(settings: Settings) -> list[CheckRow]:
    """A row for each enabled provider; none of them speaks with its cloud."""
    found = {point.name: point for point in entry_points(group=GROUP)}
    return [
        row
        for name, table in settings.providers.items()
        if table.enabled
        for row in _check(name, found, ProviderContext(settings.cluster.name, table.own(), lambda: datetime.now(UTC)))
    ]


def _check(name: str, found: dict[str, EntryPoint], context: ProviderContext) -> list[CheckRow]:
    about = f"providers.{name}"
    point = found.get(name)
    if point is None:
        known = ", ".join(sorted(found)) or "none"
        return [
            CheckRow(
                name=about,
                status="fail",
                text=f"no adapter of this name is installed; there are: {known}",
                cure="mend the name, or install the adapter's package",
            )
        ]
    try:
        factory = cast("ProviderFactory", point.load())
    except (ImportError, AttributeError) as error:
        cure = f"install what it needs, e.g. `pip install meshd[{name}]`"
        return [CheckRow(name=about, status="fail", text=f"the adapter cannot be loaded: {error}", cure=cure)]
    try:
        asyncio.run(_make_and_close(factory, context))
    except ConfigError as error:
        return [CheckRow(name=about, status="fail", text=f"{error.source}: {p}") for p in error.problems]
    except MeshdError as error:
        return [CheckRow(name=about, status="fail", text=str(error))]
    return [CheckRow(name=about, status="ok", text="the adapter accepts its settings")]


async def _make_and_close(factory: ProviderFactory, context: ProviderContext) -> None:
    provider = factory(context)
    await provider.aclose()
