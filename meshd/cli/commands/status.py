"""`meshctl status`: shows the cluster, its pools and its problems."""

from __future__ import annotations

import click

from meshd.api import endpoints
from meshd.api.schema import StatusView
from meshd.cli.params.options import OutputFormat, output_option, verbose_option, watch_option
from meshd.cli.render.status import status
from meshd.cli.render.terminal import show
from meshd.cli.session import Session, print_json


@click.command("status")
@watch_option
@verbose_option
@output_option(OutputFormat.WIDE)
@click.pass_obj
def command(session: Session, *, watch: bool, verbose: bool, output: OutputFormat) -> None:
    """Show the pools, their cost, and problems."""

    def render(view: StatusView) -> None:
        if output is OutputFormat.JSON:
            print_json(view)
        else:
            show(*status(view, verbose=verbose), wide=output is OutputFormat.WIDE)

    session.show(lambda head: head.call(endpoints.STATUS), render, watch=watch, as_json=output is OutputFormat.JSON)
