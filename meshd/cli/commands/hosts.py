"""`meshctl hosts`: lists owned machines."""

from __future__ import annotations

from datetime import datetime

import click

from meshd.api import endpoints
from meshd.api.schema import HostRow, HostsView
from meshd.cli.params.options import as_json_option, watch_option
from meshd.cli.render.table import Table
from meshd.cli.render.terminal import show
from meshd.cli.session import Session, print_json, say
from meshd.plaintext import age


@click.command("hosts")
@watch_option
@as_json_option
@click.pass_obj
def command(session: Session, *, watch: bool, as_json: bool) -> None:
    """List owned machines and open invitations."""

    def render(view: HostsView) -> None:
        if as_json:
            print_json(view)
        elif view.hosts:
            show(_table(view))
        else:
            say("no owned machines; `meshctl invite` invites one")

    session.show(lambda head: head.call(endpoints.HOSTS), render, watch=watch, as_json=as_json)


def _table(view: HostsView) -> Table:
    return Table(
        ("NAME", "POOL", "SLOT", "STATE", "GPUS", "SEEN", "USD/H", "MACHINE", "WHY"),
        [
            (
                row.name, row.pool, row.slot, row.state, f"{row.gpus}x {row.gpu}" if row.gpus else "-",
                age((view.at - row.seen_at).total_seconds()) if row.seen_at is not None else "-",
                f"{row.usd_per_hour:.2f}", row.machine or "-", _why(row, view.at),
            )
            for row in view.hosts
        ],
        optional=("MACHINE", "GPUS", "USD/H", "POOL"),
    )  # fmt: skip


def _why(row: HostRow, now: datetime) -> str:
    if row.state == "invited" and row.expires_at is not None:
        return f"may come for {age((row.expires_at - now).total_seconds())}"
    return row.problem
