"""`meshctl prices`."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from meshd.api.endpoints import PRICES, REFRESH_PRICES
from meshd.api.faults import Unknown
from meshd.api.schema import PriceRefreshRow, PriceRow, PricesRefresh, PricesRefreshed, PricesView
from meshd.cli.errors import ExitCode
from tests.unit.api.sim_head import SimHead
from tests.unit.cli.conftest import Meshctl

NOW = datetime(2026, 3, 1, tzinfo=UTC)
ROWS = [
    PriceRow(
        provider="aws", source="shipped", as_of=NOW - timedelta(days=40), age_s=40 * 86400, types=45, regions=3,
        stale=True, refreshable=True, note="`meshctl prices refresh aws`",
    ),
    PriceRow(provider="gce", source="refreshed", as_of=NOW, age_s=120, types=20, regions=1, refreshable=True),
    PriceRow(provider="paperspace", source="settings", types=1, regions=3),
]  # fmt: skip
FETCHED = PriceRefreshRow(provider="aws", ok=True, as_of=NOW, types=45, regions=3)
DENIED = PriceRefreshRow(provider="gce", text="403: no; the old ones hold", cure="look", kind="auth_failed")


def rows(*prices: PriceRow) -> PricesView:
    return PricesView(at=NOW, stale_after_s=30 * 86400, prices=list(prices))


def refreshed(*results: PriceRefreshRow) -> Callable[[PricesRefresh], PricesRefreshed]:
    """Answers with the results of those that are asked for; all others are fetched well."""
    known = {row.provider: row for row in results}

    def answer(request: PricesRefresh) -> PricesRefreshed:
        fetched = [known.get(name, PriceRefreshRow(provider=name, ok=True)) for name in request.providers]
        return PricesRefreshed(at=NOW, results=fetched, prices=ROWS)

    return answer


@pytest.fixture(autouse=True)
def prices(head: SimHead) -> None:
    head.give(PRICES, rows(*ROWS))
    head.give(REFRESH_PRICES, refreshed(FETCHED))


def test_show(served: SimHead, meshctl: Meshctl) -> None:
    assert meshctl("prices", "show").out == (
        "PROVIDER    SOURCE     DATE        AGE          TYPES  REGIONS  NOTE\n"
        "aws         shipped    2026-01-20  40d0h stale  45     3        `meshctl prices refresh aws`\n"
        "gce         refreshed  2026-03-01  2m00s        20     1\n"
        "paperspace  settings   -           -            1      3\n"
    )
    document = meshctl("prices", "show", "-o", "json").json()
    assert (document["schema_version"], document["prices"][0]["stale"]) == (1, True)


def test_refresh_without_names_asks_all_providers(served: SimHead, meshctl: Meshctl) -> None:
    ran = meshctl("prices", "refresh")
    assert ran.code == ExitCode.OK
    assert sorted(re.findall(r"^(\w+): ", ran.err, re.M)) == ["aws", "gce"], "in the order in which they answer"
    assert "PROVIDER" in ran.out


def test_refresh_of_one_that_fails(served: SimHead, head: SimHead, meshctl: Meshctl) -> None:
    head.give(REFRESH_PRICES, refreshed(FETCHED, DENIED))
    both = meshctl("prices", "refresh")
    assert both.code == ExitCode.PARTLY
    assert f"gce: {DENIED.text}" in both.err and DENIED.cure in both.err
    alone = meshctl("prices", "refresh", "gce", "-o", "json")
    assert alone.code == ExitCode.FAILED
    assert [row["kind"] for row in alone.json()["results"]] == ["auth_failed"]


def test_refresh_of_an_unknown_provider(served: SimHead, meshctl: Meshctl) -> None:
    served.give(REFRESH_PRICES, Unknown("mycloud is not enabled", "enabled providers are: aws, gce, paperspace"))
    ran = meshctl("prices", "refresh", "mycloud", "-o", "json")
    assert (ran.code, ran.json()["kind"]) == (ExitCode.USAGE, "unknown")
    assert "aws, gce, paperspace" in ran.json()["cure"]


def test_nothing_to_fetch(served: SimHead, head: SimHead, meshctl: Meshctl) -> None:
    head.give(PRICES, rows(ROWS[2]))
    ran = meshctl("prices", "refresh", "-o", "json")
    assert (ran.code, ran.json()["kind"]) == (ExitCode.FAILED, "no_price_list")
    head.give(PRICES, rows())
    ran = meshctl("prices", "show")
    assert (ran.code, ran.out) == (ExitCode.OK, "") and ran.err
