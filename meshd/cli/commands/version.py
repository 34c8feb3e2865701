"""`meshctl version`: shows the versions of meshctl and of the head's programs."""

from __future__ import annotations

import click

from meshd import __version__
from meshd.api import endpoints
from meshd.api.schema import VersionView
from meshd.cli.errors import UnreachableError
from meshd.cli.params.options import as_json_option
from meshd.cli.render.table import Table
from meshd.cli.render.terminal import show
from meshd.cli.session import Session, print_json


@click.command("version")
@as_json_option
@click.pass_obj
def command(session: Session, *, as_json: bool) -> None:
    """Show the versions of meshctl and of the head's programs."""
    try:
        view = session.ask(lambda head: head.call(endpoints.VERSION))
    except UnreachableError:
        if not as_json:
            click.echo(f"meshctl {__version__}")
        raise
    if as_json:
        print_json(view)
    else:
        show(_table(view))


def _table(view: VersionView) -> Table:
    rows = [("meshctl", __version__), ("meshd", view.meshd), ("cluster", view.cluster), ("python", view.python)]
    rows += [("slurm", view.slurm), ("tailscale", view.tailscale)]
    rows += [(f"provider {name}", found) for name, found in sorted(view.providers.items())]
    return Table(("WHAT", "VERSION"), [(name, found or "not known") for name, found in rows])
