"""`meshctl config`: the settings file."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import click

from meshd import config
from meshd.api.schema import CheckRow, DoctorView
from meshd.cli import render
from meshd.cli.adapters import check_providers
from meshd.cli.credentials import lent
from meshd.cli.exits import CliError
from meshd.cli.faults import row_of, rows, rows_of
from meshd.cli.session import Session, output_option, print_json
from meshd.config import File, Settings, tailnet_credentials
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
    found = _check(session.config)
    if as_json:
        print_json(DoctorView(checks=found, source="local"))
    else:
        render.show(*render.checks(found))
    faults = sum(row.status == "fail" for row in found)
    if faults:
        raise CliError(
            f"{counted(faults, 'fault')} in {session.config}",
            "mend them, then `systemctl reload meshd`; a meshd that runs keeps the settings that it has",
            kind="config",
        )


def _check(path: Path) -> list[CheckRow]:
    file: File | None = None
    try:
        file = config.read(path)
        settings = config.parse(file)
    except ConfigError as error:
        more = rows(file, config.secrets_in(file.table, file.mode)) if file is not None else []
        return rows_of(error) + more
    found = [_summary(path, settings)]
    found += rows(file, config.doubts(settings, file.table, file.mode, str(path)))
    if not settings.pools:
        found.append(CheckRow(name="pools", status="warn", text="there are none", cure="add a [pools.NAME] table"))
    if not _enabled(settings):
        cure = "add a [providers.NAME] table"
        found.append(CheckRow(name="providers", status="warn", text="none is enabled", cure=cure))
    directory = path.parent / "credentials"
    with lent(directory) as readable:
        if not readable:
            text = "this user may not read them, so a provider may miss its own below"
            found.append(CheckRow(name="credentials", status="warn", text=text, cure="run it as root"))
        else:
            found += [*_files(directory), *_tailnet(settings)]
        return found + check_providers(settings, file)


def _summary(path: Path, settings: Settings) -> CheckRow:
    text = f"cluster {settings.cluster.name}, {counted(len(settings.pools), 'pool')}, "
    return CheckRow(name=str(path), status="ok", text=text + counted(len(_enabled(settings)), "provider"))


def _enabled(settings: Settings) -> list[str]:
    return [name for name, table in settings.providers.items() if table.enabled]


def _files(directory: Path) -> Iterator[CheckRow]:
    """Credentials that others may read, and what is no file at all."""
    for path in sorted(directory.glob("*/*")) if directory.is_dir() else ():
        if not path.exists():
            yield row_of(path, "leads nowhere", "put the key into a file here")
        elif not path.is_file():
            yield row_of(path, "is a directory, not a file with a key", f"remove it: `rmdir {path}`")
        elif (mode := stat.S_IMODE(path.stat().st_mode)) & 0o077:
            yield row_of(path, f"others may read it (mode {mode:04o})", f"`chmod 0600 {path}`")


def _tailnet(settings: Settings) -> list[CheckRow]:
    """Whether new machines can have an auth key: one from a file, or a credential that mints them."""
    tailnet = settings.tailnet
    try:
        minting = any(tailnet_credentials(tailnet))
        shared = None if tailnet.mint_auth_key else read_secret(tailnet.auth_key_file, AUTH_KEY_CREDENTIAL)
    except ConfigError as error:
        return rows_of(error)
    if shared is None and not minting:
        cure = "put one into credentials/tailscale/auth_key, or let meshd mint it (docs/tailnet.md)"
        return [CheckRow(name="auth key", status="warn", text="there is none: nothing can be rented", cure=cure)]
    return []
