"""The providers' own tables of the settings, checked by the adapters themselves."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from meshd.api.schema import CheckRow
from meshd.cli.faults import rows
from meshd.config import File, Settings
from meshd.errors import Fault
from meshd.plan import capabilities
from meshd.plugins import installed, make
from meshd.provider_api import Provider, ProviderContext


def check_providers(settings: Settings, file: File) -> list[CheckRow]:
    """A row for each enabled provider, or for each of its faults; none of them speaks with its cloud."""
    adapters = installed()
    return [
        row
        for name, table in settings.providers.items()
        if table.enabled
        for row in asyncio.run(_check(file, make(name, adapters, _context(settings, table.own())), f"providers.{name}"))
    ]


def _context(settings: Settings, table: dict[str, object]) -> ProviderContext:
    return ProviderContext(settings.cluster.name, table, lambda: datetime.now(UTC))


async def _check(file: File, made: Provider | tuple[Fault, ...], about: str) -> list[CheckRow]:
    if isinstance(made, tuple):
        return rows(file, made, about)
    can = made.capabilities
    await made.aclose()
    text = "the adapter accepts its settings"
    if not can.tun:
        cure = capabilities.no_tun_cure(made.name)
        return [
            CheckRow(
                name=about, status="warn", text=f"{text}, but {capabilities.NO_TUN}, and none is rented", cure=cure
            )
        ]
    return [CheckRow(name=about, status="ok", text=text)]
