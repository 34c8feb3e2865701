"""`meshctl nodes`: the machines."""

from __future__ import annotations

import click

from meshd.api import endpoints
from meshd.api.schema import ExplainQuery, NodesView
from meshd.cli import render
from meshd.cli.client import Head
from meshd.cli.exits import CliError, Exit, UnreachableError
from meshd.cli.onmachines import tell_failed
from meshd.cli.outputs import Output, outputs_option, show_or_watch, watch_option
from meshd.cli.params import pool_option, some_nodes_argument
from meshd.cli.session import Session, print_json, say

EXAMPLES = """\b
Examples:
  meshctl nodes 'h100-[1-4]'            these nodes; a machine's own name will do as well
  meshctl nodes --pool h100
"""


@click.command("nodes", epilog=EXAMPLES)
@some_nodes_argument
@pool_option("Only this pool's.")
@watch_option
@outputs_option(Output.WIDE, Output.NAME)
@click.pass_obj
def command(session: Session, *, names: tuple[str, ...], pool: str | None, watch: bool, output: Output) -> None:
    """List the machines: what they are, do and cost."""
    failed: Failed = []

    async def ask(head: Head) -> NodesView:
        view, failed[:] = await _ask(head, names, pool)
        return view

    def show(view: NodesView) -> None:
        if names and not view.nodes and len(failed) == 1:
            raise failed[0][1]
        _print(view, output)
        if not view.nodes and not failed and output is not Output.JSON:
            say("no machines" if pool is None else f"no machines in pool {pool}")
        tell_failed(failed, len(names))

    show_or_watch(session, ask, show, watch=watch, output=output)


def _print(view: NodesView, output: Output) -> None:
    if output is Output.JSON:
        print_json(view)
    elif output is Output.NAME:
        for row in view.nodes:
            click.echo(row.slot)
    elif view.nodes:
        render.show(render.nodes(view.nodes, view.at), whole=output is Output.WIDE)


Failed = list[tuple[str, CliError]]


async def _ask(head: Head, names: tuple[str, ...], pool: str | None) -> tuple[NodesView, Failed]:
    """The machines that are meant, and the names that stand for none."""
    view = await head.call(endpoints.NODES)
    rows = view.nodes
    if pool is not None:
        rows = [row for row in rows if row.pool == pool]
        if not rows:
            await _known(head, pool=pool)
    failed: Failed = []
    if names:
        rows = [row for row in rows if row.machine in names or row.slot in names]
        there = {name for row in rows for name in (row.machine, row.slot)}
        for name in names:
            if name not in there:
                failed.append((name, await _why_not(head, name)))
    return view.model_copy(update={"nodes": rows}), failed


async def _why_not(head: Head, name: str) -> CliError:
    """Why a name has no row: there is no such node, or no machine stands there."""
    try:
        why = (await head.call(endpoints.EXPLAIN, ExplainQuery(subject=name))).why
    except UnreachableError:
        raise
    except CliError as error:
        return error
    return CliError(f"no machine stands there: {why}", f"`meshctl explain {name}` shows what was tried", kind="refused")


async def _known(head: Head, *, pool: str) -> None:
    """Refuse a pool that the settings do not have: its being empty would be no answer."""
    pools = [known.name for known in (await head.call(endpoints.STATUS)).pools]
    if pool not in pools:
        words = f"pools are: {', '.join(pools) or 'none'}"
        raise CliError(f"there is no pool {pool}", words, code=Exit.USAGE, kind="unknown")
