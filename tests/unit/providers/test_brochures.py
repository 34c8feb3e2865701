"""What adapters say of their clouds without asking them: no SDK, no credentials, no connection."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from importlib import resources
from typing import Any

import pytest

from meshd.codes import FaultCode
from meshd.errors import Fault
from meshd.gpus import MODELS
from meshd.plugins import brochure_of, installed
from meshd.price_list import PriceList
from meshd.provider_api import Brochure, PriceSource, ProviderContext

FETCHED = PriceList.model_validate(
    {"as_of": "2026-11-01T00:00:00Z", "usd_per_hour": {"us-east-1": {"p5.48xlarge": [77.0, None]}}}
)


def brochure(name: str, fetched: PriceList | None = None, **settings: Any) -> Brochure:
    found = brochure_of(
        name, installed(), ProviderContext("lab", settings, lambda: datetime(2026, 11, 2, tzinfo=UTC), lambda: fetched)
    )
    assert isinstance(found, Brochure), found
    return found


@pytest.mark.parametrize("name", ["aws", "gce", "lambda", "paperspace", "runpod"])
def test_each_adapter_has_one(name: str) -> None:
    found = brochure(name)
    assert {offer.provider for offer in found.offers} <= {name}
    assert all(offer.usd_per_hour > 0 and offer.vcpus > 0 and offer.memory_mib > 0 for offer in found.offers)
    assert all(offer.gpu in MODELS and offer.gpu_memory_gib > 0 for offer in found.offers if offer.gpus)
    assert bool(found.offers) == (name not in {"lambda", "runpod"})


@pytest.mark.parametrize("name", ["aws", "gce"])
def test_each_type_with_a_shipped_price_has_a_shape(name: str) -> None:
    package = resources.files(f"providers.{name}")
    prices = json.loads(package.joinpath("prices.json").read_text())["usd_per_hour"]
    shapes = json.loads(package.joinpath("shapes.json").read_text())["types"]
    priced = {kind for table in prices.values() for kind in table if not kind.startswith("nvidia-")}
    assert priced == set(shapes)


def test_settings_choose_regions_and_types_and_their_prices_come_first() -> None:
    found = brochure("aws", regions=["eu-west-1"], instance_types=["g5.*"], prices={"g5.xlarge": 0.5})
    assert {(offer.region, offer.instance_type.split(".")[0]) for offer in found.offers} == {("eu-west-1", "g5")}
    (own,) = [offer for offer in found.offers if offer.instance_type == "g5.xlarge"]
    assert (own.usd_per_hour, own.price_source) == (0.5, PriceSource.SETTINGS)


def test_newer_fetched_prices_hold() -> None:
    (p5,) = [offer for offer in brochure("aws", FETCHED).offers if offer.instance_type == "p5.48xlarge"]
    assert (p5.usd_per_hour, p5.price_source, p5.price_as_of) == (77.0, PriceSource.REFRESHED, FETCHED.as_of)


def test_spot_where_the_table_has_it() -> None:
    assert {offer.spot for offer in brochure("gce", spot=True).offers} == {True, False}
    assert {offer.spot for offer in brochure("gce").offers} == {False}


def test_wrong_settings_and_missing_adapters_are_faults() -> None:
    context = ProviderContext("lab", {"regoins": []}, lambda: datetime(2026, 11, 2, tzinfo=UTC))
    for name, code in (("aws", FaultCode.UNKNOWN_KEY), ("nimbus", FaultCode.NO_SUCH_PROVIDER)):
        found = brochure_of(name, installed(), context)
        assert isinstance(found, tuple)
        assert [fault.code for fault in found if isinstance(fault, Fault)] == [code]
