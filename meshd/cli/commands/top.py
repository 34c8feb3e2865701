"""`meshctl top`: shows the cluster live."""

from __future__ import annotations

import os
import sys

import click

from meshd.cli.errors import CliError, ExitCode
from meshd.cli.params.values import WholeNumber
from meshd.cli.session import Session

KEYS = """\b
Keys:
  1 2 3 4        nodes, jobs, events, problems
  Enter          explain the node or job under the cursor; of a job that runs, show its nodes
  l              follow the logs of a node
  d, u           drain a node, undrain it
  s              sort: by slot, how busy the GPUs are, price, age
  /              show only lines with some words
  Esc, q         back; quit
"""


@click.command("top", epilog=KEYS)
@click.option(
    "--every", "every_s", metavar="SECONDS", type=WholeNumber(1, 3600), default=2, show_default=True,
    help="How often to ask meshd.",
)  # fmt: skip
@click.pass_obj
def command(session: Session, *, every_s: int) -> None:
    """Show pools, nodes, jobs, money and events live.

    It needs a terminal of 80 columns; wider ones show more. Elsewhere use `meshctl status`.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM") in {"dumb", ""}:
        raise CliError(
            "top needs a terminal that can move its cursor", "use `meshctl status` or `meshctl nodes -o json`",
            code=ExitCode.USAGE, kind="no_terminal",
        )  # fmt: skip
    from meshd.cli.top.app import TopApp  # slow to import, and no other command needs it

    session.ask(lambda head: TopApp(head, every_s=every_s).run_async())
