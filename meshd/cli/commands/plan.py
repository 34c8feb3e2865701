"""`meshctl plan`: what meshd would do."""

from __future__ import annotations

import click

from meshd.api import endpoints
from meshd.cli import render
from meshd.cli.exits import Exit
from meshd.cli.params import Whole
from meshd.cli.render_plan import plan
from meshd.cli.session import Session, output_option, print_json
from meshd.cli.wish import Wish, wish_options

EXAMPLES = """\b
Examples:
  meshctl plan                                       what meshd is about to do
  meshctl plan --gpus 16 --spot prefer               what 16 GPUs would cost, spot first
  meshctl plan --gpus 16 --region us-east-1 --spread
"""


@click.command("plan", epilog=EXAMPLES)
@click.option(
    "--gpus",
    metavar="N",
    type=Whole(0),
    help="As if the pool's target were this; the options below need it.",
)
@wish_options
@click.option("--exit-code", is_flag=True, help="End with 3 when there is something to do.")
@output_option
@click.pass_obj
def command(session: Session, *, gpus: int | None, wish: Wish, exit_code: bool, as_json: bool) -> None:
    """Show what meshd would do next, with prices and reasons. Changes nothing.

    For each machine: its slot, the offer and the price; then the offers that were not taken and why.
    """
    if gpus is None and wish.given:
        raise click.UsageError(f"{', '.join(wish.given)} without --gpus: say for how many GPUs")
    request = wish.request(gpus) if gpus is not None else None
    if request is None:
        view = session.ask(lambda head: head.call(endpoints.PLAN))
    else:
        view = session.ask(lambda head: head.call(endpoints.PREVIEW, request))
    if as_json:
        print_json(view)
    else:
        render.show(*plan(view))
    if exit_code and view.steps:
        click.get_current_context().exit(int(Exit.CHANGES))
