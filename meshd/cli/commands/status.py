"""`meshctl status`: how the whole stands."""

from __future__ import annotations

import click

from meshd.cli import render
from meshd.cli.session import Session, output_option, print_json


@click.command("status")
@output_option
@click.pass_obj
def command(session: Session, *, as_json: bool) -> None:
    """Show pools, what they cost, and what is wrong."""
    view = session.ask(lambda head: head.status())
    if as_json:
        print_json(view)
    else:
        render.show(*render.status(view))
