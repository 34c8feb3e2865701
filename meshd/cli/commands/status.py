"""`meshctl status`: how the whole stands."""

from __future__ import annotations

import click

from meshd.api import endpoints
from meshd.api.schema import StatusView
from meshd.cli import render
from meshd.cli.outputs import Output, outputs_option, show_or_watch, verbose_option, watch_option
from meshd.cli.session import Session, print_json


@click.command("status")
@watch_option
@verbose_option
@outputs_option(Output.WIDE)
@click.pass_obj
def command(session: Session, *, watch: bool, verbose: bool, output: Output) -> None:
    """Show pools, what they cost, and what is wrong."""

    def show(view: StatusView) -> None:
        if output is Output.JSON:
            print_json(view)
        else:
            render.show(*render.status(view, full=verbose), whole=output is Output.WIDE)

    show_or_watch(session, lambda head: head.call(endpoints.STATUS), show, watch=watch, output=output)
