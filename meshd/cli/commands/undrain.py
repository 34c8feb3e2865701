"""`meshctl undrain`: jobs again on a node."""

from __future__ import annotations

import click

from meshd.api import endpoints
from meshd.api.schema import DrainRequest
from meshd.cli.onmachines import each
from meshd.cli.params import machines_argument
from meshd.cli.session import Session, output_option


@click.command("undrain")
@machines_argument
@output_option
@click.pass_obj
def command(session: Session, *, machines: tuple[str, ...], as_json: bool) -> None:
    """Let nodes take jobs again, whoever drained them."""
    each(session, machines, lambda head, m: head.call(endpoints.UNDRAIN, DrainRequest(machine=m)), as_json=as_json)
