"""Fetching prices, over real HTTP from the vendors' stand-ins."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from deploy.release_prices import release, wanted
from meshd.contract.faults import FaultKind
from meshd.errors import AuthFailed, ConfigError, ProviderError, RateLimited, Transient
from meshd.price_list import PriceList, dump, parse
from meshd.provider_api import Offer, PriceBook, PriceSource, Provider
from providers._prices import shipped
from tests.contract.rigs import SandboxRig, build

BOOKS = ("aws", "gce")
SLOW: dict[str, Any] = {"call_timeout_s": 100.0}  # on a busy machine Google's SDK takes long to load


@pytest.fixture(params=BOOKS)
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[SandboxRig]:
    async with AsyncExitStack() as stack:
        yield await build(request.param, stack)


async def tabled(provider: Provider) -> list[Offer]:
    """The offers whose prices come from a table. EC2's spot offers have prices from the API."""
    return [o for o in await provider.offers() if not (o.provider == "aws" and o.spot)]


def book(provider: Provider) -> PriceBook:
    assert isinstance(provider, PriceBook)
    return provider


async def test_fetched_prices_are_the_vendors(rig: SandboxRig) -> None:
    """Only for the types and regions of the settings, from several pages that also have other products."""
    provider = rig.make(**SLOW)
    found = await book(provider).fetch_prices()
    assert found.as_of == rig.clock.now()
    table = shipped(f"providers.{rig.name}")
    assert found.names > 0
    for region, names in found.usd_per_hour.items():
        for name, pair in names.items():
            for usd, known in zip(pair, table.usd_per_hour[region][name], strict=True):
                assert usd == (None if known is None else pytest.approx(known, rel=1e-3)), (region, name)
    assert rig.faults.calls("prices") > 1, "there is more than one page"


async def test_every_offer_has_a_fetched_price(rig: SandboxRig) -> None:
    fetched: list[PriceList | None] = [None]
    provider = rig.make(**SLOW, fetched_prices=lambda: fetched[0])
    before = await tabled(provider)
    assert {offer.price_source for offer in before} == {PriceSource.SHIPPED}
    fetched[0] = await book(provider).fetch_prices()
    after = await tabled(provider)
    assert {offer.key for offer in after} == {offer.key for offer in before}
    assert {offer.price_source for offer in after} == {PriceSource.REFRESHED}
    assert {offer.price_as_of for offer in after} == {rig.clock.now()}


async def test_new_prices_reach_the_offers(rig: SandboxRig) -> None:
    pricing = rig.server.ec2.pricing if rig.name == "aws" else None
    if pricing is None:
        rig.server.gce.billing.factor = 2.0
    else:
        pricing.usd_per_hour = {key: 2 * usd for key, usd in pricing.usd_per_hour.items()}
    fetched: list[PriceList | None] = [None]
    provider = rig.make(**SLOW, fetched_prices=lambda: fetched[0])
    before = {offer.key: offer.usd_per_hour for offer in await tabled(provider)}
    fetched[0] = await book(provider).fetch_prices()
    for offer in await tabled(provider):
        assert offer.usd_per_hour == pytest.approx(2 * before[offer.key], rel=1e-3)


async def test_the_settings_own_price_always_wins(rig: SandboxRig) -> None:
    kind = {"aws": "p5.4xlarge", "gce": "g2-standard-4"}[rig.name]
    fetched: list[PriceList | None] = [None]
    provider = rig.make(**SLOW, fetched_prices=lambda: fetched[0], prices={kind: 1.23})
    fetched[0] = await book(provider).fetch_prices()
    own = [o for o in await provider.offers() if o.instance_type == kind and not o.spot]
    assert own
    assert {(o.usd_per_hour, o.price_source, o.price_as_of) for o in own} == {(1.23, PriceSource.SETTINGS, None)}


async def test_a_missing_permission_is_named(rig: SandboxRig) -> None:
    provider = rig.make(**SLOW)
    rig.inject(FaultKind.AUTH, "prices")
    with pytest.raises(AuthFailed) as caught:
        await book(provider).fetch_prices()
    needed = {"aws": "pricing:GetProducts", "gce": "gcloud services enable cloudbilling.googleapis.com"}[rig.name]
    assert needed in str(caught.value)
    assert not any(secret in "".join(traceback.format_exception(caught.value)) for secret in rig.secrets)


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (FaultKind.THROTTLED, RateLimited),
        (FaultKind.ERROR_BEFORE, Transient),
        (FaultKind.CUT_BEFORE, Transient),
        (FaultKind.HTML, Transient),
        (FaultKind.HTML_AFTER, Transient),
    ],
)
@pytest.mark.parametrize("page", [1, 2])
async def test_a_list_is_complete_or_none(
    rig: SandboxRig, kind: FaultKind, error: type[ProviderError], page: int
) -> None:
    """A fault on any page fails the whole list."""
    provider = rig.make(**SLOW)
    rig.inject(kind, "prices", skip=page - 1)
    with pytest.raises(error):
        await book(provider).fetch_prices()


async def test_no_connection(rig: SandboxRig) -> None:
    provider = rig.make(**SLOW, **({"endpoint_url": "http://127.0.0.1:9"} if rig.name == "aws" else {}))
    if rig.name == "gce":
        provider = rig.make(**SLOW, billing_endpoint="http://127.0.0.1:9")
    with pytest.raises(Transient):
        await book(provider).fetch_prices()


async def test_the_table_for_a_release(rig: SandboxRig, tmp_path: Path) -> None:
    """The same code makes it, and reports what the old table had and the new one lacks."""
    path = tmp_path / "prices.json"
    old = shipped(f"providers.{rig.name}")
    path.write_text(dump(old))
    table = wanted(rig.name, {**rig.table(), **SLOW}, old)
    lost = {"aws": 0, "gce": 1}[rig.name]  # the stand-in's Google does not rent all that the table has
    if lost:
        with pytest.raises(ConfigError, match="GONE"):
            await asyncio.to_thread(release, rig.name, table, path, allow_gone=False)
        assert parse(path.read_text()) == old
    changes = await asyncio.to_thread(release, rig.name, table, path, allow_gone=True)
    assert all(line.endswith("GONE") for line in changes) and bool(changes) == bool(lost)
    new = parse(path.read_text())
    assert new.as_of > old.as_of
    assert new.names > 10
