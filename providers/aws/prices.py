"""Rates from the products of AWS's Price List Query API. PURE: no I/O, no clock.

Source: the AWS Price List user guide (query API, finding services and products). Each product is a JSON text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

Rate = tuple[str, str, bool, float]
"""Region, instance type, spot (never here), USD per hour."""
NOTE = "On-demand list prices of Linux machines, shared tenancy, read from AWS's Price List Query API."
_WANTED = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "capacitystatus": "Used",
    "preInstalledSw": "NA",
    "marketoption": "OnDemand",
}
"""Attributes of a plain Linux machine: no Windows, extra software, unused reservation or capacity block."""


def price_filter(region: str) -> list[tuple[str, str]]:
    """The filters of GetProducts for one region, as pairs of field and value."""
    return [("regionCode", region), *_WANTED.items()]


def rates(products: Iterable[str], wanted: Sequence[str]) -> list[Rate]:
    """The rates of the wanted instance types.

    Skips a product that cannot be read or costs nothing, such as a capacity block: no price is better than a wrong
    one.

    Args:
        products: JSON texts from the answer's PriceList.
        wanted: names of instance types, with * as wildcard.
    """
    found = (_rate(json.loads(text), wanted) for text in products)
    return [rate for rate in found if rate is not None]


def _rate(raw: Mapping[str, Any], wanted: Sequence[str]) -> Rate | None:
    attributes = (raw.get("product") or {}).get("attributes") or {}
    name, region = str(attributes.get("instanceType", "")), str(attributes.get("regionCode", ""))
    if not region or not any(fnmatchcase(name, pattern) for pattern in wanted):
        return None
    if any(attributes.get(key, value) != value for key, value in _WANTED.items()):
        return None
    if attributes.get("locationType", "AWS Region") != "AWS Region":
        return None
    usd = _usd_per_hour((raw.get("terms") or {}).get("OnDemand") or {})
    return None if usd is None else (region, name, False, usd)


def _usd_per_hour(terms: Mapping[str, Any]) -> float | None:
    """The price of the dimension that is paid per hour."""
    dimensions = [d for term in terms.values() for d in (term.get("priceDimensions") or {}).values()]
    found = [str((d.get("pricePerUnit") or {}).get("USD", "")) for d in dimensions if d.get("unit") == "Hrs"]
    usd = [float(text) for text in found if text.replace(".", "", 1).isdigit()]
    return max((one for one in usd if one > 0), default=None)
