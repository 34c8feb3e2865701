"""`meshctl remove`: give machines back."""

from __future__ import annotations

import click

from meshd.api import endpoints
from meshd.api.schema import NodeRow, RemoveRequest
from meshd.cli.onmachines import each
from meshd.cli.params import machines_argument
from meshd.cli.session import Session, confirm, output_option, say
from meshd.model.words import counted


@click.command("remove")
@machines_argument
@click.option("--force", is_flag=True, help="Do not wait for running jobs: they end.")
@click.option("--dry-run", is_flag=True, help="Only show what would be given back.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@output_option
@click.pass_obj
def command(
    session: Session, *, machines: tuple[str, ...], force: bool, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Give machines back after their jobs have ended.

    With --force at once, which ends the jobs. The pool's target stays: meshd rents another machine unless the target is
    lowered with `meshctl scale`.
    """
    rows = session.ask(lambda head: head.call(endpoints.NODES)).nodes
    found = [row for row in rows if row.machine in machines or row.slot in machines]
    for row in found:
        say(f"{row.machine} ({row.slot}, {row.phase}, ${row.usd_per_hour:.2f} per hour){_jobs(row, force=force)}")
    request = RemoveRequest(machine=machines[0], force=force, dry_run=dry_run)
    jobs = sorted({job for row in found for job in row.jobs})
    if found and not dry_run:
        why = f"this gives {counted(len(found), 'machine')} back"
        if force and jobs:
            why += f" and ends job {', '.join(jobs)}"
        confirm(f"{why[0].upper()}{why[1:]}. Go on?", yes=yes, why=why)
    each(
        session,
        machines,
        lambda head, m: head.call(endpoints.REMOVE, request.model_copy(update={"machine": m})),
        as_json=as_json,
    )


def _jobs(row: NodeRow, *, force: bool) -> str:
    if not row.jobs:
        return ""
    return f": job {', '.join(row.jobs)} {'ends' if force else 'is waited for'}"
