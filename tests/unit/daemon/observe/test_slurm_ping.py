"""slurmctld that is stopped is seen by whoever asks, at once, and forgotten once it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from meshd.api import schema as s
from meshd.codes import CheckName, ProblemCode
from meshd.daemon.head_api import doctor as doctors
from meshd.daemon.head_api.doctor import Doctor
from meshd.daemon.head_api.views import sources
from meshd.daemon.observe import report as source_report
from meshd.daemon.observe.slurm_ping import SPACING_S, SlurmPing
from meshd.daemon.reporting import Check, ok
from meshd.errors import SlurmError
from meshd.model.observed import Fresh, Snapshot
from tests.unit.daemon.small import HandClock
from tests.unit.worlds import GONE_DARK, snapshot


@dataclass
class Ctld:
    up: bool = True
    error: Exception | None = None
    pings: int = 0
    hurried: list[int] = field(default_factory=list)
    hangs: bool = False

    async def ping(self) -> bool:
        self.pings += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        return self.up


def seen_at(clock: HandClock, age_s: float) -> Snapshot:
    seen = snapshot()
    assert isinstance(seen.slurm, Fresh)
    return snapshot(slurm=Fresh(seen.slurm.value, clock.now() - timedelta(seconds=age_s)))


async def test_an_old_word_of_slurm_does_not_hide_that_it_is_down() -> None:
    clock, ctld = HandClock(), Ctld()
    ping = SlurmPing(ctld.ping, lambda: ctld.hurried.append(1), clock)
    seen = seen_at(clock, 25)
    assert await ping() is True
    assert not list(ping.problems(seen.slurm))
    ctld.up = False
    clock.t_s += SPACING_S
    assert await ping() is False
    (problem,) = ping.problems(seen.slurm)
    assert (problem.code, problem.severity, problem.since) == (ProblemCode.SLURMCTLD_DOWN, "error", clock.now())
    assert ctld.hurried == [1], "its source reads it again now"
    (row,) = [one for one in sources(seen, clock.now(), ping) if one.name == "slurm"]
    assert (row.ok, row.age_s) == (False, 25 + SPACING_S)
    assert not list(ping.problems(GONE_DARK)), "its source says so itself: not twice"
    clock.t_s += 1
    assert not list(ping.problems(seen_at(clock, 0).slurm)), "it was read since: it is over"
    ctld.up = True
    clock.t_s += SPACING_S
    assert await ping() is True
    assert not list(ping.problems(seen.slurm))


async def test_many_who_ask_are_one_ping_and_one_that_hangs_keeps_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, ctld = HandClock(), Ctld()
    ping = SlurmPing(ctld.ping, lambda: None, clock)
    assert await asyncio.gather(*(ping() for _ in range(20))) == [True] * 20
    assert ctld.pings == 1
    clock.t_s += SPACING_S
    ctld.error = SlurmError("scontrol is missing")
    assert await ping() is None
    clock.t_s += SPACING_S
    ctld.hangs = True
    monkeypatch.setattr("meshd.daemon.observe.slurm_ping.WAIT_S", 0.05)
    assert await ping() is None


# -- doctor -----------------------------------------------------------------------------------------------------------


async def fine() -> s.CheckRow:
    return ok(CheckName.MUNGE, "fine")


def doctor(
    clock: HandClock,
    seen: list[Snapshot],
    look: Callable[[], Awaitable[None]],
    slurm_answers: Callable[[], Awaitable[bool | None]] | None = None,
) -> Doctor:
    checks = (
        *source_report.checks(lambda: seen[-1], tuple, slurm_answers),
        Check(CheckName.MUNGE, fine),
    )
    return Doctor(lambda: checks, look=look, now=clock.now)


async def rows(check: Doctor) -> dict[str, s.CheckRow]:
    return {row.name: row for row in await check()}


async def test_doctor_says_at_once_that_slurmctld_is_stopped() -> None:
    clock, gate = HandClock(), asyncio.Event()
    seen = [seen_at(clock, 29)]

    async def down() -> bool:
        return False

    async def look() -> None:
        gate.set()

    found = await rows(doctor(clock, seen, slurm_answers=down, look=look))
    assert found["slurm"].code == ProblemCode.SLURMCTLD_DOWN
    assert found["slurm"].at == clock.now()
    assert all(row.at is not None for row in found.values()), "each tells how old it is"


async def test_doctor_reads_slurm_and_the_tailnet_anew() -> None:
    clock = HandClock()
    seen = [seen_at(clock, 29)]

    async def look() -> None:
        seen.append(snapshot(slurm=GONE_DARK, tailnet=GONE_DARK))

    found = await rows(doctor(clock, seen, look=look))
    assert found["slurm"].code == ProblemCode.SLURM_UNREADABLE
    assert found["tailnet"].code == ProblemCode.TAILNET_UNREADABLE


async def test_doctor_shows_an_old_word_as_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctors, "LOOK_TIMEOUT_S", 0.05)
    clock = HandClock()
    seen = [seen_at(clock, 29)]

    async def look() -> None:
        await asyncio.Event().wait()

    found = await rows(doctor(clock, seen, look=look))
    assert (found["slurm"].status, found["slurm"].code) == ("warn", ProblemCode.CHECK_ANSWER_OLD)
    assert found["slurm"].at == clock.now() - timedelta(seconds=29)
    assert found["munge"].status == "ok", "it keeps no other check"
