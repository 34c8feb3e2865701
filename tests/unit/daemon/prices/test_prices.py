"""Fetching prices: when, what is kept, what is told."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from meshd.api import schema as s
from meshd.codes import ProblemCode, RefusalCode
from meshd.config import PriceSettings, Settings
from meshd.daemon.prices import prices as price_rules
from meshd.daemon.prices.files import PriceFiles
from meshd.daemon.prices.prices import AGAIN_DENIED_S, AGAIN_S, LOOK_EVERY_S, Prices
from meshd.daemon.prices.service import PriceService
from meshd.errors import AuthFailed, Transient
from meshd.model.desired import Desired
from meshd.model.observed import Fresh, Observation, Unavailable
from meshd.price_list import PriceList, collected, dump, parse
from meshd.provider_api import Offer, PriceSource, ProviderName
from meshd.store.journal import Journal
from tests.codes import refused
from tests.live import live_settings
from tests.unit.daemon.small import HandClock
from tests.unit.worlds import NOW, OFFER

DAY_S = 86400.0
Logs = list[MutableMapping[str, Any]]


@pytest.fixture
def logs() -> Iterator[Logs]:
    before = structlog.get_config()["wrapper_class"]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(0))
    with capture_logs() as lines:
        yield lines
    structlog.configure(wrapper_class=before)


class Book:
    """A cloud's price list: doubles each day, and fails when told to."""

    def __init__(self, clock: HandClock) -> None:
        self._clock = clock
        self.error: Exception | None = None
        self.empty = False
        self.asked = 0
        self.gate: asyncio.Event | None = None

    async def fetch_prices(self) -> PriceList:
        self.asked += 1
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        usd = 2.0 * 2 ** (self._clock.t_s // DAY_S)
        return collected([] if self.empty else [("r1", "g.1", False, usd)], self._clock.now(), "list prices")


class World:
    """Prices of one cloud with a book, and of others without."""

    def __init__(self, directory: Path) -> None:
        self.clock = HandClock()
        self.book = Book(self.clock)
        self.files = PriceFiles(directory / "prices")
        self.live = live_settings()
        self.read: list[str] = []
        self.journal = Journal(directory / "journal.db")
        self.offers: dict[str, Observation[tuple[Offer, ...]]] = {"aws": Fresh((OFFER,), NOW)}
        self.prices = Prices(
            {"aws": self.book}, self.files, self.clock, live=self.live, read_offers=self.read_offers,
            journal=self.journal,
        )  # fmt: skip
        self.service = PriceService(self.prices, lambda: self.offers, lambda: Desired("lab", {}, {}), self.clock)

    async def read_offers(self, provider: str) -> None:
        self.read.append(provider)

    def usd(self) -> float | None:
        found = self.files.find("aws")
        return found.usd("r1", "g.1") if found else None


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_what_is_fetched_is_kept_and_holds_at_once(world: World, tmp_path: Path) -> None:
    assert world.usd() is None
    umask = os.umask(0o077)  # as the service has it
    fetched = await world.prices.refresh("aws")
    os.umask(umask)
    assert fetched.prices is not None and fetched.error is None
    assert world.usd() == 2.0
    assert world.read == ["aws"], "the offers were read with the new prices"
    assert [event.kind for event in world.journal.events()] == ["prices"]
    file = tmp_path / "prices" / "aws.json"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (file, file.parent)] == [0o644, 0o755]
    assert parse(file.read_text()) == fetched.prices
    again = PriceFiles(tmp_path / "prices")
    assert again.find("aws") == fetched.prices, "also after a restart"


@pytest.mark.parametrize("error", [Transient("503", provider="aws"), AuthFailed("no", provider="aws"), None])
async def test_a_failed_fetch_keeps_the_old_prices(world: World, error: Exception | None) -> None:
    """`None`: the cloud answered with nothing."""
    await world.prices.refresh("aws")
    world.clock.t_s += DAY_S
    world.book.error, world.book.empty = error, error is None
    fetched = await world.prices.refresh("aws")
    assert fetched.error is not None
    assert world.usd() == 2.0
    (row,) = (await world.service.prices()).prices
    assert "fetching failed at 2026-03-02 12:00 UTC: aws" in row.note
    world.book.error, world.book.empty = None, False
    await world.prices.refresh("aws")
    assert world.usd() == 4.0
    assert (await world.service.prices()).prices[0].note == ""


async def test_a_file_that_cannot_be_written_is_told(world: World, tmp_path: Path) -> None:
    (tmp_path / "prices").write_text("a file in the way")
    answer = await world.service.refresh(s.PricesRefresh())
    (row,) = answer.results
    assert (row.ok, row.kind) == (False, "store")
    assert str(tmp_path / "prices" / "aws.json") in row.text


@pytest.mark.parametrize("content", [b"", b'{"as_of": "2026-01-01", "usd_per_hour": {"r1": {', b"\xff\xfe"])
async def test_a_damaged_file_is_told_and_not_used(world: World, logs: Logs, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "prices").mkdir()
    (tmp_path / "prices" / "aws.json").write_bytes(content)
    assert world.files.find("aws") is None
    assert world.files.find("aws") is None
    assert [line["event"] for line in logs] == ["prices_unreadable"], "once"
    (problem,) = price_rules.unreadable_files(world.files.damaged())
    assert (problem.code, problem.severity) == (ProblemCode.PRICE_FILE_UNREADABLE, "warning")
    assert "meshctl prices refresh aws" in problem.cure
    assert "aws.json" in (await world.service.prices()).prices[0].note
    assert world.prices.due("aws")
    await world.prices.refresh("aws")
    assert world.usd() == 2.0
    assert not list(price_rules.unreadable_files(world.files.damaged()))


@pytest.mark.parametrize("mended", [True, False])
async def test_a_damaged_file_that_somebody_mends_or_takes_away_is_told_no_longer(tmp_path: Path, mended: bool) -> None:
    listed = PriceList(as_of=NOW, usd_per_hour={"r1": {"g.1": (2.0, None)}})
    files = PriceFiles(tmp_path)
    path = files.path("aws")
    path.write_bytes(b"{")
    assert files.find("aws") is None
    assert files.damaged()
    path.unlink()
    if mended:
        path.with_name("new").write_bytes(dump(listed).encode())
        path.with_name("new").rename(path)
    assert not files.damaged()
    assert files.find("aws") == (listed if mended else None)


async def test_prices_are_fetched_by_themselves_when_they_are_old(world: World) -> None:
    assert world.prices.due("aws"), "none was fetched so far"
    await world.prices.refresh("aws")
    world.clock.t_s += 7 * DAY_S - 1
    assert not world.prices.due("aws")
    world.clock.t_s += 1
    assert world.prices.due("aws")
    world.live.settings = Settings(prices=PriceSettings(refresh_after_d=0))
    assert not world.prices.due("aws"), "never, say the settings"


@pytest.mark.parametrize(
    ("error", "pause_s", "level"),
    [
        (Transient("503", provider="aws"), AGAIN_S, "warning"),
        (AuthFailed("no", provider="aws"), AGAIN_DENIED_S, "info"),
    ],
)
async def test_a_failure_is_not_repeated_soon(
    world: World, logs: Logs, error: Exception, pause_s: float, level: str
) -> None:
    world.book.error = error
    await world.prices.refresh("aws")
    assert [(line["event"], line["log_level"]) for line in logs] == [("prices_not_fetched", level)]
    assert not world.prices.due("aws")
    world.clock.t_s += pause_s - 1
    assert not world.prices.due("aws")
    world.clock.t_s += 1
    assert world.prices.due("aws")


async def test_its_passes_fetch_once_and_again_when_it_is_time(world: World) -> None:
    for _ in range(round(8 * DAY_S / LOOK_EVERY_S)):
        world.clock.t_s += await world.prices.reconcile()
    assert world.book.asked == 2
    assert 7 * DAY_S <= (datetime_of(world) - NOW).total_seconds() <= 7 * DAY_S + LOOK_EVERY_S


def datetime_of(world: World) -> datetime:
    found = world.files.find("aws")
    assert found is not None
    return found.as_of


async def test_two_who_ask_at_once_share_one_fetch(world: World) -> None:
    world.book.gate = asyncio.Event()
    first, second = (asyncio.create_task(world.prices.refresh("aws")) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    world.book.gate.set()
    assert (await second).prices is not None
    assert world.book.asked == 1, "who hangs up does not end it for the other"
    assert world.usd() == 2.0


async def test_what_is_under_way_ends_with_the_daemon(world: World) -> None:
    world.book.gate = asyncio.Event()
    waiting = asyncio.create_task(world.prices.refresh("aws"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await world.prices.aclose()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert world.usd() is None


def priced(source: PriceSource, days: float | None, **more: object) -> Offer:
    at = None if days is None else NOW - timedelta(days=days)
    return replace(OFFER, price_source=source, price_as_of=at, **more)  # type: ignore[arg-type]


async def test_the_view_tells_source_date_and_what_helps(world: World) -> None:
    lambda_, paper = ProviderName("lambda"), ProviderName("paperspace")
    world.offers = {
        "aws": Fresh(
            (
                priced(PriceSource.SHIPPED, 40), priced(PriceSource.SHIPPED, 40, zone="r1b"),
                priced(PriceSource.SHIPPED, 40, instance_type="g.2", region="r2"),
                priced(PriceSource.REFRESHED, 1), priced(PriceSource.SETTINGS, None),
            ),
            NOW,
        ),
        "lambda": Fresh((priced(PriceSource.API, 0, provider=lambda_),), NOW),
        "paperspace": Fresh((priced(PriceSource.SHIPPED, 40, provider=paper),), NOW),
        "gce": Unavailable("401", NOW),
        "runpod": Fresh((), NOW),
    }  # fmt: skip
    rows = [
        (row.provider, row.source, row.types, row.regions, row.stale, row.refreshable, row.note)
        for row in (await world.service.prices()).prices
    ]
    help_ = "its API tells no prices: set providers.paperspace.prices, or update meshd"
    assert rows == [
        ("aws", "refreshed", 1, 1, False, True, ""),
        ("aws", "settings", 1, 1, False, True, ""),
        ("aws", "shipped", 2, 2, True, True, "`meshctl prices refresh aws`"),
        ("gce", "", 0, 0, False, False, "its offers cannot be read: 401"),
        ("lambda", "api", 1, 1, False, False, ""),
        ("paperspace", "shipped", 1, 1, True, False, help_),
        ("runpod", "", 0, 0, False, False, "it offers nothing with a known price"),
    ]
    shipped = (await world.service.prices()).prices[2]
    assert (shipped.as_of, shipped.age_s) == (NOW - timedelta(days=40), 40 * DAY_S)


async def test_only_those_with_a_list_are_asked(world: World) -> None:
    world.offers |= {
        "lambda": Fresh((priced(PriceSource.API, 0),), NOW),
        "paperspace": Fresh((priced(PriceSource.SHIPPED, 40),), NOW),
    }
    answer = await world.service.refresh(s.PricesRefresh())
    assert [(row.provider, row.ok, row.types) for row in answer.results] == [("aws", True, 1)]
    named = await world.service.refresh(s.PricesRefresh(providers=("lambda", "paperspace")))
    assert [(row.provider, row.ok, row.kind) for row in named.results] == [
        ("lambda", True, ""),
        ("paperspace", False, "no_price_list"),
    ]
    assert "providers.paperspace.prices" in named.results[1].cure
    with refused(RefusalCode.NO_SUCH_PROVIDER):
        await world.service.refresh(s.PricesRefresh(providers=("aws", "mycloud")))
    assert world.book.asked == 1, "nothing was fetched for a request that is wrong"


async def test_a_missing_permission_is_told_with_its_cure(world: World) -> None:
    world.book.error = AuthFailed("prices need the permission pricing:GetProducts", provider="aws", operation="prices")
    (row,) = (await world.service.refresh(s.PricesRefresh(providers=("aws",)))).results
    assert (row.ok, row.kind) == (False, "auth_failed")
    assert "pricing:GetProducts" in row.text and "still hold" in row.text and row.cure


def test_dates_are_utc(world: World) -> None:
    assert world.clock.now().tzinfo is UTC
    make: Callable[[], PriceList] = lambda: collected([], world.clock.now(), "")  # noqa: E731
    assert make().as_of == NOW
