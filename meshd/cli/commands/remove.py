"""`meshctl remove`: gives machines back."""

from __future__ import annotations

import click

from meshd.api import endpoints
from meshd.api.schema import HostRow, NodeRow, RemoveRequest
from meshd.cli.batch import change_nodes
from meshd.cli.params.options import as_json_option, nodes_argument, yes_option
from meshd.cli.session import Session, confirm, say
from meshd.plaintext import counted


@click.command("remove")
@nodes_argument
@click.option("--force", is_flag=True, help="Do not wait for running jobs: end them.")
@click.option("--dry-run", is_flag=True, help="Only show what would be given back.")
@yes_option
@as_json_option
@click.pass_obj
def command(session: Session, *, nodes: tuple[str, ...], force: bool, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Give machines back after their jobs have ended.

    With --force, give them back at once, which ends their jobs. The pool keeps its target, so meshd rents other
    machines. To have fewer, use `meshctl scale`. An owned machine, by its own name or as a node, is evicted: meshd is
    taken off it. With --force, one that is away is not waited for.
    """
    rows = session.ask(lambda head: head.call(endpoints.NODES)).nodes
    hosts = session.ask(lambda head: head.call(endpoints.HOSTS)).hosts
    evicted = [row for row in hosts if nodes_of(row) & set(nodes)]
    also = {row.machine for row in evicted}
    nodes_too = set(nodes) | also
    found = [row for row in rows if row.machine in nodes_too or row.slot in nodes]
    for host in evicted:
        say(f"{host.name} ({host.slot}, {host.state}) is evicted")
    for row in found:
        say(f"{row.machine} ({row.slot}, {row.phase}, ${row.usd_per_hour:.2f} per hour){_jobs(row, force=force)}")
    jobs = sorted({job for row in found for job in row.jobs})
    if (found or evicted) and not dry_run:
        why = f"this gives {counted(len(found), 'machine')} back" if found else "this gives no machine back"
        why += f" and evicts {', '.join(host.name for host in evicted)}" if evicted else ""
        if force and jobs:
            why += f" and ends job {', '.join(jobs)}"
        confirm(f"{why[0].upper()}{why[1:]}. Go on?", yes=yes, why=why)
    change_nodes(
        session,
        nodes,
        lambda head, node: head.call(endpoints.REMOVE, RemoveRequest(machine=node, force=force, dry_run=dry_run)),
        as_json=as_json,
    )


def nodes_of(host: HostRow) -> set[str]:
    """The words by which a user may mean a host; its slot only while its machine has it."""
    return {host.name, *((host.machine, host.slot) if host.machine else ())}


def _jobs(row: NodeRow, *, force: bool) -> str:
    if not row.jobs:
        return ""
    return f": ends job {', '.join(row.jobs)}" if force else f": waits for job {', '.join(row.jobs)}"
