"""The files that prices are kept in, and which of two tables holds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshd.price_list import PriceList, collected, dump, parse
from meshd.provider_api import PriceSource
from providers._prices import PriceTables

DAY = datetime(2026, 3, 1, tzinfo=UTC)
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=12)
RATES = st.lists(st.tuples(NAMES, NAMES, st.booleans(), st.floats(0.001, 500.0)), min_size=1, max_size=20)


@given(RATES, st.text(max_size=30))
def test_what_is_written_is_read_again(rates: list[tuple[str, str, bool, float]], note: str) -> None:
    made = collected(rates, DAY, note)
    assert parse(dump(made)) == made
    for region, name, spot, _ in rates:
        dearest = max(usd for r, n, s, usd in rates if (r, n, s) == (region, name, spot))
        assert made.usd(region, name, spot=spot) == pytest.approx(dearest, abs=1e-6)


def test_a_file_reads_well() -> None:
    text = dump(collected([("r2", "b", False, 2.5), ("r1", "a", True, 1.0)], DAY, "list prices"))
    assert text == (
        '{\n "as_of": "2026-03-01T00:00:00Z",\n "note": "list prices",\n "currency": "USD",\n "usd_per_hour": {\n'
        '  "r1": {\n   "a": [null, 1.0]\n  },\n  "r2": {\n   "b": [2.5, null]\n  }\n }\n}\n'
    )


def test_a_day_alone_is_its_beginning() -> None:
    assert parse('{"as_of": "2026-03-01", "usd_per_hour": {}}').as_of == DAY


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "Invalid JSON"),
        ('{"as_of": "2026-03-01", "usd_per', "Invalid JSON"),
        ("[]", "object"),
        ('{"usd_per_hour": {}}', "as_of: Field required"),
        ('{"as_of": "2026-03-01T00:00:00", "usd_per_hour": {}}', "as_of: Input should have timezone info"),
        ('{"as_of": "2026-03-01", "usd_per_hour": {"r": {"t": [-1, null]}}}', "usd_per_hour.r.t.0: "),
        ('{"as_of": "2026-03-01", "usd_per_hour": {"r": {"t": [NaN, null]}}}', "usd_per_hour.r.t.0: "),
        ('{"as_of": "2026-03-01", "usd_per_hour": {"r": {"t": [1.0]}}}', "usd_per_hour.r.t"),
        ('{"as_of": "2026-03-01", "currency": "EUR", "usd_per_hour": {}}', "currency: "),
    ],
)
def test_what_is_no_price_list_is_told_in_one_line(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        parse(text)
    assert words in str(caught.value)


def listed(days: int, **usd: tuple[float | None, float | None]) -> PriceList:
    return PriceList(as_of=DAY + timedelta(days=days), usd_per_hour={"r": usd})


def test_the_newer_table_holds_for_each_type_and_way_by_itself() -> None:
    shipped = listed(0, a=(1.0, 0.5), b=(2.0, None))
    fetched: list[PriceList | None] = [None]
    prices = PriceTables(shipped, lambda: fetched[0])
    found = prices.find("r", "a")
    assert found is not None and (found.usd_per_hour, found.as_of, found.source) == (1.0, DAY, PriceSource.SHIPPED)

    fetched[0] = listed(1, a=(1.5, None), c=(None, 3.0))
    found = prices.find("r", "a")
    assert found is not None and (found.usd_per_hour, found.source) == (1.5, PriceSource.REFRESHED), "at once"
    spot = prices.find("r", "a", spot=True)
    assert spot is not None and (spot.usd_per_hour, spot.as_of) == (0.5, DAY)
    assert prices.find("r", "b") is not None
    assert prices.find("r", "c") is None and prices.find("r", "c", spot=True) is not None

    fetched[0] = listed(-1, a=(1.5, None), c=(None, 3.0))
    found = prices.find("r", "a")
    assert found is not None and found.source is PriceSource.SHIPPED, "an update of meshd brought newer ones"
    assert prices.find("mars", "a") is None
