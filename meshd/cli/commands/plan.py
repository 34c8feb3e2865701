"""`meshctl plan`: what meshd would do."""

from __future__ import annotations

import click

from meshd.api.schema import ScaleRequest
from meshd.cli import render
from meshd.cli.exits import EXIT_CODES_HELP, Exit
from meshd.cli.params import pool_option
from meshd.cli.session import Session, output_option, print_json


@click.command("plan", epilog=EXIT_CODES_HELP)
@click.option("--gpus", type=click.IntRange(min=0), help="As if the pool's target were this.")
@pool_option("Which pool.")
@click.option("--provider", help="Rent from this provider only.")
@click.option("--max-price", type=click.FloatRange(min=0, min_open=True), help="The most USD per GPU and hour.")
@click.option("--exit-code", is_flag=True, help="End with 3 when there is something to do.")
@output_option
@click.pass_obj
def command(
    session: Session,
    *,
    gpus: int | None,
    pool: str | None,
    provider: str | None,
    max_price: float | None,
    exit_code: bool,
    as_json: bool,
) -> None:
    """Show what meshd would do next, with prices and reasons. Changes nothing."""
    if gpus is None and (pool or provider or max_price):
        raise click.UsageError("--pool, --provider and --max-price need --gpus")
    request = None
    if gpus is not None:
        request = ScaleRequest(gpus=gpus, pool=pool, provider=provider, max_usd_per_gpu_hour=max_price, dry_run=True)
    view = session.ask(lambda head: head.plan(request))
    if as_json:
        print_json(view)
    else:
        render.show(*render.plan(view))
    if exit_code and view.steps:
        click.get_current_context().exit(int(Exit.CHANGES))
