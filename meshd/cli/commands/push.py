"""`meshctl push`: files from the head to nodes."""

from __future__ import annotations

import click

from meshd.cli.copies import copies, options
from meshd.cli.transfer import Place, Route, Wanted, node_of, place

EXAMPLES = """\b
Examples:
  meshctl push data h100-1:/tmp/              /tmp/data on the node
  meshctl push data/ h100-1:/tmp/data         what is in data
  meshctl push --job 17 model.pt :/tmp/       to every node of a job
"""


@click.command("push", epilog=EXAMPLES)
@options
@click.argument("sources", metavar="FILE...", nargs=-1, required=True, type=click.Path(exists=True))
@click.argument("target", metavar="NODE:PATH")
@click.pass_context
def command(ctx: click.Context, *, job: str | None, wanted: Wanted, sources: tuple[str, ...], target: str) -> None:
    """Copy files from here to a node, or to all nodes of a job.

    It needs no share, no ssh, no key and no root: rsync runs inside your job on that node, or in a small job of its own
    where you have none. Files keep times and modes; what is there already is not sent again. A transfer that was cut
    off goes on when the same command runs again. `FILE/` means the files in it. A PATH that does not begin with `/`
    starts in your home on the node.

    The exit code is rsync's, the highest of all nodes: 23 if a file could not be copied, 10 or 12 if the connection
    broke.
    """
    to = place(target)
    if to is None:
        raise click.UsageError(f"{target} names no node: write NODE:PATH, or :PATH with --job")

    def plan(route: Route, *, several: bool) -> tuple[list[str | Place], str | Place]:
        return list(sources), Place(route.node, to.path)

    ctx.exit(copies(ctx.obj, node_of([to]), job, wanted, plan))
