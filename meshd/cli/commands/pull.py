"""`meshctl pull`: files from nodes to the head."""

from __future__ import annotations

import os
from pathlib import Path

import click

from meshd.cli.copies import copies, options
from meshd.cli.transfer import Place, Route, Wanted, node_of, place

EXAMPLES = """\b
Examples:
  meshctl pull h100-1:/tmp/checkpoints .      ./checkpoints
  meshctl pull h100-1:/tmp/out/ results       what is in out
  meshctl pull --job 17 :/tmp/out results     results/h100-1/out, results/h100-2/out, ...
"""


@click.command("pull", epilog=EXAMPLES)
@options
@click.argument("sources", metavar="NODE:PATH...", nargs=-1, required=True)
@click.argument("target", metavar="DIRECTORY", type=click.Path())
@click.pass_context
def command(ctx: click.Context, *, job: str | None, wanted: Wanted, sources: tuple[str, ...], target: str) -> None:
    """Copy files from a node to here, or from all nodes of a job.

    As `meshctl push`, the other way round. Setuid and setgid bits of files, devices and fifos do not come along:
    root of a node chooses them. With --job each node's files go to a directory of its name below DIRECTORY.
    """
    found = [place(source) for source in sources]
    places = [one for one in found if one is not None]
    if len(places) != len(found):
        raise click.UsageError("each source is NODE:PATH, or :PATH with --job")

    def plan(route: Route, *, several: bool) -> tuple[list[str | Place], str | Place]:
        if not several:
            return list(places), target
        below = Path(target) / route.node
        if not wanted.dry_run:
            below.mkdir(parents=True, exist_ok=True)
        return list(places), f"{below}{os.sep}"

    ctx.exit(copies(ctx.obj, node_of(places), job, wanted, plan))
