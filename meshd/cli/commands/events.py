"""`meshctl events`: what happened."""

from __future__ import annotations

import asyncio
from datetime import datetime

import click

from meshd.api import endpoints
from meshd.api.schema import EventsQuery, EventsView
from meshd.cli import render
from meshd.cli.client import Head
from meshd.cli.exits import UnreachableError
from meshd.cli.params import Name, Whole, node_option, past_or_ago, pool_option
from meshd.cli.session import Session, output_option, print_json, say
from meshd.runtime.terminal import clean_line, json_clean

WAIT_S = 25.0
RETRY_S = 2.0
LIMIT = 50
LIMIT_SINCE = 1000

EXAMPLES = """\b
Examples:
  meshctl events --since 30m                         of the last half hour
  meshctl events --node 'h100-[1-4]' --kind failure  why these nodes were given up
  meshctl events -f --pool h100                      as they come
"""


@click.command("events", epilog=EXAMPLES)
@click.option("-f", "--follow", is_flag=True, help="Stay and print events as they come. With json: one a line.")
@node_option("--node", also="--machine", help_text="Only of these machines or slots, as in 'h100-[1-4]'; repeatable.")
@pool_option("Only of this pool and its machines.")
@click.option("--kind", metavar="KIND", type=Name(), multiple=True, help="Only of this kind; may be repeated.")
@click.option(
    "--since",
    metavar="TIME",
    callback=past_or_ago,
    help="Not older: 90s, 30m, 2h, 3d; or 2026-11-28T09:30, in UTC or with a zone.",
)
@click.option(
    "-n",
    "--limit",
    metavar="N",
    type=Whole(1, 1000),
    help=f"How many past ones.  [default: {LIMIT}; with --since {LIMIT_SINCE}]",
)
@click.option("--after", "after_id", metavar="ID", type=Whole(0), help="Only those with a higher id.")
@output_option
@click.pass_obj
def command(
    session: Session,
    *,
    follow: bool,
    nodes: tuple[str, ...],
    pool: str | None,
    kind: tuple[str, ...],
    since: datetime | None,
    limit: int | None,
    after_id: int | None,
    as_json: bool,
) -> None:
    """Show what happened, oldest first."""
    query = EventsQuery(
        after_id=after_id, limit=limit or (LIMIT_SINCE if since else LIMIT), machine=nodes, kind=kind, pool=pool or "",
        since=since,
    )  # fmt: skip
    if follow:
        session.ask(lambda head: _follow(head, query, as_json=as_json))
        return
    view = session.ask(lambda head: head.call(endpoints.EVENTS, query))
    if as_json:
        print_json(view)
    else:
        _print(view, as_json=False)
        if not view.events:
            say("no events")


async def _follow(head: Head, query: EventsQuery, *, as_json: bool) -> None:
    """Until Ctrl-C. Goes on after a restart of the daemon: events keep their ids."""
    view = await head.call(endpoints.EVENTS, query)
    silent = False
    while True:
        _print(view, as_json=as_json)
        try:
            more = {"after_id": view.last_id, "limit": 1000, "wait_s": WAIT_S}
            view = await head.call(endpoints.EVENTS, query.model_copy(update=more))
            silent = False
        except UnreachableError as error:
            if not silent:
                say(f"{error.message}; waiting for it")
            silent = True
            view = EventsView(last_id=view.last_id)
            await asyncio.sleep(RETRY_S)


def _print(view: EventsView, *, as_json: bool) -> None:
    for row in view.events:
        click.echo(json_clean(row.model_dump_json()) if as_json else clean_line(render.event(row)))
