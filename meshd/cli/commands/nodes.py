"""`meshctl nodes`: the machines."""

from __future__ import annotations

from functools import partial

import click

from meshd.cli import render
from meshd.cli.client import Head
from meshd.cli.exits import EXIT_CODES_HELP, CliError, Exit
from meshd.cli.params import pool_option
from meshd.cli.session import Session, output_option, print_json, say


@click.command("nodes", epilog=EXIT_CODES_HELP)
@pool_option("Only this pool's.")
@output_option
@click.pass_obj
def command(session: Session, *, pool: str | None, as_json: bool) -> None:
    """List the machines: what they are, do and cost."""
    view = session.ask(lambda head: head.nodes())
    if pool is not None:
        if all(row.pool != pool for row in view.nodes):
            session.ask(partial(_known, pool=pool))
        view = view.model_copy(update={"nodes": [row for row in view.nodes if row.pool == pool]})
    if as_json:
        print_json(view)
    elif view.nodes:
        render.show(render.nodes(view.nodes, view.at))
    else:
        say("no machines" if pool is None else f"no machines in pool {pool}")


async def _known(head: Head, *, pool: str) -> None:
    """Refuse a pool that the settings do not have: its being empty would be no answer."""
    pools = [known.name for known in (await head.status()).pools]
    if pool not in pools:
        words = f"pools are: {', '.join(pools) or 'none'}"
        raise CliError(f"there is no pool {pool}", words, code=Exit.USAGE, kind="unknown")
