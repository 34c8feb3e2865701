"""Listings for `Auditor.billed`: each is complete, or says why it failed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from typing import Any, TypeVar

from meshd.errors import ProviderError
from meshd.provider_api import Billed, BilledKind, BilledListing, ProviderName

HOURS_OF_MONTH = 730.0

R = TypeVar("R")


async def each(rows: Awaitable[Iterable[R]], to_billed: Callable[[R], Billed | None]) -> list[Billed]:
    """The rows of an answer as things; those that are none are left out."""
    return [found for row in await rows if (found := to_billed(row)) is not None]


async def listing(
    provider: ProviderName, kind: BilledKind, found: Awaitable[Iterable[Billed]], region: str = ""
) -> BilledListing:
    """What `found` lists, or its error. Whatever else it raises is a fault of the adapter."""
    try:
        return BilledListing(provider, kind, region, tuple(await found))
    except ProviderError as error:
        return BilledListing(provider, kind, region, error=str(error) or error.kind)


def moment(text: Any) -> datetime | None:
    """A time of RFC 3339 with its zone; None for anything else."""
    try:
        found = datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError:
        return None
    return found if found.tzinfo is not None else None
