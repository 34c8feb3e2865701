"""Prices of machines from Google's SKUs. Descriptions are real; sums are calculated by hand."""

from __future__ import annotations

from typing import Any

import pytest

from providers.gce.offers import MachineType
from providers.gce.prices import SLICE, SkuRate, machine_rates, to_rate

IOWA = frozenset({"us-central1"})
ZONE = "us-central1-a"


def sku(
    text: str, units: int, nanos: int, *, usage: str = "OnDemand", unit: str = "h", group: str = "CPU", **more: Any
) -> dict[str, Any]:
    price = {"currencyCode": "USD", "units": str(units), "nanos": nanos}
    tiers = [{"startUsageAmount": 0, "unitPrice": price}]
    plain = {
        "name": "services/6F81-5844-456A/skus/0000-0000-0001",
        "skuId": "0000-0000-0001",
        "description": text,
        "category": {
            "serviceDisplayName": "Compute Engine",
            "resourceFamily": "Compute",
            "resourceGroup": group,
            "usageType": usage,
        },
        "serviceRegions": ["us-central1", "us-east1"],
        "pricingInfo": [{"pricingExpression": {"usageUnit": unit, "tieredRates": tiers}}],
    }
    return plain | more


def ram(text: str, nanos: int, **more: Any) -> dict[str, Any]:
    return sku(text, 0, nanos, unit="GiBy.h", group="RAM", **more)


@pytest.mark.parametrize(
    ("text", "unit", "part", "of"),
    [
        ("A2 Instance Core running in Americas", "h", "core", "a2"),
        ("A3 Instance Ram running in Americas", "GiBy.h", "ram", "a3"),
        ("A3Plus Instance Core running in Virginia", "h", "core", "a3plus"),
        ("G2 Instance Core running in Netherlands", "h", "core", "g2"),
        ("N1 Predefined Instance Core running in Americas", "h", "core", "n1"),
        ("N2D AMD Instance Ram running in Americas", "GiBy.h", "ram", "n2d"),
        ("C4A Arm Instance Core running in Americas", "h", "core", "c4a"),
        ("Compute optimized Core running in Americas", "h", "core", "c2"),
        ("Compute optimized Instance Ram running in Americas", "GiBy.h", "ram", "c2"),
        ("Nvidia Tesla T4 GPU running in Americas", "h", "", "nvidia-tesla-t4"),
        ("Nvidia L4 GPU running in Americas", "h", "", "nvidia-l4"),
        ("Nvidia Tesla A100 GPU running in Americas", "h", "", "nvidia-tesla-a100"),
        ("Nvidia Tesla A100 80GB GPU running in Iowa", "h", "", "nvidia-a100-80gb"),
        ("Nvidia H100 80GB GPU running in Americas", "h", "", "nvidia-h100-80gb"),
        ("Nvidia H100 80GB Mega GPU running in Americas", "h", "", "nvidia-h100-mega-80gb"),
        ("Nvidia H100 80GB Plus GPU running in Americas", "h", "", "nvidia-h100-mega-80gb"),
        ("H200 141GB GPU running in Netherlands", "h", "", "nvidia-h200-141gb"),
        ("A4 Nvidia B200 (1 gpu slice) running in Americas", "h", "", f"nvidia-b200{SLICE}"),
    ],
)
def test_parts_are_known_by_their_descriptions(text: str, unit: str, part: str, of: str) -> None:
    assert to_rate(sku(text, 1, 500_000_000, unit=unit), IOWA) == SkuRate(part, of, False, ("us-central1",), 1.5)


@pytest.mark.parametrize(
    ("text", "usage", "of"),
    [
        ("Spot Preemptible A3 Instance Core running in Americas", "Preemptible", "a3"),
        ("Preemptible N1 Predefined Instance Core running in Americas", "Preemptible", "n1"),
        (
            "Nvidia H100 80GB GPU attached to Spot Preemptible VMs running in Americas",
            "Preemptible",
            "nvidia-h100-80gb",
        ),
        ("Nvidia Tesla T4 GPU attached to Preemptible VMs running in Americas", "Preemptible", "nvidia-tesla-t4"),
        # Google files this one under OnDemand.
        ("Spot Preemptible A4 Nvidia B200 (1 gpu slice) running in Americas", "OnDemand", f"nvidia-b200{SLICE}"),
    ],
)
def test_spot_skus_in_any_category(text: str, usage: str, of: str) -> None:
    rate = to_rate(sku(text, 0, 250_000_000, usage=usage), IOWA)
    assert rate is not None and (rate.of, rate.spot, rate.usd_per_hour) == (of, True, 0.25)


@pytest.mark.parametrize(
    "raw",
    [
        sku("Commitment v1: A3 Cpu in Americas for 1 Year", 0, 1, usage="Commit1Yr"),
        sku("Commitment v1: N4A Core in Johannesburg for 5 Years", 0, 1, usage="Commit"),
        sku("N1 Custom Instance Core running in Americas", 0, 1),
        sku("Reserved Nvidia H100 80GB Mega GPU in Americas in Calendar Mode", 0, 1, group="GPU"),
        sku("Nvidia L4 GPU attached to DWS Defined Duration VMs running in Frankfurt", 0, 1, group="GPU"),
        sku("DWS Defined Duration A3 Core running in Americas", 0, 1),
        sku("C3 Sole Tenancy Instance Core running in Americas", 0, 1),
        sku("Nvidia Tesla T4 GPU attached to Sole Tenancy VMs running in Americas", 0, 1),
        sku("Committed Use Discount Premium for E2 Instance Core running in Johannesburg", 0, 1),
        sku("Nvidia L4 Virtual Workstation GPU running in Netherlands", 0, 1),
        sku("Nvidia L40 GPU running in Netherlands", 0, 1),
        sku("TpuV5e running in Americas", 1, 0),
        sku("A3 Instance Core running in Americas", 0, 0),
        sku("A3 Instance Ram running in Americas", 0, 1, unit="h"),
        sku("A3 Instance Core running in Americas", 0, 1, unit="mo"),
        sku("A3 Instance Core running in Tokyo", 0, 1, serviceRegions=["asia-northeast1"]),
        sku("SSD backed Local Storage", 0, 1, category={"resourceFamily": "Storage", "usageType": "OnDemand"}),
        sku("A3 Instance Core running in Americas", 0, 1, pricingInfo=[]),
        {"description": "A3 Instance Core running in Americas"},
        {},
    ],
)
def test_other_offers_are_skipped(raw: dict[str, Any]) -> None:
    assert to_rate(raw, IOWA) is None


def test_another_currency_is_no_price() -> None:
    raw = sku("A3 Instance Core running in Americas", 1, 0)
    raw["pricingInfo"][0]["pricingExpression"]["tieredRates"][0]["unitPrice"]["currencyCode"] = "EUR"
    assert to_rate(raw, IOWA) is None


def machine(name: str, accelerator: str, gpus: int, vcpus: int, memory_gib: float, **more: Any) -> MachineType:
    return MachineType(name, ZONE, accelerator, gpus, vcpus, int(memory_gib * 1024), "x86_64", **more)


def priced(kinds: list[MachineType], *raw: dict[str, Any]) -> dict[tuple[str, bool], float]:
    rates = [rate for rate in (to_rate(one, IOWA) for one in raw) if rate is not None]
    return {(name, spot): usd for _, name, spot, usd in machine_rates(kinds, rates)}


MEGA = (
    sku("Nvidia H100 80GB Plus GPU running in Americas", 10, 344_276_000, group="GPU"),
    sku("A3Plus Instance Core running in Americas", 0, 26_924_000),
    ram("A3Plus Instance Ram running in Americas", 2_344_000),
)


def test_an_a3_mega_is_the_sum_of_its_parts() -> None:
    kind = machine("a3-megagpu-8g", "nvidia-h100-mega-80gb", 8, 208, 1872)
    # 8 x 10.344276 = 82.754208; 208 x 0.026924 = 5.600192; 1872 x 0.002344 = 4.387968
    assert priced([kind], *MEGA) == {("a3-megagpu-8g", False): pytest.approx(92.742368, abs=1e-9)}
    for missing in range(3):
        assert priced([kind], *(one for n, one in enumerate(MEGA) if n != missing)) == {}, "half a price is none"


def test_a_g2_on_demand_and_spot() -> None:
    skus = (
        sku("Nvidia L4 GPU running in Americas", 0, 560_040_000, group="GPU"),
        sku("G2 Instance Core running in Americas", 0, 24_988_000),
        ram("G2 Instance Ram running in Americas", 2_927_000),
        sku("Nvidia L4 GPU attached to Spot Preemptible VMs running in Americas", 0, 224_000_000, usage="Preemptible"),
        sku("Spot Preemptible G2 Instance Core running in Americas", 0, 9_995_000, usage="Preemptible"),
        ram("Spot Preemptible G2 Instance Ram running in Americas", 1_171_000, usage="Preemptible"),
    )
    # on demand 0.56004 + 4 x 0.024988 + 16 x 0.002927 = 0.706824; spot 0.224 + 0.03998 + 0.018736 = 0.282716
    assert priced([machine("g2-standard-4", "nvidia-l4", 1, 4, 16)], *skus) == {
        ("g2-standard-4", False): pytest.approx(0.706824, abs=1e-9),
        ("g2-standard-4", True): pytest.approx(0.282716, abs=1e-9),
    }


def test_attached_gpus_are_priced_beside_their_machine() -> None:
    skus = (
        sku("N1 Predefined Instance Core running in Americas", 0, 31_611_000, group="N1Standard"),
        ram("N1 Predefined Instance Ram running in Americas", 4_237_000),
        sku("Nvidia Tesla T4 GPU running in Americas", 0, 350_000_000, group="GPU"),
    )
    kinds = [machine(f"n1-standard-8+nvidia-tesla-t4x{n}", "nvidia-tesla-t4", n, 8, 30, attached=True) for n in (1, 2)]
    # 8 x 0.031611 + 30 x 0.004237 = 0.379998
    assert priced(kinds, *skus) == {
        ("n1-standard-8", False): pytest.approx(0.379998, abs=1e-9),
        ("nvidia-tesla-t4", False): 0.35,
    }


def test_a_slice_has_its_share_of_the_machine_in_it() -> None:
    skus = (
        sku("A4 Nvidia B200 (1 gpu slice) running in Americas", 16, 110_000_000, group="GPU"),
        sku("Spot Preemptible A4 Nvidia B200 (1 gpu slice) running in Americas", 4, 954_200_000, group="GPU"),
    )
    found = priced([machine("a4-highgpu-8g", "nvidia-b200", 8, 224, 3968)], *skus)
    assert found == {("a4-highgpu-8g", True): pytest.approx(39.6336)}, "and not on demand, which Google does not offer"


def test_what_is_not_rented_on_demand_has_no_such_price() -> None:
    skus = (
        sku("Nvidia H100 80GB GPU running in Americas", 9, 796_551_000, group="GPU"),
        sku("A3 Instance Core running in Americas", 0, 29_322_700),
        ram("A3 Instance Ram running in Americas", 2_552_600),
    )
    kinds = [machine(f"a3-highgpu-{n}g", "nvidia-h100-80gb", n, 26 * n, 234 * n) for n in (1, 2, 4, 8)]
    assert set(priced(kinds, *skus)) == {("a3-highgpu-8g", False)}


def test_shared_cores_are_not_priced_as_whole_ones() -> None:
    skus = (
        sku("E2 Instance Core running in Americas", 0, 21_811_590),
        ram("E2 Instance Ram running in Americas", 2_923_530),
    )
    kinds = [machine("e2-medium", "", 0, 2, 4), machine("e2-standard-2", "", 0, 2, 8)]
    # 2 x 0.02181159 + 8 x 0.00292353 = 0.06701142
    assert priced(kinds, *skus) == {("e2-standard-2", False): pytest.approx(0.06701142, abs=1e-9)}


def test_of_two_skus_of_one_part_the_higher_price_counts() -> None:
    cheap = sku("A3Plus Instance Core running in Iowa", 0, 20_000_000)
    kind = machine("a3-megagpu-8g", "nvidia-h100-mega-80gb", 8, 208, 1872)
    for order in ((cheap, *MEGA), (*MEGA, cheap)):
        assert priced([kind], *order) == {("a3-megagpu-8g", False): pytest.approx(92.742368, abs=1e-9)}
