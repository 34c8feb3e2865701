"""Options that several commands share, durations, and completion of names from the running daemon."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from meshd.api import endpoints
from meshd.api.schema import OffersQuery
from meshd.cli.exits import CliError
from meshd.cli.hostlist import expand
from meshd.cli.session import session_of
from meshd.model.words import counted

if TYPE_CHECKING:
    from meshd.cli.client import Head

F = TypeVar("F", bound=Callable[..., Any])

COMPLETION_TIMEOUT_S = 0.2
_DURATION = re.compile(r"(?P<number>\d+(\.\d+)?)(?P<unit>ms|s|m|h|d)?")
_UNITS = {"ms": 0.001, None: 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def duration(_ctx: click.Context, _param: click.Parameter, value: str) -> float:
    """Callback of an option: seconds, out of a number with ms, s, m, h, d or nothing behind it."""
    match = _DURATION.fullmatch(value)
    if match is None:
        raise click.BadParameter(f"{value!r} is no duration: say 90, 90s, 30m or 2h")
    return float(match["number"]) * _UNITS[match["unit"]]


def past_moment(_ctx: click.Context, _param: click.Parameter, value: str | None) -> datetime | None:
    """Callback of an option: a moment that has been, in ISO 8601; without a zone it is UTC."""
    if value is None:
        return None
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is no moment: write 2026-11-28 or 2026-11-28T09:30, in UTC") from None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    if at > datetime.now(UTC):
        raise click.BadParameter(f"{value} lies ahead (it is read as UTC unless it names a zone)")
    return at


def past_or_ago(ctx: click.Context, param: click.Parameter, value: str | None) -> datetime | None:
    """Callback of an option: a moment that has been, as `past_moment` reads it, or as a duration before now: 30m."""
    if value is None or not (match := _DURATION.fullmatch(value)):
        return past_moment(ctx, param, value)
    try:
        return datetime.now(UTC) - timedelta(seconds=float(match["number"]) * _UNITS[match["unit"]])
    except OverflowError:
        raise click.BadParameter(f"{value!r} is too long ago") from None


class Whole(click.ParamType[int]):
    """A whole number.

    Args:
        least: it may be.
        most: it may be; None for no limit.
    """

    name = "number"

    def __init__(self, least: int = 0, most: int | None = None) -> None:
        self._least = least
        self._most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Refuse what is no whole number, and what is too small or too large."""
        text = str(value).strip()
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
            self.fail(f"{value!r} is no whole number", param, ctx)
        number = int(text)
        if number < self._least:
            self.fail(f"{number} is too small: at least {self._least}", param, ctx)
        if self._most is not None and number > self._most:
            self.fail(f"{number} is too large: at most {self._most}", param, ctx)
        return number


class Usd(click.ParamType[float]):
    """A limit in US dollars: more than nothing, and a number."""

    name = "usd"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Refuse `nan` and `inf`, which are no prices though Python reads them as numbers."""
        try:
            usd = float(str(value).removeprefix("$"))
        except ValueError:
            usd = math.nan
        if not math.isfinite(usd) or usd <= 0:
            self.fail(f"{value!r} is no price: write a number of USD, more than 0, e.g. 2.5", param, ctx)
        return usd


class Name(click.ParamType[str]):
    """A name. An empty one, say of a shell variable that is not set, is refused: it would choose everything."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse an empty one."""
        if not str(value).strip():
            self.fail("it is empty", param, ctx)
        return str(value)


def pool_option(help_text: str) -> Callable[[F], F]:
    """`--pool`, completed."""
    return click.option("--pool", metavar="NAME", type=Name(), shell_complete=_complete(_pools), help=help_text)


def node_option(name: str, *, help_text: str, also: str = "") -> Callable[[F], F]:
    """An option that names nodes: host lists, as often as wanted, completed. The command gets `nodes`, or `waive`."""
    names = [name, also, "nodes"] if also else [name]
    return click.option(
        *names, metavar="NODE", multiple=True, callback=_nodes, shell_complete=_complete(_machines), help=help_text
    )


def gpu_option(help_text: str) -> Callable[[F], F]:
    """`--gpu`, completed with the models on offer."""
    return click.option("--gpu", metavar="MODEL", type=Name(), shell_complete=_complete(_gpus), help=help_text)


def provider_option(help_text: str, *, multiple: bool = False) -> Callable[[F], F]:
    """`--provider`, completed with those that are enabled."""
    return click.option(
        "--provider",
        metavar="NAME",
        type=Name(),
        multiple=multiple,
        shell_complete=_complete(_providers),
        help=help_text,
    )


def region_option(help_text: str) -> Callable[[F], F]:
    """`--region`, as often as wanted, completed."""
    return click.option(
        "--region", metavar="NAME", type=Name(), multiple=True, shell_complete=_complete(_regions), help=help_text
    )


def subject_argument(command: F) -> F:
    """Machines, slots or pools, completed."""
    return click.argument(
        "subjects", metavar="MACHINE|SLOT|POOL...", nargs=-1, required=True, callback=_nodes,
        shell_complete=_complete(_subjects),
    )(command)  # fmt: skip


def machines_argument(command: F) -> F:
    """One or more machines or slots as names and host lists, completed."""
    return click.argument(
        "machines", metavar="MACHINE...", nargs=-1, required=True, callback=_nodes, shell_complete=_complete(_machines)
    )(command)


def some_nodes_argument(command: F) -> F:
    """Machines or slots, or none for all; completed."""
    return click.argument("names", metavar="[NODE]...", nargs=-1, callback=_nodes, shell_complete=_complete(_machines))(
        command
    )


def _nodes(_ctx: click.Context, _param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """Callback: the names that host lists stand for."""
    return expand(value)


def _complete(
    ask: Callable[[Head], Awaitable[list[tuple[str, str]]]],
) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """What the daemon knows, or nothing when it does not answer at once."""

    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from meshd.cli.client import Head

        socket = session_of(ctx).socket

        async def body() -> list[tuple[str, str]]:
            async with Head(socket, timeout_s=COMPLETION_TIMEOUT_S) as head:
                return await ask(head)

        try:
            found = asyncio.run(body())
        except CliError:
            return []
        return [CompletionItem(value, help=about) for value, about in found if value.startswith(incomplete)]

    return complete


async def _pools(head: Head) -> list[tuple[str, str]]:
    pools = (await head.call(endpoints.STATUS)).pools
    return [(p.name, f"{p.ready_gpus} of {counted(p.target_gpus, p.unit)}") for p in pools]


async def _machines(head: Head) -> list[tuple[str, str]]:
    nodes = (await head.call(endpoints.NODES)).nodes
    return [(n.machine, f"{n.slot} {n.phase}") for n in nodes] + [(n.slot, n.phase) for n in nodes]


async def _subjects(head: Head) -> list[tuple[str, str]]:
    return await _pools(head) + await _machines(head)


async def _gpus(head: Head) -> list[tuple[str, str]]:
    return [(name, "") for name in (await head.call(endpoints.OFFERS, OffersQuery(limit=1))).gpus]


async def _regions(head: Head) -> list[tuple[str, str]]:
    return [(name, "") for name in (await head.call(endpoints.OFFERS, OffersQuery(limit=1))).regions]


async def _providers(head: Head) -> list[tuple[str, str]]:
    sources = (await head.call(endpoints.STATUS)).sources
    return [(s.name.removeprefix("offers:"), "") for s in sources if s.name.startswith("offers:")]
