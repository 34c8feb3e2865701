"""`meshctl image`: bakes, lists and deletes images of machines."""

from __future__ import annotations

from datetime import datetime

import click

from meshd.api import endpoints
from meshd.api.schema import BakeRequest, ImageRow, ImagesView, PruneRequest
from meshd.cli.errors import CliError, ExitCode
from meshd.cli.params.options import as_json_option, watch_option, yes_option
from meshd.cli.render.table import Table
from meshd.cli.render.terminal import show
from meshd.cli.session import Session, confirm, print_json, say
from meshd.plaintext import age, counted


@click.group("image")
def command() -> None:
    """Bake images from which machines boot faster."""


@command.command("bake")
@click.option("--provider", required=True, metavar="NAME", help="Where: aws or gce.")
@click.option("--pool", default="", metavar="POOL", help="For whose machines.  [default: the provider's first pool]")
@click.option("--region", default="", metavar="REGION", help="[default: where the pool is cheapest]")
@click.option("--dry-run", is_flag=True, help="Only show what would be rented.")
@yes_option
@as_json_option
@click.pass_obj
def bake(session: Session, *, provider: str, pool: str, region: str, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Rent a machine, install on it what a node needs, keep its disk as an image, and end it.

    It takes some minutes; see `meshctl image list`. New machines in that region boot from the newest image; on gce
    in all regions.
    """
    request = BakeRequest(provider=provider, pool=pool, region=region, dry_run=True)
    seen = session.ask(lambda head: head.call(endpoints.BAKE_IMAGE, request))
    words = f"{seen.instance_type} in {seen.region} ({seen.arch}) at ${seen.usd_per_hour:.2f} per hour"
    if dry_run:
        print_json(seen) if as_json else say(f"would rent {words}")
        return
    confirm(f"This rents {words} for some minutes. Go on?", yes=yes, why=f"this rents {words}")
    order = request.model_copy(update={"dry_run": False})
    answer = session.ask(lambda head: head.call(endpoints.BAKE_IMAGE, order))
    if as_json:
        print_json(answer)
    else:
        say(f"{answer.name} is ordered; `meshctl image list` shows how far it is")


@command.command("list")
@watch_option
@as_json_option
@click.pass_obj
def list_images(session: Session, *, watch: bool, as_json: bool) -> None:
    """List images, newest first, and those that are being made."""

    def render(view: ImagesView) -> None:
        if as_json:
            print_json(view)
            return
        for row in view.bakes:
            if row.phase in {"installing", "copying"}:
                place = f"{row.provider} in {row.region}" if row.region else row.provider
                say(f"{row.name}: {row.phase} on {place} since {age_of(row.since, view.at)}")
        for text in view.unread:
            say(f"not read: {text}")
        if view.images:
            show(_table(view.images, view.at))
        elif not view.bakes:
            say("no images yet; `meshctl help image` says how to bake one")

    session.show(lambda head: head.call(endpoints.IMAGES), render, watch=watch, as_json=as_json)


@command.command("prune")
@click.option("--provider", default="", metavar="NAME", help="[default: all]")
@click.option("--all", "newest", is_flag=True, help="Also the newest of each region, unless a machine runs from it.")
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@yes_option
@as_json_option
@click.pass_obj
def prune(session: Session, *, provider: str, newest: bool, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Delete images that are neither the newest of their region nor in use, and what is left of others."""
    request = PruneRequest(provider=provider, newest=newest, dry_run=True)
    answer = session.ask(lambda head: head.call(endpoints.PRUNE_IMAGES, request))
    if answer.images and not dry_run:
        if not as_json:
            show(_table(answer.images, None))
        why = f"this deletes {counted(len(answer.images), 'image')}"
        confirm(f"{why[0].upper()}{why[1:]}. Go on?", yes=yes, why=why)
        order = request.model_copy(update={"dry_run": False})
        answer = session.ask(lambda head: head.call(endpoints.PRUNE_IMAGES, order))
    if as_json:
        print_json(answer)
    elif not answer.images:
        say("nothing to delete")
    elif dry_run:
        show(_table(answer.images, None))
    if answer.failed or answer.unread:
        raise CliError("; ".join((*answer.failed, *answer.unread)), code=ExitCode.PARTLY, kind="partly")


def age_of(at: datetime | None, now: datetime | None) -> str:
    """How long ago; "-" when that is not known."""
    return age((now - at).total_seconds()) if at is not None and now is not None else "-"


def _table(rows: list[ImageRow], now: datetime | None) -> Table:
    return Table(
        ("IMAGE", "PROVIDER", "REGION", "ARCH", "AGE", "SLURM", "TAILSCALE", "GIB", "USD/MONTH", "USED BY", "NOTE"),
        [
            (
                row.id, row.provider, row.region or "all", row.arch or "-", age_of(row.created_at, now),
                row.slurm or "-", row.tailscale or "-", "-" if row.size_gib is None else f"{row.size_gib}",
                "-" if row.usd_per_month is None else f"{row.usd_per_month:.2f}",
                counted(len(row.machines), "machine") if row.machines else "-", _note(row),
            )
            for row in rows
        ],
        optional=("TAILSCALE", "GIB", "ARCH", "REGION"),
    )  # fmt: skip


def _note(row: ImageRow) -> str:
    if row.state != "available":
        return f"{row.state}: {row.reason}" if row.reason else row.state
    if row.reason:
        return row.reason
    return f"stale: {row.stale}" if row.stale else "" if row.newest else "an older one"
