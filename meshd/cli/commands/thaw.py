"""`meshctl thaw`: ends a freeze."""

from __future__ import annotations

import click

from meshd.api import endpoints
from meshd.api.schema import ThawRequest
from meshd.cli.params.options import as_json_option
from meshd.cli.session import Session, print_json, say


@click.command("thaw")
@click.option(
    "--provider", default="", metavar="CLOUD",
    help="After a restore: go on without a listing of this cloud. What was rented there since the backup may "
    "be rented once more; meshd adopts or ends it when it can list the cloud again. A freeze holds on.",
)  # fmt: skip
@as_json_option
@click.pass_obj
def command(session: Session, *, provider: str, as_json: bool) -> None:
    """End a freeze: meshd rents and ends machines again.

    A budget whose kill_at was reached meanwhile ends the machines at once. With --provider it only ends the wait for
    one cloud after a restore.
    """
    answer = session.ask(lambda head: head.call(endpoints.THAW, ThawRequest(provider=provider)))
    if as_json:
        print_json(answer)
    elif provider:
        none = f"no change: meshd does not wait for {provider}"
        say(f"meshd goes on without a listing of {provider}" if answer.changed else none)
    else:
        say("thawed: meshd rents and ends machines again" if answer.changed else "no change: meshd was not frozen")
