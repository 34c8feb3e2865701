"""`meshctl version`: what runs."""

from __future__ import annotations

import click

from meshd import __version__
from meshd.api import endpoints
from meshd.cli import render
from meshd.cli.exits import UnreachableError
from meshd.cli.session import Session, output_option, print_json


@click.command("version")
@output_option
@click.pass_obj
def command(session: Session, *, as_json: bool) -> None:
    """Show the versions of meshctl and of what runs on the head."""
    try:
        view = session.ask(lambda head: head.call(endpoints.VERSION))
    except UnreachableError:
        if not as_json:
            click.echo(f"meshctl {__version__}")
        raise
    if as_json:
        print_json(view)
    else:
        render.show(render.version(__version__, view))
