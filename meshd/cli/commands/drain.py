"""`meshctl drain`: no new jobs on a node."""

from __future__ import annotations

import click

from meshd.api import endpoints
from meshd.api.schema import DrainRequest
from meshd.cli.onmachines import each
from meshd.cli.params import machines_argument
from meshd.cli.session import Session, output_option


@click.command("drain")
@machines_argument
@click.option("--reason", default="", help="Shown by sinfo -R.")
@output_option
@click.pass_obj
def command(session: Session, *, machines: tuple[str, ...], reason: str, as_json: bool) -> None:
    """Let nodes take no new jobs. Running jobs go on, and the machines stay rented.

    A node is named by its machine or its slot.
    """
    each(
        session,
        machines,
        lambda head, m: head.call(endpoints.DRAIN, DrainRequest(machine=m, reason=reason)),
        as_json=as_json,
    )
