"""`meshctl nodes`: the machines."""

from __future__ import annotations

import click

from meshd.cli import render
from meshd.cli.exits import EXIT_CODES_HELP
from meshd.cli.params import pool_option
from meshd.cli.session import Session, output_option, print_json, say


@click.command("nodes", epilog=EXIT_CODES_HELP)
@pool_option("Only this pool's.")
@output_option
@click.pass_obj
def command(session: Session, *, pool: str | None, as_json: bool) -> None:
    """List the machines: where they are, what they do, what they cost."""
    view = session.ask(lambda head: head.nodes())
    if pool is not None:
        view = view.model_copy(update={"nodes": [row for row in view.nodes if row.pool == pool]})
    if as_json:
        print_json(view)
    elif view.nodes:
        render.show(render.nodes(view.nodes, view.at))
    else:
        say("no machines")
