"""`meshctl explain`: why something is as it is."""

from __future__ import annotations

import click

from meshd.api import endpoints
from meshd.api.schema import ExplainFailure, ExplainQuery, ExplainView, ExplainViews
from meshd.cli import render
from meshd.cli.client import Head
from meshd.cli.exits import CliError, UnreachableError
from meshd.cli.onmachines import tell_failed
from meshd.cli.outputs import verbose_option
from meshd.cli.params import subject_argument
from meshd.cli.render_explain import explain
from meshd.cli.session import Session, output_option, print_json

EXAMPLES = """\b
Examples:
  meshctl explain h100-3                the slot, as sinfo names it
  meshctl explain 'h100-[1-4]'          four of them
  meshctl explain lab-h100-3-k7q2mz     one machine, also one that is gone
  meshctl explain h100                  the whole pool
"""

Failed = list[tuple[str, CliError]]


@click.command("explain", epilog=EXAMPLES)
@subject_argument
@verbose_option
@output_option
@click.pass_obj
def command(session: Session, *, subjects: tuple[str, ...], verbose: bool, as_json: bool) -> None:
    """Tell what a machine, a slot or a pool is doing and why.

    Shows what it waits for, every offer that was tried and what the cloud answered in its own words, which offers come
    next and why the others would not do, and the newest events.
    """
    views, failed = session.ask(lambda head: _ask(head, subjects))
    if len(subjects) == 1 and failed:
        raise failed[0][1]
    if as_json:
        failures = [ExplainFailure(subject=name, error=error.view()) for name, error in failed]
        print_json(views[0] if len(subjects) == 1 else ExplainViews(explained=views, failed=failures))
    else:
        for index, view in enumerate(views):
            render.show(*([""] if index else []), *explain(view, full=verbose))
    tell_failed(failed, len(subjects))


async def _ask(head: Head, subjects: tuple[str, ...]) -> tuple[list[ExplainView], Failed]:
    views, failed = [], []
    for subject in subjects:
        try:
            views.append(await head.call(endpoints.EXPLAIN, ExplainQuery(subject=subject)))
        except UnreachableError:
            raise
        except CliError as error:
            failed.append((subject, error))
    return views, failed
