"""`meshctl events`: shows what happened."""

from __future__ import annotations

import asyncio
from datetime import datetime

import click

from meshd.api import endpoints
from meshd.api.schema import EventsQuery, EventsView
from meshd.cli.client import HeadClient
from meshd.cli.errors import UnreachableError
from meshd.cli.params.options import as_json_option, node_option, pool_option
from meshd.cli.params.values import NonEmpty, WholeNumber, past_or_ago
from meshd.cli.render.status import event
from meshd.cli.session import Session, print_json, say
from meshd.runtime.terminal import clean_line, json_clean

WAIT_S = 25.0
RETRY_S = 2.0
LIMIT = 50
LIMIT_SINCE = 1000

EXAMPLES = """\b
Examples:
  meshctl events --since 30m                         the last half hour
  meshctl events --node 'h100-[1-4]' --kind failure  why these nodes failed
  meshctl events -f --pool h100                      new events as they come
"""


@click.command("events", epilog=EXAMPLES)
@click.option("-f", "--follow", is_flag=True, help="Go on and print new events as they come; with json, one a line.")
@node_option("--node", also="--machine", help_text="Only of these nodes, e.g. 'h100-[1-4]'; may be repeated.")
@pool_option("Only of this pool and its machines.")
@click.option("--kind", metavar="KIND", type=NonEmpty(), multiple=True, help="Only of this kind; may be repeated.")
@click.option(
    "--since",
    metavar="TIME",
    callback=past_or_ago,
    help="Only since then: 90s, 30m, 2h or 3d ago, or at 2026-11-28T09:30, in UTC or with a time zone.",
)
@click.option(
    "-n",
    "--limit",
    metavar="N",
    type=WholeNumber(1, 1000),
    help=f"Show at most the last N events.  [default: {LIMIT}; with --since {LIMIT_SINCE}]",
)
@click.option("--after", "after_id", metavar="ID", type=WholeNumber(0), help="Only events with a higher id.")
@as_json_option
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
        return
    _print_lines(view, as_json=False)
    if not view.events:
        say("no events")


async def _follow(head: HeadClient, query: EventsQuery, *, as_json: bool) -> None:
    """Print events until Ctrl-C. After a restart of the daemon it goes on where it was: events keep their ids."""
    view = await head.call(endpoints.EVENTS, query)
    silent = False
    while True:
        _print_lines(view, as_json=as_json)
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


def _print_lines(view: EventsView, *, as_json: bool) -> None:
    for row in view.events:
        click.echo(json_clean(row.model_dump_json()) if as_json else clean_line(event(row)))
