"""`meshctl reload`: have the daemon read its settings again. meshd.service calls it for `systemctl reload meshd`."""

from __future__ import annotations

import click

from meshd.api import endpoints
from meshd.api.schema import ReloadRequest
from meshd.cli import render
from meshd.cli.exits import CliError
from meshd.cli.session import Session, output_option, print_json, say


@click.command("reload")
@output_option
@click.pass_obj
def command(session: Session, *, as_json: bool) -> None:
    """Have meshd read its settings again.

    `systemctl reload meshd` does the same. When they are wrong, every fault is shown, the settings from before stay in
    force, and it ends with 1. What needs a restart is named.
    """
    view = session.ask(lambda head: head.call(endpoints.RELOAD, ReloadRequest()))
    if as_json:
        print_json(view)
    if not view.reloaded:
        if not as_json:
            render.show(*render.checks(view.faults), err=True)
        raise CliError(
            "the settings are wrong: those from before stay in force", "mend the file, then `systemctl reload meshd`",
            kind="config",
        )  # fmt: skip
    if view.waiting:
        say(f"reloaded; changes in {', '.join(view.waiting)} need `systemctl restart meshd`")
    elif not as_json:
        say("reloaded")
