"""EC2's spot market: prices, and refusals of spot requests.

moto has one price of 0.00001 USD and refuses nothing. Here the spot price is a share of the on-demand price that
differs by zone.

Sources: the EC2 API reference (DescribeSpotPriceHistory, error codes) and the User Guide's page on spot requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from xml.sax.saxutils import escape

from meshd.contract.faults import FaultKind

Form = Mapping[str, str]
Refusal = tuple[int, str, str]

REFUSALS: Mapping[FaultKind, Refusal] = {
    FaultKind.NO_CAPACITY: (
        500,
        "InsufficientInstanceCapacity",
        "There is no Spot capacity available that matches your request.",
    ),
    FaultKind.QUOTA: (400, "MaxSpotInstanceCountExceeded", "Max spot instance count exceeded"),
}
_LINUX = "Linux/UNIX"
#: The price with another operating system, as a multiple.
_SYSTEMS = {_LINUX: 1.0, "Windows": 1.6}
_SHARE, _SHARE_PER_ZONE = 0.30, 0.05
_EARLIER = timedelta(hours=3)
_PAGE_MAX = 1000


def is_spot(form: Form) -> bool:
    """Whether RunInstances asks for a spot machine."""
    return form.get("InstanceMarketOptions.MarketType") == "spot"


@dataclass(frozen=True, slots=True)
class SpotMarket:
    """The spot market.

    Attributes:
        on_demand: USD per hour of a type in a region.
        zones: the zones of a region that have a type.
        now: UTC clock.
    """

    on_demand: Callable[[str, str], float]
    zones: Callable[[str, str], list[str]]
    now: Callable[[], datetime]

    def usd_per_hour(self, region: str, zone: str, instance_type: str) -> float:
        """The current price of a spot machine."""
        share = _SHARE + _SHARE_PER_ZONE * (ord(zone[-1]) - ord("a"))
        return round(self.on_demand(region, instance_type) * share, 4)

    def refusal(self, form: Form, region: str, zone: str) -> Refusal | None:
        """The refusal of a spot request in a zone: its maximum price is below the market price."""
        most = form.get("InstanceMarketOptions.SpotOptions.MaxPrice")
        price = self.usd_per_hour(region, zone, form.get("InstanceType", ""))
        if most is None or float(most) >= price:
            return None
        words = (
            f"Your Spot request price of {most} is lower than the minimum required Spot request fulfillment price of"
            f" {price}."
        )
        return 400, "SpotMaxPriceTooLow", words

    def history(self, form: Form, region: str) -> bytes:
        """DescribeSpotPriceHistory: the prices since `StartTime` and the price at that time."""
        rows = list(self._rows(form, region))
        begin = int(form.get("NextToken") or 0)
        end = begin + int(form.get("MaxResults") or _PAGE_MAX)
        token = str(end) if end < len(rows) else ""
        return (
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            '<DescribeSpotPriceHistoryResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">'
            "<requestId>00000000-0000-0000-0000-000000000000</requestId>"
            f"<spotPriceHistorySet>{''.join(rows[begin:end])}</spotPriceHistorySet><nextToken>{token}</nextToken>"
            "</DescribeSpotPriceHistoryResponse>"
        ).encode()

    def _rows(self, form: Form, region: str) -> Iterator[str]:
        systems = _numbered(form, "ProductDescription") or list(_SYSTEMS)
        since = form.get("StartTime", "")
        for name in _numbered(form, "InstanceType"):
            for zone in self.zones(region, name):
                for system in systems:
                    usd = self.usd_per_hour(region, zone, name) * _SYSTEMS.get(system, 1.0)
                    changed_at = self.now() - _EARLIER
                    if not since or datetime.fromisoformat(since) < changed_at:
                        yield _row(name, zone, system, usd * 1.25, changed_at - _EARLIER)
                    yield _row(name, zone, system, usd, changed_at)


def _numbered(form: Form, key: str) -> list[str]:
    return [value for name, value in form.items() if name.rpartition(".")[0] == key and name[len(key) + 1 :].isdigit()]


def _row(name: str, zone: str, system: str, usd: float, at: datetime) -> str:
    fields = {
        "instanceType": name,
        "productDescription": system,
        "spotPrice": f"{usd:.6f}",
        "timestamp": at.strftime("%Y-%m-%dT%H:%M:%S.000Z"),
        "availabilityZone": zone,
    }
    return f"<item>{''.join(f'<{key}>{escape(value)}</{key}>' for key, value in fields.items())}</item>"
