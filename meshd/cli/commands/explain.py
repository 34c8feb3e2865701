"""`meshctl explain`: why something is as it is."""

from __future__ import annotations

import click

from meshd.cli import render
from meshd.cli.exits import EXIT_CODES_HELP
from meshd.cli.params import subject_argument
from meshd.cli.render_explain import explain
from meshd.cli.session import Session, output_option, print_json

EXAMPLES = """\b
Examples:
  meshctl explain h100-3                the slot, as sinfo names it
  meshctl explain lab-h100-3-k7q2mz     one machine, also one that is gone
  meshctl explain h100                  the whole pool
"""


@click.command("explain", epilog=f"{EXAMPLES}\n{EXIT_CODES_HELP}")
@subject_argument
@output_option
@click.pass_obj
def command(session: Session, *, subject: str, as_json: bool) -> None:
    """Tell what a machine, a slot or a pool is doing and why.

    Shows what it waits for, every offer that was tried and what the cloud answered in its own words, which offers come
    next and why the others would not do, and the newest events.
    """
    view = session.ask(lambda head: head.explain(subject))
    if as_json:
        print_json(view)
    else:
        render.show(*explain(view))
