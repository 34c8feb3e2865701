"""`meshctl events`: what happened."""

from __future__ import annotations

import asyncio

import click

from meshd.api.schema import EventsView
from meshd.cli import render
from meshd.cli.client import Head
from meshd.cli.exits import EXIT_CODES_HELP, UnreachableError, clean
from meshd.cli.params import machine_option
from meshd.cli.session import Session, output_option, print_json, say

WAIT_S = 25.0
RETRY_S = 2.0


@click.command("events", epilog=EXIT_CODES_HELP)
@click.option("-f", "--follow", is_flag=True, help="Stay and print events as they come. With json: one a line.")
@machine_option("Only those of this machine or slot.")
@click.option(
    "-n",
    "--limit",
    metavar="N",
    type=click.IntRange(1, 1000),
    default=50,
    show_default=True,
    help="How many past ones.",
)
@click.option("--after", "after_id", metavar="ID", type=click.IntRange(min=0), help="Only those with a higher id.")
@output_option
@click.pass_obj
def command(session: Session, *, follow: bool, machine: str, limit: int, after_id: int | None, as_json: bool) -> None:
    """Show what happened, oldest first."""
    if follow:
        session.ask(lambda head: _follow(head, machine, limit, after_id, as_json=as_json))
        return
    view = session.ask(lambda head: head.events(after_id=after_id, limit=limit, machine=machine))
    if as_json:
        print_json(view)
    else:
        _print(view, as_json=False)
        if not view.events:
            say("no events")


async def _follow(head: Head, machine: str, limit: int, after_id: int | None, *, as_json: bool) -> None:
    """Until Ctrl-C. Goes on after a restart of the daemon: events keep their ids."""
    view = await head.events(after_id=after_id, limit=limit, machine=machine)
    silent = False
    while True:
        _print(view, as_json=as_json)
        try:
            view = await head.events(after_id=view.last_id, limit=1000, wait_s=WAIT_S, machine=machine)
            silent = False
        except UnreachableError as error:
            if not silent:
                say(f"{error.message}; waiting for it")
            silent = True
            view = EventsView(last_id=view.last_id)
            await asyncio.sleep(RETRY_S)


def _print(view: EventsView, *, as_json: bool) -> None:
    for row in view.events:
        click.echo(row.model_dump_json() if as_json else clean(render.event(row)))
