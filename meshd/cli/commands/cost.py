"""`meshctl cost`: shows what was spent."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

import click

from meshd.api import endpoints
from meshd.api.schema import BudgetRow, CostQuery, CostRow, CostView
from meshd.cli.params.options import as_json_option
from meshd.cli.params.values import WholeNumber, past_or_ago
from meshd.cli.render.table import Table
from meshd.cli.render.terminal import show as show_parts
from meshd.cli.session import Session, print_json, say

OF_JOBS = ("user", "account", "job")
BY = ("pool", "provider", "machine", "day", *OF_JOBS)
EXAMPLES = """\b
Examples:
  meshctl cost                                      this month, by pool
  meshctl cost --by user --since 7d                 who used it, in the last week
  meshctl cost --by job --since 2026-11-01 -o json  every job since then
"""
JOBS_OLD = timedelta(minutes=5)
"""meshd reads every minute at least which jobs have which machines."""
_UNUSED = {"idle": "(idle)", "others": "(others)"}


@click.command("cost", epilog=EXAMPLES)
@click.option("--by", type=click.Choice(BY), default="pool", show_default=True, help="What a row is about.")
@click.option(
    "--since",
    metavar="TIME",
    callback=past_or_ago,
    help="From then on: 7d or 12h ago, or 2026-11-01 (UTC).  [default: the first of this month, UTC]",
)
@click.option("--until", metavar="TIME", callback=past_or_ago, help="Until then.  [default: now]")
@click.option("-n", "--limit", metavar="N", type=WholeNumber(1, 10_000), default=1000, help="Show at most N rows.")
@as_json_option
@click.pass_obj
def command(
    session: Session, *, by: str, since: datetime | None, until: datetime | None, limit: int, as_json: bool
) -> None:
    """Show what was spent, in USD, and how far the budget is used.

    What no job used is (idle). All rows add up to the sum.
    """
    query = CostQuery.model_validate({"by": by, "since": since, "until": until, "limit": limit})
    view = session.ask(lambda head: head.call(endpoints.COST, query))
    if as_json:
        print_json(view)
        return
    show_parts(_table(view), *_below(view))
    if view.known_since is None:
        say("meshd has rented nothing yet")


def _table(view: CostView) -> Table:
    of_job = view.by == "job"
    headers = [view.by.upper(), "USD", "GPU-HOURS", "MACHINE-HOURS", "MACHINES"]
    headers += ["USER", "ACCOUNT", "NAME"] if of_job else []
    rows = [[*_cells(row), *((row.user, row.account, row.name) if of_job else ())] for row in view.rows]
    rows.append(["all", f"{view.usd:.2f}", *[""] * (len(headers) - 2)])
    return Table(headers, rows, optional=("MACHINES", "MACHINE-HOURS", "GPU-HOURS"))


def _cells(row: CostRow) -> tuple[str, ...]:
    key = _UNUSED.get(row.kind, row.key)
    return key, f"{row.usd:.2f}", f"{row.gpu_hours:.2f}", f"{row.machine_hours:.2f}", f"{row.machines}"


def _below(view: CostView) -> Iterator[str]:
    yield ""
    yield f"from {view.since:%Y-%m-%d %H:%M} to {view.until:%Y-%m-%d %H:%M} UTC"
    yield (
        f"now {view.usd_per_hour:.2f} USD/h; this month {view.month_usd:.2f} USD, "
        f"{view.month_projected_usd:.2f} at its end at this rate"
    )
    if view.known_since is not None and view.known_since > view.since:
        yield f"the ledger begins on {view.known_since:%Y-%m-%d %H:%M} UTC"
    if view.by in OF_JOBS and view.jobs_read_at is not None and view.at - view.jobs_read_at > JOBS_OLD:
        yield (
            f"which jobs had the machines is known until {view.jobs_read_at:%Y-%m-%d %H:%M} UTC: "
            "`meshctl status` shows why"
        )
    for row in view.budget:
        yield _budget(row)


def _budget(row: BudgetRow) -> str:
    whose = f"budget of {row.pool}" if row.pool else "budget"
    unit = "USD/h" if row.period == "hour" else f"USD this {row.period}"
    promised = f", {row.promised_usd:.2f} promised" if row.promised_usd else ""
    until = f" until {row.until:%Y-%m-%d %H:%M} UTC" if row.until else ""
    state = f": nothing more is rented{until}" if row.reached else f", {row.left_usd:.2f} left"
    return f"{whose}: {row.spent_usd:.2f} of {row.limit_usd:.2f} {unit}{promised}{state}"
