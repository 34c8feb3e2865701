"""`meshctl prices`: which prices meshd reckons with, and newer ones."""

from __future__ import annotations

import asyncio

import click

from meshd.api import endpoints
from meshd.api.schema import PricesRefresh, PricesRefreshed
from meshd.cli import render
from meshd.cli.client import Head
from meshd.cli.exits import CliError, Exit
from meshd.cli.render_prices import prices, refreshed
from meshd.cli.session import Session, output_option, print_json, say


@click.group("prices")
def command() -> None:
    """Show the prices that meshd reckons with, and fetch newer ones."""


@command.command("show")
@output_option
@click.pass_obj
def show(session: Session, *, as_json: bool) -> None:
    """List where the prices come from and how old they are.

    SOURCE: api (told with the offers), refreshed (fetched), shipped (with meshd) or settings (yours). For each type and
    region the newer of the fetched and the shipped price holds, and yours before both.
    """
    view = session.ask(lambda head: head.call(endpoints.PRICES))
    if as_json:
        print_json(view)
    elif view.prices:
        render.show(*prices(view.prices))
    else:
        say("no provider is enabled: add a [providers.NAME] table to the settings")


@command.command("refresh")
@click.argument("providers", metavar="[PROVIDER]...", nargs=-1)
@output_option
@click.pass_obj
def refresh(session: Session, *, providers: tuple[str, ...], as_json: bool) -> None:
    """Fetch newer prices, of these providers or of all.

    It is free of charge, takes up to some minutes, and changes no machine's recorded price. Where it fails, the prices
    from before still hold.
    """
    answer = session.ask(lambda head: _refresh(head, providers), if_interrupted="interrupted: meshd goes on fetching")
    if as_json:
        print_json(answer)
    elif answer.prices:
        render.show("", *prices(answer.prices))
    failed = [row for row in answer.results if not row.ok]
    if failed and len(failed) < len(answer.results):
        raise CliError(f"{len(failed)} of {len(answer.results)} failed", code=Exit.PARTLY, kind="partly")
    if failed:
        raise CliError(f"all {len(failed)} failed", kind=failed[0].kind)


async def _refresh(head: Head, providers: tuple[str, ...]) -> PricesRefreshed:
    """Each provider by itself, all at once, so that what is done is seen while others go on."""
    wanted = list(dict.fromkeys(providers))
    if not wanted:
        wanted = sorted({row.provider for row in (await head.call(endpoints.PRICES)).prices if row.refreshable})
    if not wanted:
        raise CliError(
            "no enabled provider has prices that can be fetched",
            "see `meshctl prices show`; prices of your own: providers.NAME.prices",
            kind="no_price_list",
        )
    say(f"asking {', '.join(wanted)} ...")

    async def one(name: str) -> PricesRefreshed:
        answer = await head.call(endpoints.REFRESH_PRICES, PricesRefresh(providers=(name,)))
        for row in answer.results:
            for line in refreshed(row):
                say(line)
        return answer

    answers = await asyncio.gather(*(one(name) for name in wanted))
    last = max(answers, key=lambda answer: answer.at)
    return last.model_copy(update={"results": [row for answer in answers for row in answer.results]})
