"""`meshctl thaw`: ends a freeze."""

from __future__ import annotations

import click

from meshd.api import endpoints
from meshd.api.schema import ThawRequest
from meshd.cli.params.options import as_json_option
from meshd.cli.session import Session, print_json, say


@click.command("thaw")
@as_json_option
@click.pass_obj
def command(session: Session, *, as_json: bool) -> None:
    """End a freeze: meshd rents and ends machines again.

    A budget whose kill_at was reached
    meanwhile ends the machines at once.
    """
    answer = session.ask(lambda head: head.call(endpoints.THAW, ThawRequest()))
    if as_json:
        print_json(answer)
    else:
        say("thawed: meshd rents and ends machines again" if answer.changed else "no change: meshd was not frozen")
