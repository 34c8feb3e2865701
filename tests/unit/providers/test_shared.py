"""The modules that all adapters share."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pydantic import SecretStr

from meshd.codes import FaultCode
from meshd.errors import NotFound, RateLimited, Transient, Uncertain
from meshd.provider_api import Instance, InstanceId, InstanceState, ProviderName
from providers._answers import retry_after_s
from providers._fresh import Freshness
from providers._limits import Spacing, shared_spacing
from providers._reads import all_of
from providers._settings import secret_of
from providers._threads import Workers
from tests.clocks import SimClock
from tests.codes import faulty

NOW = datetime(2026, 1, 1, tzinfo=UTC)


async def test_turns_are_spaced() -> None:
    clock = SimClock(NOW)
    spacing = Spacing(1.5, 10, clock)
    await asyncio.gather(*(spacing.turn(provider="p", operation="o") for _ in range(4)))
    assert clock.slept == [1.5, 3.0, 4.5]


async def test_a_turn_too_far_away_is_refused_and_not_reserved() -> None:
    clock = SimClock(NOW)
    spacing = Spacing(12, 5, clock)
    await spacing.turn(provider="p", operation="o")
    for _ in range(2):
        with pytest.raises(RateLimited) as caught:
            await spacing.turn(provider="p", operation="o")
        assert caught.value.retry_after_s == 12
    clock.t_s = 12
    await spacing.turn(provider="p", operation="o")
    assert clock.slept == []


def test_a_claim_counts_from_when_it_was_used() -> None:
    clock = SimClock(NOW)
    spacing = Spacing(12, 50, clock)
    assert spacing.claim()
    clock.t_s = 11.9
    assert not spacing.claim()
    clock.t_s = 12
    assert spacing.claim()
    clock.t_s = 13
    assert not spacing.claim()


def test_spacing_is_shared_by_key() -> None:
    assert shared_spacing("key-1", "calls", 1, 1) is shared_spacing("key-1", "calls", 1, 1)
    assert shared_spacing("key-1", "calls", 1, 1) is not shared_spacing("key-2", "calls", 1, 1)


@pytest.mark.parametrize(("changes", "kind"), [(True, Uncertain), (False, Transient)])
async def test_late_thread(changes: bool, kind: type[Exception]) -> None:
    workers, begun, go = Workers("p", 1), threading.Event(), threading.Event()

    def late() -> None:
        begun.set()
        go.wait()

    asyncio.get_running_loop().call_soon(begun.wait)  # the deadline passes only when the call has begun
    with pytest.raises(kind):
        await workers.call(late, operation="launch", changes=changes, timeout_s=0.05)
    with pytest.raises(Transient):
        await workers.call(lambda: 1, operation="launch", changes=True, timeout_s=0.05)
    go.set()
    assert await workers.call(lambda: 2, operation="list", changes=False, timeout_s=60) == 2
    await workers.aclose()


async def test_an_error_in_a_thread_is_raised() -> None:
    workers = Workers("p", 1)

    def fail() -> None:
        raise NotFound("no")

    with pytest.raises(NotFound):
        await workers.call(fail, operation="get", changes=False, timeout_s=60)
    await workers.aclose()


@pytest.mark.parametrize(
    ("header", "wait_s"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("7", 7.0),
        ("Thu, 01 Jan 2026 00:01:00 GMT", 60.0),
        ("Wed, 31 Dec 2025 23:59:00 GMT", 0.0),
    ],
)
def test_retry_after(header: str | None, wait_s: float | None) -> None:
    assert retry_after_s(header, NOW) == wait_s


def machine(launched_at: datetime | None = None) -> Instance:
    return Instance(ProviderName("p"), InstanceId("i-1"), "t", InstanceState.UNKNOWN, launched_at=launched_at)


def test_freshness() -> None:
    clock = SimClock(NOW)
    fresh = Freshness(clock.now, 120)
    denied = NotFound("no")
    assert isinstance(fresh.error_for(machine(), denied), Transient)
    assert fresh.error_for(machine(NOW - timedelta(hours=1)), denied) is denied
    clock.t_s = 200
    assert fresh.error_for(machine(), denied) is denied
    fresh.see(InstanceId("i-1"))
    assert isinstance(fresh.error_for(machine(), denied), Transient)
    clock.t_s = 321
    fresh.see(InstanceId("i-1"))
    assert fresh.error_for(machine(), denied) is denied


async def test_all_of_waits_for_the_others() -> None:
    done: list[int] = []

    async def call(number: int) -> int:
        await asyncio.sleep(0)
        if number == 0:
            raise Transient("no")
        await asyncio.sleep(0)
        done.append(number)
        return number

    with pytest.raises(Transient):
        await all_of(call(n) for n in range(3))
    assert done == [1, 2]
    assert await all_of(call(n) for n in (1, 2)) == [1, 2]


def test_secret_from_the_credentials_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    assert secret_of(None, None, "key") is None
    (tmp_path / "key").write_text("value\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    found = secret_of(None, None, "key")
    assert found is not None and found.get_secret_value() == "value"
    assert secret_of(None, None, "other") is None
    assert secret_of(SecretStr("direct"), None, "key") == SecretStr("direct")
    (tmp_path / "empty").write_text("\n")
    with faulty(FaultCode.SECRET_UNUSABLE):
        secret_of(None, tmp_path / "empty", "key")
