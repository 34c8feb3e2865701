"""`meshctl config`: checks the settings file."""

from __future__ import annotations

import click

from meshd.api.schema import DoctorView
from meshd.cli.errors import CliError
from meshd.cli.params.options import as_json_option
from meshd.cli.render.status import checks
from meshd.cli.render.terminal import show
from meshd.cli.session import Session, print_json
from meshd.cli.settings_check import check_settings
from meshd.plaintext import counted


@click.group("config")
def command() -> None:
    """Check meshd's settings."""


@command.command("check")
@as_json_option
@click.pass_obj
def check(session: Session, *, as_json: bool) -> None:
    """Check the settings, the credentials and the providers.

    It does not need the daemon, and it does not connect to a cloud.
    """
    found = check_settings(session.config)
    if as_json:
        print_json(DoctorView(checks=found, source="local"))
    else:
        show(*checks(found))
    faults = sum(row.status == "fail" for row in found)
    if faults:
        raise CliError(
            f"{counted(faults, 'fault')} in {session.config}",
            "correct them, then `systemctl reload meshd`; until then a running meshd keeps its settings",
            kind="config",
        )
