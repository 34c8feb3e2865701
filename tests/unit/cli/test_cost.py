"""`meshctl cost`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from meshd.api.endpoints import COST
from meshd.api.schema import BudgetRow, CostQuery, CostRow, CostView
from meshd.cli.errors import ExitCode
from tests.unit.api.sim_head import SimHead
from tests.unit.cli.conftest import Meshctl

NOW = datetime(2026, 3, 15, 12, tzinfo=UTC)
VIEW = CostView(
    at=NOW, by="user", since=NOW - timedelta(days=7), until=NOW, micro_usd=30_000_000, usd=30.0, usd_per_hour=4.0,
    month_usd=100.0, month_projected_usd=1676.0, known_since=NOW - timedelta(days=3), jobs_by="accounting",
    rows=[
        CostRow(key="ann", micro_usd=20_000_000, usd=20.0, gpu_hours=10, machine_hours=1.25, machines=2),
        CostRow(key="", kind="idle", micro_usd=10_000_000, usd=10.0, gpu_hours=5, machine_hours=0.625, machines=2),
    ],
    budget=[
        BudgetRow(period="hour", limit_usd=8, spent_usd=4, left_usd=4),
        BudgetRow(
            pool="h100", period="day", limit_usd=10, spent_usd=9.5, promised_usd=0.5, left_usd=0, reached=True,
            until=datetime(2026, 3, 16, tzinfo=UTC),
        ),
    ],
)  # fmt: skip
asked: list[CostQuery] = []


def answer(query: CostQuery) -> CostView:
    asked.append(query)
    return VIEW


def test_the_table_the_sum_and_the_budget(head: SimHead, served: SimHead, meshctl: Meshctl) -> None:
    head.give(COST, answer)
    ran = meshctl("cost", "--by", "user", "--since", "7d")
    assert ran.out == (
        "USER    USD    GPU-HOURS  MACHINE-HOURS  MACHINES\n"
        "ann     20.00  10.00      1.25           2\n"
        "(idle)  10.00  5.00       0.62           2\n"
        "all     30.00\n"
        "\n"
        "from 2026-03-08 12:00 to 2026-03-15 12:00 UTC\n"
        "now 4.00 USD/h; this month 100.00 USD, 1676.00 at its end at this rate\n"
        "the ledger begins on 2026-03-12 12:00 UTC\n"
        "budget: 4.00 of 8.00 USD/h, 4.00 left\n"
        "budget of h100: 9.50 of 10.00 USD this day, 0.50 promised: nothing more is rented until 2026-03-16 00:00 UTC\n"
    )
    assert asked[-1].by == "user" and asked[-1].since is not None
    assert meshctl("cost", "-o", "json").json()["micro_usd"] == 30_000_000
    assert (asked[-1].by, asked[-1].since) == ("pool", None)


def test_what_is_not_known_of_jobs_is_said(head: SimHead, served: SimHead, meshctl: Meshctl) -> None:
    head.give(COST, lambda _: VIEW.model_copy(update={"jobs_read_at": NOW - timedelta(hours=1)}))
    assert "known until 2026-03-15 11:00 UTC: `meshctl status`" in meshctl("cost", "--by", "user").out
    head.give(COST, lambda _: VIEW.model_copy(update={"jobs_read_at": NOW - timedelta(minutes=1)}))
    assert "known until" not in meshctl("cost", "--by", "user").out


def test_a_word_that_is_no_row_is_refused(served: SimHead, meshctl: Meshctl) -> None:
    assert meshctl("cost", "--by", "weekday").code == ExitCode.USAGE
