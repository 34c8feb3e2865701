"""`meshctl nodes`: lists the machines."""

from __future__ import annotations

import click

from meshd.api import endpoints
from meshd.api.schema import ExplainQuery, NodesView
from meshd.cli.batch import Failures, report_failures
from meshd.cli.client import HeadClient
from meshd.cli.errors import CliError, ExitCode, UnreachableError
from meshd.cli.params.options import OutputFormat, optional_nodes_argument, output_option, pool_option, watch_option
from meshd.cli.render import status
from meshd.cli.render.terminal import show
from meshd.cli.session import Session, print_json, say

EXAMPLES = """\b
Examples:
  meshctl nodes 'h100-[1-4]'            these slots; names of machines work too
  meshctl nodes --pool h100
"""


@click.command("nodes", epilog=EXAMPLES)
@optional_nodes_argument
@pool_option("Only of this pool.")
@watch_option
@output_option(OutputFormat.WIDE, OutputFormat.NAME)
@click.pass_obj
def command(session: Session, *, nodes: tuple[str, ...], pool: str | None, watch: bool, output: OutputFormat) -> None:
    """List the machines: their state, jobs and cost."""
    failed: Failures = []

    async def ask(head: HeadClient) -> NodesView:
        view, failed[:] = await _ask(head, nodes, pool)
        return view

    def render(view: NodesView) -> None:
        if nodes and not view.nodes and not view.head and len(failed) == 1:
            raise failed[0][1]
        _print(view, output)
        if not view.nodes and not view.head and not failed and output is not OutputFormat.JSON:
            say("no machines" if pool is None else f"no machines in pool {pool}")
        report_failures(failed, len(nodes))

    session.show(ask, render, watch=watch, as_json=output is OutputFormat.JSON)


def _print(view: NodesView, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json(view)
    elif output is OutputFormat.NAME:
        for row in view.nodes:
            click.echo(row.slot)
    elif view.nodes or view.head:
        show(status.nodes(view.nodes, view.at, view.head), wide=output is OutputFormat.WIDE)


async def _ask(head: HeadClient, names: tuple[str, ...], pool: str | None) -> tuple[NodesView, Failures]:
    """The machines that match, and an error for each name without a machine."""
    view = await head.call(endpoints.NODES)
    rows, this_host = view.nodes, view.head
    if pool is not None:
        this_host = None
        rows = [row for row in rows if row.pool == pool]
        if not rows:
            await _check_pool(head, pool)
    failed: Failures = []
    if names:
        this_host = this_host if this_host and this_host.name in names else None
        rows = [row for row in rows if row.machine in names or row.slot in names]
        found = {name for row in rows for name in (row.machine, row.slot)} | ({this_host.name} if this_host else set())
        for name in names:
            if name not in found:
                failed.append((name, await _why_missing(head, name)))
    return view.model_copy(update={"nodes": rows, "head": this_host}), failed


async def _why_missing(head: HeadClient, name: str) -> CliError:
    """Why a name has no row: there is no such node, or its slot is free."""
    try:
        why = (await head.call(endpoints.EXPLAIN, ExplainQuery(subject=name))).why
    except UnreachableError:
        raise
    except CliError as error:
        return error
    return CliError(f"no machine in this slot: {why}", f"see `meshctl explain {name}`", kind="refused")


async def _check_pool(head: HeadClient, pool: str) -> None:
    """Refuse a pool that does not exist: an empty list would look like an empty pool."""
    pools = [known.name for known in (await head.call(endpoints.STATUS)).pools]
    if pool not in pools:
        cure = f"the pools are: {', '.join(pools) or 'none'}"
        raise CliError(f"there is no pool {pool}", cure, code=ExitCode.USAGE, kind="unknown")
