"""`meshctl drain`: stops new jobs on nodes."""

from __future__ import annotations

import click

from meshd.api import endpoints
from meshd.api.schema import DrainRequest
from meshd.cli.batch import change_nodes
from meshd.cli.params.options import as_json_option, nodes_argument
from meshd.cli.session import Session


@click.command("drain")
@nodes_argument
@click.option("--reason", default="", help="Shown by `sinfo -R`.")
@as_json_option
@click.pass_obj
def command(session: Session, *, nodes: tuple[str, ...], reason: str, as_json: bool) -> None:
    """Stop new jobs on nodes. Running jobs go on; machines stay rented.

    Name a node by its slot or its machine.
    """
    change_nodes(
        session,
        nodes,
        lambda head, node: head.call(endpoints.DRAIN, DrainRequest(machine=node, reason=reason)),
        as_json=as_json,
    )
