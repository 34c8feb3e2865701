"""Which adapters fetch prices, and how a new price table changes theirs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.release_prices import differences, wanted
from meshd.price_list import PriceList, collected
from meshd.provider_api import PriceBook, Provider
from providers._prices import shipped
from providers.aws.provider import AwsProvider
from providers.gce.provider import GceProvider
from providers.lambda_cloud.provider import LambdaProvider
from providers.paperspace.provider import PaperspaceProvider
from providers.runpod.provider import RunpodProvider

AT = datetime(2026, 3, 1, tzinfo=UTC)
Rate = tuple[str, str, bool, float]


@pytest.mark.parametrize(
    ("adapter", "has"),
    [(AwsProvider, True), (GceProvider, True), (LambdaProvider, False), (PaperspaceProvider, False),
     (RunpodProvider, False)],
)  # fmt: skip
def test_which_adapters_fetch_prices(adapter: type[Provider], *, has: bool) -> None:
    assert issubclass(adapter, PriceBook) is has


def test_what_a_new_table_changes() -> None:
    old = collected([("r", "a", False, 1.0), ("r", "b", False, 2.0), ("r", "c", True, 3.0)], AT, "")
    new = collected([("r", "a", False, 1.005), ("r", "b", False, 2.5), ("r", "d", False, 4.0)], AT, "")
    assert list(differences(old, new)) == [
        "r b on demand: 2.0 -> 2.5", "r c spot: 3.0 -> GONE", "r d on demand: new -> 4.0",
    ]  # fmt: skip


rates = st.tuples(st.sampled_from(["r1", "r2"]), st.sampled_from(["a", "b"]), st.booleans(), st.floats(1.0, 9.0))
tables = st.lists(rates, max_size=8, unique_by=lambda rate: rate[:3])


@given(tables)
def test_the_same_table_changes_nothing(table: list[Rate]) -> None:
    assert list(differences(collected(table, AT, ""), collected(table, AT + timedelta(days=1), ""))) == []


@given(tables, tables)
def test_each_lost_or_new_price_is_reported(before: list[Rate], after: list[Rate]) -> None:
    told = list(differences(collected(before, AT, ""), collected(after, AT, "")))
    old, new = ({rate[:3] for rate in table} for table in (before, after))
    assert sum(line.endswith("GONE") for line in told) == len(old - new)
    assert sum(": new -> " in line for line in told) == len(new - old)


@pytest.mark.parametrize("name", ["aws", "gce"])
def test_a_release_fetches_all_types_of_the_table(name: str) -> None:
    table: PriceList = shipped(f"providers.{name}")
    asked = wanted(name, {"regions": ["nowhere"]}, table)
    assert asked["regions"] == sorted(table.usd_per_hour)
    types = {type_ for region in table.usd_per_hour.values() for type_ in region}
    cards = {card.removeprefix("n1-standard-1+").removesuffix("x1") for card in asked.get("attached_gpus", ())}
    assert types <= {*asked["instance_types"], *cards}
