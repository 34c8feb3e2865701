"""`meshctl notify`: tries the receivers of notifications."""

from __future__ import annotations

import click

from meshd.api import endpoints
from meshd.api.schema import NotifyTestRequest
from meshd.cli.errors import CliError
from meshd.cli.params.options import as_json_option
from meshd.cli.session import Session, print_json, say
from meshd.plaintext import counted


@click.group("notify")
def command() -> None:
    """Try who is told of problems."""


@command.command("test")
@click.argument("receiver", required=False, default="")
@as_json_option
@click.pass_obj
def test(session: Session, *, receiver: str, as_json: bool) -> None:
    """Send a test message to RECEIVER, or to all.

    RECEIVER is the NAME of a table [notify.NAME] in the settings. It shows what each receiver answered, and exits with
    1 if one of them did not take the message.
    """
    answer = session.ask(lambda head: head.call(endpoints.NOTIFY_TEST, NotifyTestRequest(receiver=receiver)))
    if as_json:
        print_json(answer)
    else:
        for row in answer.rows:
            say(f"{row.receiver}: {'took it' if row.ok else 'FAILED'}: {row.text}")
    failed = sum(not row.ok for row in answer.rows)
    if failed:
        raise CliError(
            f"{counted(failed, 'receiver')} did not take the test message",
            "correct its table in the settings, then `systemctl reload meshd`",
        )
    if not answer.rows:
        raise CliError("there is no receiver", "add a table [notify.NAME] to the settings (docs/notifications.md)")
