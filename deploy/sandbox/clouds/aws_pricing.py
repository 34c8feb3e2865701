"""A stand-in for AWS's Price List Query API: GetProducts for EC2, with filters, pages and refusals.

Like AWS, it has several products for each instance type: plain Linux, Windows, dedicated hardware, unused reservations
and capacity blocks, at different prices. Only the right filters distinguish them.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from deploy.sandbox.clouds.aws_moto import Reply
from meshd.contract.faults import CUT_FAULTS, CallFaults, CloudFault, FaultKind
from meshd.contract.standin import GATEWAY_PAGE
from meshd.price_list import PriceList

TARGET = "AWSPriceListService.GetProducts"
_PAGE_MAX = 100
_PAGE = 25  # a page may be shorter than requested
_USER = "arn:aws:iam::123456789012:user/meshd"
_REFUSALS = {
    FaultKind.AUTH: (
        "AccessDeniedException",
        f"User: {_USER} is not authorized to perform: pricing:GetProducts because no identity-based policy allows "
        "the pricing:GetProducts action",
    ),
    FaultKind.THROTTLED: ("ThrottlingException", "Rate exceeded"),
    FaultKind.INVALID: ("InvalidParameterException", "Input Parameters are invalid."),
}
#: Other products of the same instance type: changed attributes, and the price as a multiple of the plain one.
_DEALS: tuple[tuple[dict[str, str], float], ...] = (
    ({}, 1.0),
    ({"operatingSystem": "Windows", "licenseModel": "No License required"}, 1.4),
    ({"tenancy": "Dedicated", "usagetype": "DedicatedUsage"}, 1.1),
    ({"capacitystatus": "UnusedCapacityReservation", "usagetype": "UnusedBox"}, 1.0),
    ({"marketoption": "CapacityBlock"}, 0.0),
    ({"preInstalledSw": "SQL Std"}, 3.0),
)


class PriceListApi:
    """The stand-in.

    Args:
        prices: prices of plain machines.

    Attributes:
        usd_per_hour: the same, by region and type; tests may change it.
    """

    def __init__(self, prices: PriceList) -> None:
        self.usd_per_hour: dict[tuple[str, str], float] = {
            (region, name): pair[0]
            for region, table in prices.usd_per_hour.items()
            for name, pair in table.items()
            if pair[0] is not None
        }

    def reply(self, body: bytes, call_faults: CallFaults, closing: threading.Event) -> Reply:
        """Answer one call. Raises ConnectionResetError when a fault cuts the connection."""
        fault = call_faults.before or call_faults.after
        if fault is not None and fault.kind is not FaultKind.SLOW:
            return _spoiled(fault)
        if fault is not None:
            closing.wait(fault.seconds)
        return self._products(json.loads(body))

    def _products(self, asked: Mapping[str, Any]) -> Reply:
        size = int(asked.get("MaxResults", _PAGE_MAX))
        begin = str(asked.get("NextToken", "0"))
        if asked.get("ServiceCode") != "AmazonEC2" or not 0 < size <= _PAGE_MAX:
            return _refused("InvalidParameterException", "Input Parameters are invalid.")
        if not begin.isdigit():
            return _refused("InvalidNextTokenException", "The pagination token is invalid.")
        wanted = {str(f["Field"]): str(f["Value"]) for f in asked.get("Filters", ()) if f.get("Type") == "TERM_MATCH"}
        found = [one for one in self._everything() if _matches(one, wanted)]
        end = int(begin) + min(size, _PAGE)
        answer: dict[str, Any] = {
            "FormatVersion": "aws_v1",
            "PriceList": [json.dumps(one) for one in found[int(begin) : end]],
        }
        if end < len(found):
            answer["NextToken"] = str(end)
        return _json("200 OK", answer)

    def _everything(self) -> Iterator[dict[str, Any]]:
        for number, ((region, name), usd) in enumerate(sorted(self.usd_per_hour.items())):
            for deal, (changes, factor) in enumerate(_DEALS):
                yield _product(f"{number:04d}SKU{deal}", region, name, usd * factor, changes)


def _product(sku: str, region: str, name: str, usd: float, changes: Mapping[str, str]) -> dict[str, Any]:
    usage = changes.get("usagetype", "BoxUsage")
    attributes = {
        "servicecode": "AmazonEC2",
        "servicename": "Amazon Elastic Compute Cloud",
        "locationType": "AWS Region",
        "regionCode": region,
        "instanceType": name,
        "instanceFamily": "GPU instance",
        "operatingSystem": "Linux",
        "licenseModel": "No License required",
        "tenancy": "Shared",
        "capacitystatus": "Used",
        "preInstalledSw": "NA",
        "marketoption": "OnDemand",
        "operation": "RunInstances",
        "currentGeneration": "Yes",
        **changes,
        "usagetype": f"{usage}:{name}",
    }
    term, rate = f"{sku}.JRTCKXETXF", f"{sku}.JRTCKXETXF.6YS6EN2CT7"
    dimension = {
        "unit": "Hrs",
        "beginRange": "0",
        "endRange": "Inf",
        "rateCode": rate,
        "appliesTo": [],
        "description": f"${usd:.10f} per On Demand Linux {name} Instance Hour",
        "pricePerUnit": {"USD": f"{usd:.10f}"},
    }
    offer = {
        "sku": sku,
        "offerTermCode": "JRTCKXETXF",
        "effectiveDate": "2026-01-01T00:00:00Z",
        "termAttributes": {},
        "priceDimensions": {rate: dimension},
    }
    return {
        "product": {"sku": sku, "productFamily": "Compute Instance", "attributes": attributes},
        "serviceCode": "AmazonEC2",
        "terms": {"OnDemand": {term: offer}},
        "version": "20260101000000",
        "publicationDate": "2026-01-01T00:00:00Z",
    }


def _matches(product: Mapping[str, Any], wanted: Mapping[str, str]) -> bool:
    attributes = product["product"]["attributes"]
    return all(str(attributes.get(key, "")).lower() == value.lower() for key, value in wanted.items())


def _spoiled(fault: CloudFault) -> Reply:
    if fault.kind in CUT_FAULTS:
        raise ConnectionResetError("a fault cuts the connection")
    if fault.kind in (FaultKind.HTML, FaultKind.HTML_AFTER):
        status = "200 OK" if fault.kind is FaultKind.HTML_AFTER else "502 BAD GATEWAY"
        return Reply(status, [("Content-Type", "text/html")], GATEWAY_PAGE.encode())
    if fault.kind in _REFUSALS:
        return _refused(*_REFUSALS[fault.kind])
    return _json(f"{fault.status} ERROR", {"__type": "InternalErrorException", "Message": "An internal error."})


def _refused(code: str, message: str) -> Reply:
    return _json("400 BAD REQUEST", {"__type": code, "Message": message})


def _json(status: str, answer: Mapping[str, Any]) -> Reply:
    return Reply(status, [("Content-Type", "application/x-amz-json-1.1")], json.dumps(answer).encode())
