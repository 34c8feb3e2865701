"""`meshctl prices`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from meshd.api.schema import PriceRefreshRow, PriceRow
from meshd.cli.errors import ExitCode
from tests.unit.api.memory_desk import MemoryDesk
from tests.unit.api.served import Served
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


@pytest.fixture(autouse=True)
def prices(desk: MemoryDesk) -> None:
    desk.price_rows = ROWS
    desk.fetches = {"aws": FETCHED}


def test_show(served: Served, meshctl: Meshctl) -> None:
    assert meshctl("prices", "show").out == (
        "PROVIDER    SOURCE     DATE        AGE          TYPES  REGIONS  NOTE\n"
        "aws         shipped    2026-01-20  40d0h stale  45     3        `meshctl prices refresh aws`\n"
        "gce         refreshed  2026-03-01  2m00s        20     1\n"
        "paperspace  settings   -           -            1      3\n"
    )
    document = meshctl("prices", "show", "-o", "json").json()
    assert (document["schema_version"], document["prices"][0]["stale"]) == (1, True)


def test_refresh_without_names_asks_all_providers(served: Served, meshctl: Meshctl) -> None:
    ran = meshctl("prices", "refresh")
    assert ran.code == ExitCode.OK
    assert re.findall(r"^(\w+): ", ran.err, re.M) == ["aws", "gce"]
    assert "PROVIDER" in ran.out


def test_refresh_of_one_that_fails(served: Served, desk: MemoryDesk, meshctl: Meshctl) -> None:
    desk.fetches["gce"] = DENIED
    both = meshctl("prices", "refresh")
    assert both.code == ExitCode.PARTLY
    assert f"gce: {DENIED.text}" in both.err and DENIED.cure in both.err
    alone = meshctl("prices", "refresh", "gce", "-o", "json")
    assert alone.code == ExitCode.FAILED
    assert [row["kind"] for row in alone.json()["results"]] == ["auth_failed"]


def test_refresh_of_an_unknown_provider(served: Served, meshctl: Meshctl) -> None:
    ran = meshctl("prices", "refresh", "mycloud", "-o", "json")
    assert (ran.code, ran.json()["kind"]) == (ExitCode.USAGE, "unknown")
    assert "aws, gce, paperspace" in ran.json()["cure"]


def test_nothing_to_fetch(served: Served, desk: MemoryDesk, meshctl: Meshctl) -> None:
    desk.price_rows = [ROWS[2]]
    ran = meshctl("prices", "refresh", "-o", "json")
    assert (ran.code, ran.json()["kind"]) == (ExitCode.FAILED, "no_price_list")
    desk.price_rows = []
    ran = meshctl("prices", "show")
    assert (ran.code, ran.out) == (ExitCode.OK, "") and ran.err
