"""`meshctl prices`: shows the prices that meshd uses, and fetches newer ones."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import click

from meshd.api import endpoints
from meshd.api.schema import PriceRefreshRow, PriceRow, PricesRefresh, PricesRefreshed
from meshd.cli.client import HeadClient
from meshd.cli.errors import CliError, ExitCode
from meshd.cli.params.options import as_json_option
from meshd.cli.render.table import Table
from meshd.cli.render.terminal import clean_text
from meshd.cli.render.terminal import show as show_parts
from meshd.cli.session import Session, print_json, say
from meshd.plaintext import age


@click.group("prices")
def command() -> None:
    """Show the prices that meshd uses, and fetch newer ones."""


@command.command("show")
@as_json_option
@click.pass_obj
def show(session: Session, *, as_json: bool) -> None:
    """List where prices come from and how old they are.

    SOURCE is api (prices come with the offers), refreshed (fetched), shipped (with meshd) or settings (yours). For each
    type and region meshd uses your price, else the newer one of the fetched and the shipped price.
    """
    view = session.ask(lambda head: head.call(endpoints.PRICES))
    if as_json:
        print_json(view)
    elif view.prices:
        show_parts(_table(view.prices))
    else:
        say("no provider is enabled: add a [providers.NAME] table to the settings")


@command.command("refresh")
@click.argument("providers", metavar="[PROVIDER]...", nargs=-1)
@as_json_option
@click.pass_obj
def refresh(session: Session, *, providers: tuple[str, ...], as_json: bool) -> None:
    """Fetch newer prices, of these providers or of all.

    It is free of charge and may take some minutes. It does not change the recorded price of a machine. If it fails, the
    last prices stay in use.
    """
    answer = session.ask(lambda head: _refresh(head, providers), if_interrupted="interrupted: meshd goes on fetching")
    if as_json:
        print_json(answer)
    elif answer.prices:
        show_parts("", _table(answer.prices))
    failed = [row for row in answer.results if not row.ok]
    if failed and len(failed) < len(answer.results):
        raise CliError(f"{len(failed)} of {len(answer.results)} failed", code=ExitCode.PARTLY, kind="partly")
    if failed:
        raise CliError(f"all {len(failed)} failed", kind=failed[0].kind)


async def _refresh(head: HeadClient, providers: tuple[str, ...]) -> PricesRefreshed:
    """Fetch the prices of all providers at the same time, and print each result as it comes."""
    names = list(dict.fromkeys(providers))
    if not names:
        names = sorted({row.provider for row in (await head.call(endpoints.PRICES)).prices if row.refreshable})
    if not names:
        raise CliError(
            "no enabled provider has prices to fetch",
            "see `meshctl prices show`; set your own prices in providers.NAME.prices",
            kind="no_price_list",
        )
    say(f"asking {', '.join(names)} ...")

    async def fetch(name: str) -> PricesRefreshed:
        answer = await head.call(endpoints.REFRESH_PRICES, PricesRefresh(providers=(name,)))
        for row in answer.results:
            for line in _result(row):
                say(line)
        return answer

    answers = await asyncio.gather(*(fetch(name) for name in names))
    last = max(answers, key=lambda answer: answer.at)
    return last.model_copy(update={"results": [row for answer in answers for row in answer.results]})


def _result(row: PriceRefreshRow) -> Iterator[str]:
    if row.as_of is not None:
        yield f"{row.provider}: {row.types} types in {row.regions} regions"
        return
    yield f"{row.provider}: {row.text}"
    if row.cure:
        yield f"  do: {row.cure}"


def _table(rows: Sequence[PriceRow]) -> Table:
    return Table(
        ("PROVIDER", "SOURCE", "DATE", "AGE", "TYPES", "REGIONS", "NOTE"),
        [
            (
                row.provider,
                row.source or "-",
                f"{row.as_of:%Y-%m-%d}" if row.as_of else "-",
                clean_text(f"{age(row.age_s)} stale", "yellow") if row.stale else age(row.age_s),
                f"{row.types}",
                f"{row.regions}",
                clean_text(row.note, "yellow"),
            )
            for row in rows
        ],
        optional=("TYPES", "REGIONS", "DATE"),
    )
