"""`meshctl config`: the settings file."""

from __future__ import annotations

import click

from meshd.api.schema import CheckRow, DoctorView
from meshd.cli import render
from meshd.cli.adapters import check_providers
from meshd.cli.credentials import lent
from meshd.cli.exits import CliError
from meshd.cli.session import Session, output_option, print_json
from meshd.config import Settings, load, tailnet_credentials
from meshd.errors import ConfigError
from meshd.model.words import counted
from meshd.runtime.secretfile import read_secret

AUTH_KEY_CREDENTIAL = "tailscale_auth_key"


@click.group("config")
def command() -> None:
    """Work with meshd's settings."""


@command.command("check")
@output_option
@click.pass_obj
def check(session: Session, *, as_json: bool) -> None:
    """Check the settings: the file and each provider's table. Speaks with no cloud and not with the daemon."""
    rows = _check(session)
    if as_json:
        print_json(DoctorView(checks=rows, source="local"))
    else:
        render.show(*render.checks(rows))
    faults = sum(row.status == "fail" for row in rows)
    if faults:
        raise CliError(
            f"{counted(faults, 'fault')} in {session.config}",
            "mend them; a meshd that runs keeps the settings that it has",
            kind="config",
        )


def _check(session: Session) -> list[CheckRow]:
    try:
        settings = load(session.config)
    except ConfigError as error:
        return [CheckRow(name=error.source, status="fail", text=problem) for problem in error.problems]
    enabled = [name for name, table in settings.providers.items() if table.enabled]
    rows = [
        CheckRow(
            name=str(session.config),
            status="ok",
            text=f"cluster {settings.cluster.name}, {counted(len(settings.pools), 'pool')}, "
            f"{counted(len(enabled), 'provider')}",
        )
    ]
    if not settings.pools:
        rows.append(CheckRow(name="pools", status="warn", text="there are none", cure="add a [pools.NAME] table"))
    if not enabled:
        rows.append(
            CheckRow(name="providers", status="warn", text="none is enabled", cure="add a [providers.NAME] table")
        )
    with lent(session.config.parent / "credentials") as readable:
        if not readable:
            text = "this user may not read them, so a provider may miss its own below"
            rows.append(CheckRow(name="credentials", status="warn", text=text, cure="run it as root"))
        else:
            rows += _tailnet(settings)
        return rows + check_providers(settings)


def _tailnet(settings: Settings) -> list[CheckRow]:
    """Whether new machines can have an auth key: one from a file, or a credential that mints them."""
    tailnet = settings.tailnet
    try:
        minting = any(tailnet_credentials(tailnet))
        shared = None if tailnet.mint_auth_key else read_secret(tailnet.auth_key_file, AUTH_KEY_CREDENTIAL)
    except ConfigError as error:
        return [CheckRow(name=error.source, status="fail", text=problem) for problem in error.problems]
    if shared is None and not minting:
        cure = "put one into credentials/tailscale/auth_key, or let meshd mint it (docs/tailnet.md)"
        return [CheckRow(name="auth key", status="warn", text="there is none: nothing can be rented", cure=cure)]
    return []
