"""Rates from AWS's products. The texts are shortened real ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from providers.aws.prices import price_filter, rates

P5 = ("p5.*",)


def product(usd: str = "55.0400000000", unit: str = "Hrs", **attributes: str) -> dict[str, Any]:
    plain = {
        "servicecode": "AmazonEC2", "location": "US East (N. Virginia)", "locationType": "AWS Region",
        "regionCode": "us-east-1", "instanceType": "p5.48xlarge", "instanceFamily": "GPU instance", "gpu": "8",
        "vcpu": "192", "memory": "2048 GiB", "operatingSystem": "Linux", "licenseModel": "No License required",
        "tenancy": "Shared", "capacitystatus": "Used", "preInstalledSw": "NA", "marketoption": "OnDemand",
        "usagetype": "BoxUsage:p5.48xlarge", "operation": "RunInstances",
    }  # fmt: skip
    rate = "3D4V8UAYEMB38GU2.JRTCKXETXF.6YS6EN2CT7"
    dimension = {
        "unit": unit, "beginRange": "0", "endRange": "Inf", "rateCode": rate, "appliesTo": [],
        "description": "$55.04 per On Demand Linux p5.48xlarge Instance Hour", "pricePerUnit": {"USD": usd},
    }  # fmt: skip
    term = {"offerTermCode": "JRTCKXETXF", "sku": "3D4V8UAYEMB38GU2", "priceDimensions": {rate: dimension}}
    return {
        "product": {"sku": "3D4V8UAYEMB38GU2", "productFamily": "Compute Instance", "attributes": plain | attributes},
        "serviceCode": "AmazonEC2",
        "terms": {"OnDemand": {"3D4V8UAYEMB38GU2.JRTCKXETXF": term}, "Reserved": {}},
        "publicationDate": "2026-01-01T00:00:00Z",
    }


def test_a_plain_machine() -> None:
    assert rates([json.dumps(product())], P5) == [("us-east-1", "p5.48xlarge", False, 55.04)]


@pytest.mark.parametrize(
    "changed",
    [
        product(operatingSystem="Windows"),
        product(tenancy="Dedicated"),
        product(capacitystatus="UnusedCapacityReservation"),
        product(marketoption="CapacityBlock"),
        product(preInstalledSw="SQL Std"),
        product(locationType="AWS Local Zone"),
        product(instanceType="p4d.24xlarge"),
        product(regionCode=""),
        product("0.0000000000"),
        product("n/a"),
        product(unit="Quantity"),
        {},
        {"product": {"attributes": None}, "terms": None},
        {**product(), "terms": {"Reserved": {}}},
    ],
)
def test_products_other_than_plain_machines_have_no_price(changed: dict[str, Any]) -> None:
    assert rates([json.dumps(changed)], P5) == []


def test_an_older_product_without_market_option() -> None:
    raw = product()
    del raw["product"]["attributes"]["marketoption"], raw["product"]["attributes"]["locationType"]
    assert len(rates([json.dumps(raw)], ("p5.48xlarge",))) == 1


def test_the_filter_asks_for_plain_machines_of_one_region() -> None:
    assert dict(price_filter("eu-west-1")) == {
        "regionCode": "eu-west-1", "operatingSystem": "Linux", "tenancy": "Shared", "capacitystatus": "Used",
        "preInstalledSw": "NA", "marketoption": "OnDemand",
    }  # fmt: skip


def test_a_product_that_is_not_json_fails() -> None:
    with pytest.raises(ValueError):
        rates(["<html>"], P5)
