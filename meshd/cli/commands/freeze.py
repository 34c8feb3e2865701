"""`meshctl freeze`: meshd rents nothing and ends nothing."""

from __future__ import annotations

import click

from meshd.api import endpoints
from meshd.api.glance import frozen
from meshd.api.schema import FreezeRequest
from meshd.cli.params.options import as_json_option
from meshd.cli.session import Session, print_json, say
from meshd.model.freeze import REASON_MAX


@click.command("freeze")
@click.option("--reason", default="", metavar="TEXT", help=f"For all to see; at most {REASON_MAX} characters.")
@as_json_option
@click.pass_obj
def command(session: Session, *, reason: str, as_json: bool) -> None:
    """Rent nothing and end nothing, until `meshctl thaw`.

    For work on a cloud or on the cluster, and when something goes wrong. Jobs run on; machines that are ordered
    already join. Jobs that need new machines wait in Slurm's queue, and start by themselves after the thaw. Budgets
    warn, but kill_at ends nothing. It survives restarts of meshd. What exists goes on to cost money.
    """
    answer = session.ask(lambda head: head.call(endpoints.FREEZE, FreezeRequest(reason=reason)))
    if as_json:
        print_json(answer)
        return
    if answer.freeze is not None:
        say(frozen(answer.freeze) if answer.changed else f"no change: {frozen(answer.freeze)}")
