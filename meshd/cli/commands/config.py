"""`meshctl config`: checks the settings file."""

from __future__ import annotations

import click

from meshd.api import endpoints
from meshd.api.schema import DoctorView, OffersQuery
from meshd.cli.errors import CliError
from meshd.cli.params.options import as_json_option
from meshd.cli.promise_check import offer_of
from meshd.cli.render.status import checks
from meshd.cli.render.terminal import show
from meshd.cli.session import Session, print_json
from meshd.cli.settings_check import check_settings
from meshd.plaintext import counted
from meshd.provider_api import Offer

OFFERS_MAX = 100_000
"""As many as the API gives."""


@click.group("config")
def command() -> None:
    """Check meshd's settings."""


@command.command("check")
@as_json_option
@click.pass_obj
def check(session: Session, *, as_json: bool) -> None:
    """Check the settings, the credentials and the providers.

    It does not need the daemon, and it does not connect to a cloud. While meshd runs, it also shows what each node of a
    pool that Slurm's queue drives promises, by what can be rented.
    """
    found = check_settings(session.config, lambda: _offers(session))
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


def _offers(session: Session) -> list[Offer] | None:
    """What can be rented, as meshd read it last; None when meshd does not run, or has not read it."""
    try:
        found = session.ask(lambda head: head.call(endpoints.OFFERS, OffersQuery(all=True, limit=OFFERS_MAX)))
    except CliError:
        return None
    return [offer_of(row) for row in found.offers] or None
