"""Offers from Compute Engine's machine types and prices."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest

from meshd.price_list import Pair, PriceList
from meshd.provider_api import PriceSource
from providers._prices import PriceTables, shipped
from providers.gce.offers import by_zone, name_filter, price_of, to_gpu, to_machine_type, to_offers, usable_types
from providers.gce.settings import GceSettings

ZONE = "us-central1-a"


@pytest.mark.parametrize(
    ("accelerator", "gpu", "memory_gib"),
    [
        ("nvidia-l4", "l4", 24),
        ("nvidia-tesla-t4", "t4", 16),
        ("nvidia-tesla-v100", "v100-sxm", 16),
        ("nvidia-tesla-a100", "a100-sxm", 40),
        ("nvidia-a100-80gb", "a100-sxm", 80),
        ("nvidia-h100-80gb", "h100-sxm", 80),
        ("nvidia-h100-mega-80gb", "h100-sxm", 80),
        ("nvidia-h200-141gb", "h200-sxm", 141),
        ("nvidia-b200", "b200", 180),
        ("nvidia-rtx-pro-6000", "rtx-pro-6000", 96),
        ("nvidia-z999-512gb", "z999", 512),
        ("nvidia-z999", "z999", 0),
    ],
)
def test_gpus(accelerator: str, gpu: str, memory_gib: int) -> None:
    assert to_gpu(accelerator) == (gpu, memory_gib)


def row(name: str = "a3-highgpu-8g", card: str = "nvidia-h100-80gb", count: int = 8, **more: Any) -> dict[str, Any]:
    cards = [{"guestAcceleratorType": card, "guestAcceleratorCount": count}] if card else []
    return {"name": name, "guestCpus": 208, "memoryMb": 1916928, "accelerators": cards, **more}


def test_machine_types() -> None:
    kind = to_machine_type(row(), ZONE)
    assert kind is not None
    assert (kind.accelerator, kind.gpus, kind.vcpus, kind.arch) == ("nvidia-h100-80gb", 8, 208, "x86_64")
    arm = to_machine_type(row("t2a-standard-4", "", architecture="ARM64"), ZONE)
    assert arm is not None and (arm.arch, arm.gpus) == ("arm64", 0)
    assert to_machine_type(row("ct6e-standard-4t", "ct6e"), ZONE) is None
    assert to_machine_type(row(card="nvidia-l4-vws"), ZONE) is None
    assert to_machine_type(row(deprecated={"state": "OBSOLETE"}), ZONE) is None
    assert to_machine_type(row(deprecated={"state": "DEPRECATED"}), ZONE) is not None


def table(**machines: Pair) -> PriceTables:
    named = {name.replace("_", "-"): pair for name, pair in machines.items()}
    usd = {"us-central1": {**named, "nvidia-tesla-t4": (0.5, None)}}
    return PriceTables(PriceList(as_of=datetime(2026, 1, 1, tzinfo=UTC), usd_per_hour=usd), lambda: None)


def test_offers() -> None:
    attached = ("n1-standard-8+nvidia-tesla-t4x2", "n1-standard-8+nvidia-tesla-t4x8")
    settings = GceSettings(attached_gpus=attached, spot=True)
    rows = {
        f"zones/{ZONE}": {"machineTypes": [row(), row("n1-standard-8", "", 0), row("c3-standard-4", "", 0)]},
        "zones/europe-west4-b": {"machineTypes": [row()]},
        "zones/us-central1-f": {"warning": {"code": "NO_RESULTS_ON_PAGE"}},
        "regions/us-central1": {},
    }
    cards = {ZONE: [{"name": "nvidia-tesla-t4", "maximumCardsPerInstance": 4}]}
    kinds = usable_types(by_zone(rows, "machineTypes"), cards, settings)
    assert [(kind.name, kind.zone) for kind in kinds] == [
        ("a3-highgpu-8g", ZONE),
        ("n1-standard-8+nvidia-tesla-t4x2", ZONE),
    ]
    prices = table(a3_highgpu_8g=(88.0, 27.0), n1_standard_8=(0.4, 0.1))
    offers = to_offers(kinds, settings, prices)
    assert [(offer.instance_type, offer.spot, offer.usd_per_hour) for offer in offers] == [
        ("a3-highgpu-8g", False, 88.0),
        ("a3-highgpu-8g", True, 27.0),
        ("n1-standard-8+nvidia-tesla-t4x2", False, 1.4),
    ]
    assert [offer.key for offer in offers][1] == f"gce/{ZONE}/a3-highgpu-8g/spot"
    assert {(offer.gpu, offer.gpus) for offer in offers} == {("h100-sxm", 8), ("t4", 2)}
    assert len(to_offers(kinds, GceSettings(attached_gpus=attached), prices)) == 2


def test_own_prices_come_first() -> None:
    settings = GceSettings(prices={"a3-highgpu-8g": 50}, spot_prices={"a4-highgpu-8g": 20})
    prices = table(a3_highgpu_8g=(88.0, 27.0))

    def usd(name: str, region: str, *, spot: bool) -> float | None:
        found = price_of(name, region, settings, prices, spot=spot)
        return found.usd_per_hour if found else None

    assert usd("a3-highgpu-8g", "us-central1", spot=False) == 50
    assert usd("a3-highgpu-8g", "us-central1", spot=True) == 27
    assert usd("a4-highgpu-8g", "mars-1", spot=True) == 20
    assert usd("a4-highgpu-8g", "mars-1", spot=False) is None
    own = price_of("a3-highgpu-8g", "us-central1", settings, prices, spot=False)
    assert own is not None and (own.as_of, own.source) == (None, PriceSource.SETTINGS)


def test_a_sum_of_two_prices_is_dated_like_the_older() -> None:
    fetched = PriceList(
        as_of=datetime(2026, 2, 1, tzinfo=UTC), usd_per_hour={"us-central1": {"nvidia-tesla-t4": (0.6, None)}}
    )
    prices = PriceTables(table(n1_standard_8=(0.4, 0.1)).shipped, lambda: fetched)
    both = price_of("n1-standard-8+nvidia-tesla-t4x2", "us-central1", GceSettings(), prices, spot=False)
    assert both is not None
    assert (both.usd_per_hour, both.as_of, both.source) == (
        1.6, datetime(2026, 1, 1, tzinfo=UTC), PriceSource.SHIPPED,
    )  # fmt: skip


def test_name_filter() -> None:
    settings = GceSettings(instance_types=("a3-*", "g2-standard-?"), attached_gpus=("n1-standard-8+nvidia-tesla-t4x1",))
    found = re.fullmatch(r'name eq "(.*)"', name_filter(settings))
    assert found is not None
    names = ("a3-highgpu-8g", "g2-standard-4", "g2-standard-48", "n1-standard-8", "xa3-y")
    taken = [name for name in names if re.fullmatch(found[1], name)]
    assert taken == ["a3-highgpu-8g", "g2-standard-4", "n1-standard-8"]


def test_shipped_prices() -> None:
    prices = shipped("providers.gce")
    assert prices.as_of.tzinfo is not None
    pairs = [pair for region in prices.usd_per_hour.values() for pair in region.values()]
    assert all(any(price is not None for price in pair) for pair in pairs)
    assert all(price < 200 for pair in pairs for price in pair if price is not None)
    for on_demand, spot in pairs:
        assert on_demand is None or spot is None or spot < on_demand
    assert prices.usd("us-central1", "a3-highgpu-1g", spot=False) is None
    assert prices.usd("us-central1", "a3-highgpu-1g", spot=True) is not None
    assert prices.usd("us-central1", "nvidia-tesla-t4") == 0.35
    assert prices.usd("mars-1", "a3-highgpu-1g", spot=True) is None
