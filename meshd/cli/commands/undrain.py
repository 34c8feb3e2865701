"""`meshctl undrain`: allows jobs on nodes again."""

from __future__ import annotations

import click

from meshd.api import endpoints
from meshd.api.schema import DrainRequest
from meshd.cli.batch import change_nodes
from meshd.cli.params.options import as_json_option, nodes_argument
from meshd.cli.session import Session


@click.command("undrain")
@nodes_argument
@as_json_option
@click.pass_obj
def command(session: Session, *, nodes: tuple[str, ...], as_json: bool) -> None:
    """Allow jobs on nodes again, whoever drained them."""
    change_nodes(
        session, nodes, lambda head, node: head.call(endpoints.UNDRAIN, DrainRequest(machine=node)), as_json=as_json
    )
