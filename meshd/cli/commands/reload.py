"""`meshctl reload`: makes the daemon read its settings again. `systemctl reload meshd` runs it."""

from __future__ import annotations

import click

from meshd.api import endpoints
from meshd.api.schema import ReloadRequest
from meshd.cli.errors import CliError
from meshd.cli.params.options import as_json_option
from meshd.cli.render.status import checks
from meshd.cli.render.terminal import show
from meshd.cli.session import Session, print_json, say


@click.command("reload")
@as_json_option
@click.pass_obj
def command(session: Session, *, as_json: bool) -> None:
    """Make meshd read its settings again.

    `systemctl reload meshd` does the same. If the settings are wrong, it shows every fault, keeps the last settings,
    and exits with 1. It names the changes that need a restart.
    """
    view = session.ask(lambda head: head.call(endpoints.RELOAD, ReloadRequest()))
    if as_json:
        print_json(view)
    if not view.reloaded:
        if not as_json:
            show(*checks(view.faults), err=True)
        raise CliError(
            "the settings are wrong: meshd keeps the last ones", "correct the file, then `systemctl reload meshd`",
            kind="config",
        )  # fmt: skip
    if view.waiting:
        say(f"reloaded; changes in {', '.join(view.waiting)} need `systemctl restart meshd`")
    elif not as_json:
        say("reloaded")
