"""Completion of names with what the running daemon knows."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal, TypeAlias

from click.shell_completion import CompletionItem

from meshd.api import endpoints
from meshd.api.schema import OffersQuery
from meshd.cli.client import HeadClient
from meshd.cli.errors import CliError
from meshd.plaintext import counted

TIMEOUT_S = 0.2
"""A user waits for it after pressing TAB."""

Names: TypeAlias = Literal["pools", "nodes", "subjects", "gpus", "regions", "providers"]


def complete(names: Names, incomplete: str, socket: Path) -> list[CompletionItem]:
    """The names that begin with `incomplete`, each with a remark; none if the daemon does not answer in TIMEOUT_S.

    Args:
        names: which ones.
        incomplete: what the user has typed.
        socket: the daemon's.
    """

    async def ask() -> list[tuple[str, str]]:
        async with HeadClient(socket, timeout_s=TIMEOUT_S) as head:
            return await _ask(head, names)

    try:
        found = asyncio.run(ask())
    except CliError:
        return []
    return [CompletionItem(name, help=remark) for name, remark in found if name.startswith(incomplete)]


async def _ask(head: HeadClient, names: Names) -> list[tuple[str, str]]:
    match names:
        case "pools":
            pools = (await head.call(endpoints.STATUS)).pools
            return [(p.name, f"{p.ready_gpus} of {counted(p.target_gpus, p.unit)}") for p in pools]
        case "nodes":
            nodes = (await head.call(endpoints.NODES)).nodes
            return [(n.machine, f"{n.slot} {n.phase}") for n in nodes] + [(n.slot, n.phase) for n in nodes]
        case "subjects":
            return await _ask(head, "pools") + await _ask(head, "nodes")
        case "gpus":
            return [(name, "") for name in (await head.call(endpoints.OFFERS, OffersQuery(limit=1))).gpus]
        case "regions":
            return [(name, "") for name in (await head.call(endpoints.OFFERS, OffersQuery(limit=1))).regions]
        case "providers":
            sources = (await head.call(endpoints.STATUS)).sources
            return [(s.name.removeprefix("offers:"), "") for s in sources if s.name.startswith("offers:")]
