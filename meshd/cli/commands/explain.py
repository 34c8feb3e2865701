"""`meshctl explain`: shows what a machine, a slot or a pool does, or what a job waits for, and why."""

from __future__ import annotations

import click

from meshd.api import endpoints
from meshd.api.schema import ExplainFailure, ExplainQuery, ExplainView, ExplainViews
from meshd.cli.batch import ask_each, report_failures
from meshd.cli.client import HeadClient
from meshd.cli.params.options import as_json_option, subjects_argument, verbose_option
from meshd.cli.render.explain import explain
from meshd.cli.render.terminal import show
from meshd.cli.session import Session, print_json

EXAMPLES = """\b
Examples:
  meshctl explain h100-3                a slot, as sinfo names it
  meshctl explain 'h100-[1-4]'          four slots
  meshctl explain lab-h100-3-k7q2mz     a machine, also one that is gone
  meshctl explain h100                  a whole pool
  meshctl explain 4711                  what job 4711 waits for
"""


@click.command("explain", epilog=EXAMPLES)
@subjects_argument
@verbose_option
@as_json_option
@click.pass_obj
def command(session: Session, *, subjects: tuple[str, ...], verbose: bool, as_json: bool) -> None:
    """Show what a machine, slot, pool or waiting job does, and why.

    Shows what it waits for, every offer that meshd tried with the cloud's answer, the next offers, why the other offers
    do not match, and the last events.
    """
    views, failed = session.ask(lambda head: ask_each(head, subjects, _explain))
    if len(subjects) == 1 and failed:
        raise failed[0][1]
    if as_json:
        failures = [ExplainFailure(subject=name, error=error.view()) for name, error in failed]
        print_json(views[0] if len(subjects) == 1 else ExplainViews(explained=views, failed=failures))
    else:
        for index, view in enumerate(views):
            show(*([""] if index else []), *explain(view, verbose=verbose))
    report_failures(failed, len(subjects))


async def _explain(head: HeadClient, subject: str) -> ExplainView:
    return await head.call(endpoints.EXPLAIN, ExplainQuery(subject=subject))
