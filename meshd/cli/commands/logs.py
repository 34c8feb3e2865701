"""`meshctl logs`: shows the ends of a machine's logs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import click

from meshd.api import endpoints
from meshd.api.schema import LogRow, LogsQuery, LogsView
from meshd.cli.client import HeadClient
from meshd.cli.errors import CliError, UnreachableError
from meshd.cli.params.options import as_json_option, node_argument
from meshd.cli.params.values import WholeNumber
from meshd.cli.session import Session, print_json, say
from meshd.runtime.terminal import clean, clean_line

LINES = 50
FOLLOW_S = 2.0
PARTS = ("boot", "stage1", "setup", "agent", "slurmd", "munged", "tailscaled", "meshnetd", "console")
SOURCES = {"agent": "from its agent", "cloud": "from its cloud", "kept": "kept on the head"}

EXAMPLES = """\b
Examples:
  meshctl logs h100-3                     all logs of this slot's newest machine
  meshctl logs h100-3 --part slurmd -f    slurmd's new lines as they come
  meshctl logs lab-h100-3-k7q2mz          a machine that failed, or is gone
  meshctl logs h100-3 --part console      the console, where the cloud has one
"""


@click.command("logs", epilog=EXAMPLES)
@node_argument
@click.option(
    "-n", "--lines", metavar="N", type=WholeNumber(1, 2000), default=LINES, show_default=True,
    help="Show at most the last N lines of each log.",
)  # fmt: skip
@click.option(
    "--part", "parts", metavar="PART", type=click.Choice(PARTS), multiple=True,
    help=f"Only this log; may be repeated: {', '.join(PARTS)}.",
)  # fmt: skip
@click.option("-f", "--follow", is_flag=True, help="Go on and print new lines as they come.")
@as_json_option
@click.pass_obj
def command(session: Session, *, node: str, lines: int, parts: tuple[str, ...], follow: bool, as_json: bool) -> None:
    """Show the logs of a node, also of one that failed or is gone.

    These are the ends of the logs of its boot (cloud-init), stage 1, agent, slurmd and other daemons. For machines that
    failed or are gone it shows the last logs, which the head keeps. A slot stands for its newest machine. Only root and
    the members of meshd's group may read logs.
    """
    if follow and as_json:
        raise click.UsageError("--follow and -o json exclude each other")
    query = LogsQuery(machine=node, lines=lines, part=parts)
    if follow:
        session.ask(lambda head: _follow(head, query))
        return
    view = session.ask(lambda head: head.call(endpoints.LOGS, query))
    if as_json:
        print_json(view)
        return
    _print_reports(view)
    for row in view.logs:
        _print(row)
    _say_notes(view)
    if not view.logs and not view.reports:
        wanted = f" ({', '.join(parts)})" if parts else ""
        raise CliError(f"there are no logs of {view.machine}{wanted}", f"see `meshctl explain {view.machine}`")


async def _follow(head: HeadClient, query: LogsQuery) -> None:
    """Print new lines until Ctrl-C, or until the machine is gone. It goes on after a restart of the daemon."""
    seen: dict[str, list[str]] = {}
    shown = ""
    while True:
        try:
            view = await head.call(endpoints.LOGS, query)
        except UnreachableError:
            if not seen:
                raise
            await asyncio.sleep(FOLLOW_S)
            continue
        if not seen:
            _say_notes(view)
            # the last lines may be few, but new ones are not missed between two looks
            query = query.model_copy(update={"lines": max(query.lines, 500)})
        for row in view.logs:
            lines = row.text.splitlines()
            new = new_lines(seen.get(row.part, []), lines)
            seen[row.part] = lines
            if new:
                _print(row.model_copy(update={"text": "\n".join(new)}), title=shown != row.part)
                shown = row.part
        if view.phase == "gone":
            return
        await asyncio.sleep(FOLLOW_S)


def new_lines(before: Sequence[str], now: Sequence[str]) -> Sequence[str]:
    """The lines of `now` that follow on those of `before`: two ends of one log, of any lengths."""
    if not before:
        return now
    last = len(before) - 1
    for end in range(len(now) - 1, -1, -1):
        depth = min(end, last) + 1
        if now[end] == before[last] and list(now[end + 1 - depth : end + 1]) == list(before[last + 1 - depth :]):
            return now[end + 1 :]
    return now


def _print_reports(view: LogsView) -> None:
    click.echo(clean_line(f"{view.machine} ({view.slot}, {view.provider}): {view.phase}"))
    if view.problem:
        click.echo(clean_line(f"problem: {view.problem}"))
    if view.reports:
        click.echo("\n==> reports (what the head recorded) <==")
    for report in view.reports:
        click.echo(clean_line(f"{report.at:%Y-%m-%dT%H:%M:%SZ} {report.text}"))


def _print(row: LogRow, *, title: bool = True) -> None:
    if title:
        source = SOURCES.get(row.source, row.source)
        at = f", {row.at:%Y-%m-%dT%H:%M:%SZ}" if row.source == "kept" else ""
        click.echo("\n" + clean_line(f"==> {row.part} ({source}{at}) <=="))
    click.echo(clean(row.text))


def _say_notes(view: LogsView) -> None:
    for note in view.notes:
        say(f"note: {note}")
