"""`meshctl plan`: shows what meshd would do."""

from __future__ import annotations

import click

from meshd.api import endpoints
from meshd.cli.errors import ExitCode
from meshd.cli.params.options import as_json_option
from meshd.cli.params.scale_options import ScaleOptions, scale_options
from meshd.cli.params.values import WholeNumber
from meshd.cli.render.plan import plan
from meshd.cli.render.terminal import show
from meshd.cli.session import Session, print_json

EXAMPLES = """\b
Examples:
  meshctl plan                                       what meshd will do next
  meshctl plan --gpus 16 --spot prefer               what 16 GPUs would cost, spot first
  meshctl plan --gpus 16 --region us-east-1 --spread
"""


@click.command("plan", epilog=EXAMPLES)
@click.option(
    "--gpus",
    metavar="N",
    type=WholeNumber(0),
    help="Plan for this target of the pool. The options below need it.",
)
@scale_options
@click.option("--exit-code", is_flag=True, help="Exit with 3 if there is something to do.")
@as_json_option
@click.pass_obj
def command(session: Session, *, gpus: int | None, options: ScaleOptions, exit_code: bool, as_json: bool) -> None:
    """Show what meshd would do next, with prices and reasons.

    It changes nothing. Shows each machine with its slot, offer and price, then the offers not taken, and why.
    """
    if gpus is None and options.given:
        raise click.UsageError(f"{', '.join(options.given)} needs --gpus")
    if gpus is None:
        view = session.ask(lambda head: head.call(endpoints.PLAN))
    else:
        request = options.request(gpus)
        view = session.ask(lambda head: head.call(endpoints.PREVIEW, request))
    if as_json:
        print_json(view)
    else:
        show(*plan(view))
    if exit_code and view.steps:
        click.get_current_context().exit(int(ExitCode.CHANGES))
