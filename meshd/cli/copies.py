"""What `meshctl push` and `meshctl pull` share."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import click

from meshd.cli.commands.ssh import find_node
from meshd.cli.errors import CliError
from meshd.cli.fanout import Fanout, Job, worst
from meshd.cli.session import Session, say
from meshd.cli.transfer import (
    Place,
    Route,
    Slurm,
    Wanted,
    check_rsync,
    environment,
    home,
    rsync_argv,
)
from meshd.runtime.run import run
from meshd.runtime.terminal import clean

AT_ONCE = 8
"""Nodes that the head copies with at a time."""

F = TypeVar("F", bound=Callable[..., Any])


class Plan(Protocol):
    """Says what is copied for a node, and where to."""

    def __call__(self, route: Route, *, several: bool) -> tuple[list[str | Place], str | Place]:
        """The sources and the target. `several`: other nodes do the same."""
        ...


def options(command: F) -> F:
    """The options of both: the command gets `job` and `wanted`."""

    @click.option("--job", "-j", metavar="ID", help="All nodes of this job of yours; paths are then :PATH.")
    @click.option("--delete", is_flag=True, help="Delete files at the target that the source does not have.")
    @click.option("--exclude", metavar="PATTERN", multiple=True, help="Leave these files out; may be repeated.")
    @click.option("--compress", "-z", is_flag=True, help="Compress on the way: for text over a slow line.")
    @click.option("--dry-run", "-n", is_flag=True, help="Only show what would be copied.")
    @click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
    @functools.wraps(command)
    def with_options(
        *, delete: bool, exclude: tuple[str, ...], compress: bool, dry_run: bool, quiet: bool, **rest: Any
    ) -> Any:
        progress = not quiet and not dry_run and sys.stdout.isatty()
        return command(wanted=Wanted(delete, dry_run, compress, progress, exclude), **rest)

    return with_options  # type: ignore[return-value]


def copies(session: Session, node: str, job: str | None, wanted: Wanted, plan: Plan) -> int:
    """Copy, and return the exit code.

    Args:
        session: for Ctrl-C, and to ask meshd for a machine's slot.
        node: its name; "" for all of the job.
        job: the job's number, if one was named.
        wanted: options for rsync.
        plan: what is copied.

    Raises:
        CliError: there is no way to the node.
    """
    check_rsync()
    if not node and not job:
        raise click.UsageError("name a node (NODE:PATH), or a job (--job)")
    slurm = Slurm(run)
    routes = session.run(slurm.routes(job)) if job else [_route(session, slurm, node)]
    if job and node:
        routes = [route for route in routes if route.node == node]
        if not routes:
            raise CliError(f"job {job} has no task on {node}", f"see `squeue --jobs={job}`", kind="refused")
    ports = session.run(slurm.ports())

    def argv(route: Route) -> list[str]:
        sources, target = plan(route, several=not node)
        return rsync_argv(
            route, sources, target, wanted, environment=environment(), ports=ports, home=home()
        )  # fmt: skip

    if node:
        code: int = session.run(_alone(argv(routes[0])))
        return code
    ended = session.run(Fanout(AT_ONCE, None, _printed).run([Job(route.node, argv(route)) for route in routes]))
    for one in ended:
        if one.code:
            say(f"{one.name}: exit code {one.code}")
    return worst(ended)


def _route(session: Session, slurm: Slurm, node: str) -> Route:
    """To a node, named by its slot or its machine."""
    found = session.run(slurm.route(node))
    if found is None:
        row = session.ask(lambda head: find_node(head, node))
        found = session.run(slurm.route(row.slot))
    if found is None:
        raise CliError(f"Slurm has no node {node}", "see `sinfo`", kind="refused")
    return found


async def _alone(argv: list[str]) -> int:
    """Run it on this terminal; returns its exit code."""
    process = await asyncio.create_subprocess_exec(*argv, stdin=asyncio.subprocess.DEVNULL)
    try:
        code = await process.wait()
    except asyncio.CancelledError:
        await process.wait()  # the terminal has signalled rsync too
        raise
    return code if code >= 0 else 128 - code


def _printed(name: str, number: int, data: bytes) -> None:
    text = clean(data.decode("utf-8", "replace"))
    click.echo("".join(f"{name}: {line}\n" for line in text.splitlines()), nl=False, err=number == 2)
