"""A stand-in for the Cloud Billing Catalog API: Compute Engine's SKUs, in pages.

The parts of each machine type add up to the price in the adapter's `prices.json`. As in the real catalogue, there are
SKUs of other offers in between: commitments, custom shapes, calendar reservations, sole tenancy, and some that are
free.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from deploy.sandbox.clouds.gce_rules import no
from deploy.sandbox.clouds.gce_types import TYPES
from meshd.contract.standin import ErrorResponse
from meshd.price_list import PriceList

SERVICE = "6F81-5844-456A"
SKUS_PATH = "/v1/services/{service}/skus"
_PAGE_MAX = 200
_PLACES = {
    "us-central1": "Americas",
    "us-east1": "Americas",
    "us-east4": "Virginia",
    "us-west1": "Americas",
    "europe-west4": "Netherlands",
}


@dataclass(frozen=True, slots=True)
class _Family:
    """How a reference machine's price is divided: shares for cores and memory, the rest for its GPUs."""

    reference: str
    words: str
    core_share: float
    ram_share: float
    gpu_words: str = ""


_FAMILIES = (
    _Family("a2-highgpu-1g", "A2 Instance", 0.10, 0.07, "Nvidia Tesla A100 GPU"),
    _Family("a3-highgpu-8g", "A3 Instance", 0.07, 0.06, "Nvidia H100 80GB GPU"),
    _Family("a3-megagpu-8g", "A3Plus Instance", 0.07, 0.06, "Nvidia H100 80GB Mega GPU"),
    _Family("a3-ultragpu-8g", "A3Ultra Instance", 0.07, 0.06, "H200 141GB GPU"),
    _Family("n1-standard-1", "N1 Predefined Instance", 0.66, 0.34),
    _Family("e2-standard-2", "E2 Instance", 0.66, 0.34),
)
_ATTACHED = {
    "nvidia-tesla-t4": "Nvidia Tesla T4 GPU",
    "nvidia-tesla-v100": "Nvidia Tesla V100 GPU",
    "nvidia-tesla-p100": "Nvidia Tesla P100 GPU",
    "nvidia-tesla-p4": "Nvidia Tesla P4 GPU",
}
_OTHER_DEALS = (
    ("Commitment v1: A3 Cpu in {place} for 1 Year", "CPU", "Commit1Yr", "h", 0.01),
    ("N1 Custom Instance Core running in {place}", "CPU", "OnDemand", "h", 0.03),
    ("Reserved Nvidia H100 80GB GPU in {place} in Calendar Mode", "GPU", "OnDemand", "h", 1.5),
    ("Reserved Nvidia Tesla A100 GPU in {place}", "GPU", "OnDemand", "h", 0.0),
    ("Nvidia L4 GPU attached to DWS Defined Duration VMs running in {place}", "GPU", "OnDemand", "h", 0.2),
    ("Sole Tenancy Premium for N1 Sole Tenancy Instance Core running in {place}", "CPU", "OnDemand", "h", 0.003),
    ("Nvidia Tesla T4 Virtual Workstation GPU running in {place}", "GPU", "OnDemand", "h", 0.55),
)


class BillingCatalog:
    """The stand-in.

    Args:
        prices: prices of whole machines, on demand and spot.

    Attributes:
        factor: multiplies every price; tests may change it.
    """

    def __init__(self, prices: PriceList) -> None:
        self._prices = prices
        self.factor = 1.0

    def page(self, request: web.Request) -> web.Response:
        """services.skus.list."""
        if request.match_info["service"] != SERVICE:
            raise no(404, "notFound", "Requested entity was not found.")
        begin, size = request.query.get("pageToken") or "0", request.query.get("pageSize") or "5000"
        if not begin.isdigit() or not size.isdigit():
            raise no(400, "badRequest", "Request contains an invalid argument.")
        everything = [_sku(number, *row) for number, row in enumerate(self._rows())]
        end = int(begin) + min(int(size), _PAGE_MAX)
        following = str(end) if end < len(everything) else ""
        return web.json_response({"skus": everything[int(begin) : end], "nextPageToken": following})

    def _rows(self) -> Iterator[tuple[str, str, str, str, str, float]]:
        """Description, region, resource group, usage type, unit and USD of each SKU."""
        for region, place in _PLACES.items():
            for spot in (False, True):
                for words, group, unit, usd in self._parts(region, spot):
                    before = "Spot Preemptible " if spot and group != "GPU" else ""
                    after = " attached to Spot Preemptible VMs" if spot and group == "GPU" else ""
                    text = f"{before}{words}{after} running in {place}"
                    yield text, region, group, "Preemptible" if spot else "OnDemand", unit, usd * self.factor
            for text, group, usage, unit, usd in _OTHER_DEALS:
                yield text.format(place=place), region, group, usage, unit, usd

    def _parts(self, region: str, spot: bool) -> Iterator[tuple[str, str, str, float]]:
        for family in _FAMILIES:
            usd, kind = self._prices.usd(region, family.reference, spot=spot), TYPES[family.reference]
            if usd is None:
                continue
            core, ram = usd * family.core_share / kind.vcpus, usd * family.ram_share / (kind.memory_mib / 1024)
            yield from _shape(family.words, core, ram)
            if kind.gpus:
                rest = usd - core * kind.vcpus - ram * kind.memory_mib / 1024
                yield family.gpu_words, "GPU", "h", rest / kind.gpus
            if family.reference.startswith("a2-"):
                larger, big = self._prices.usd(region, "a2-ultragpu-1g", spot=spot), TYPES["a2-ultragpu-1g"]
                if larger is not None:
                    rest = larger - core * big.vcpus - ram * big.memory_mib / 1024
                    yield "Nvidia Tesla A100 80GB GPU", "GPU", "h", rest
        yield from self._g2(region, spot)
        if (usd := self._prices.usd(region, "a4-highgpu-8g", spot=spot)) is not None:
            yield "A4 Nvidia B200 (1 gpu slice)", "GPU", "h", usd / 8
        for name, words in _ATTACHED.items():
            if (usd := self._prices.usd(region, name, spot=spot)) is not None:
                yield words, "GPU", "h", usd

    def _g2(self, region: str, spot: bool) -> Iterator[tuple[str, str, str, float]]:
        """The price of cores and memory, from the difference between 4 and 8 cores with the same GPU."""
        small, large = (self._prices.usd(region, f"g2-standard-{n}", spot=spot) for n in (4, 8))
        if small is None or large is None:
            return
        step = large - small
        yield from _shape("G2 Instance", 0.68 * step / 4, 0.32 * step / 16)
        yield "Nvidia L4 GPU", "GPU", "h", small - step


def _shape(words: str, core: float, ram: float) -> Iterator[tuple[str, str, str, float]]:
    group = "N1Standard" if words.startswith("N1 ") else ""
    yield f"{words} Core", group or "CPU", "h", core
    yield f"{words} Ram", group or "RAM", "GiBy.h", ram


def not_switched_on() -> ErrorResponse:
    """The answer for a project in which the API is disabled."""
    words = (
        "Cloud Billing API has not been used in project 123456789012 before or it is disabled. Enable it by visiting "
        "https://console.developers.google.com/apis/api/cloudbilling.googleapis.com/overview?project=123456789012"
    )
    info = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": "SERVICE_DISABLED",
        "domain": "googleapis.com",
        "metadata": {"service": "cloudbilling.googleapis.com"},
    }
    error = {"code": 403, "message": words, "status": "PERMISSION_DENIED", "details": [info]}
    return ErrorResponse(403, {"error": error})


def _sku(number: int, text: str, region: str, group: str, usage: str, unit: str, usd: float) -> dict[str, Any]:
    billionths = round(usd * 1e9)
    identity = f"{number >> 16:04X}-{number & 0xFFFF:04X}-0000"
    ram = unit == "GiBy.h"
    return {
        "name": f"services/{SERVICE}/skus/{identity}",
        "skuId": identity,
        "description": text,
        "category": {
            "serviceDisplayName": "Compute Engine",
            "resourceFamily": "Compute",
            "resourceGroup": group,
            "usageType": usage,
        },
        "serviceRegions": [region],
        "pricingInfo": [
            {
                "summary": "",
                "pricingExpression": {
                    "usageUnit": unit,
                    "displayQuantity": 1,
                    "tieredRates": [
                        {
                            "startUsageAmount": 0,
                            "unitPrice": {
                                "currencyCode": "USD",
                                "units": str(billionths // 10**9),
                                "nanos": billionths % 10**9,
                            },
                        }
                    ],
                    "usageUnitDescription": "gibibyte hour" if ram else "hour",
                    "baseUnit": "By.s" if ram else "s",
                    "baseUnitDescription": "byte second" if ram else "second",
                    "baseUnitConversionFactor": 3865470566400 if ram else 3600,
                },
                "currencyConversionRate": 1,
                "effectiveTime": "2026-01-01T00:00:00Z",
            }
        ],
        "serviceProviderName": "Google",
        "geoTaxonomy": {"type": "REGIONAL", "regions": [region]},
    }
