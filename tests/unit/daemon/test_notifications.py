"""What is delivered, what a restart knows, and that a receiver that fails is a problem for the others."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from meshd.api import schema as s
from meshd.codes import EventKind, ProblemCode, RefusalCode
from meshd.config import NotifySettings
from meshd.daemon.notifications.controller import NotificationController
from meshd.daemon.reporting import problem
from meshd.errors import StoreError
from meshd.model.machine import Machine, Phase
from meshd.notify.message import Message
from meshd.notify.receiver import Receiver
from meshd.plan.notices import FIRST_PAUSE_S
from meshd.store.journal import Journal
from meshd.store.notices import ToldReceivers
from tests.clocks import HandClock
from tests.codes import refused
from tests.head_room import ROOT
from tests.live import live_settings
from tests.unit.notify.test_receivers import Hook, hook
from tests.unit.worlds import NOW, machine


class Meshd:
    """One controller at a time over one journal."""

    def __init__(self, path: Path, **notify: NotifySettings) -> None:
        self.path = path / "journal.db"
        self.live = live_settings(notify=notify)
        self.clock = HandClock(NOW)
        self.problems: list[s.ProblemView] | None = []
        self.machines: list[Machine] = []
        self.open()

    def open(self) -> None:
        self.journal = Journal(self.path)
        self.controller = NotificationController(
            self.live, ToldReceivers(self.journal), lambda: self.problems, lambda: self.machines, self.clock
        )

    async def close(self) -> None:
        await self.controller.aclose()
        self.journal.close()

    async def after(self, seconds: float) -> None:
        self.clock.t_s += seconds
        await self.controller.reconcile()

    async def until(self, met: Callable[[], Any]) -> None:
        async with asyncio.timeout(20):
            while not met():
                await asyncio.sleep(0.01)
                await self.controller.reconcile()

    def told(self) -> list[str]:
        return [text for (text,) in self.journal.rows("SELECT text FROM events WHERE kind = 'notify' ORDER BY id")]


def trouble() -> s.ProblemView:
    return problem(ProblemCode.SLURM_UNREADABLE, "error", "Slurm does not answer", "look")


def states(server: Hook) -> list[list[tuple[str, str]]]:
    return [[(p["state"], p["code"]) for p in json.loads(body)["problems"]] for _, _, body in server.got]


async def test_a_problem_its_end_and_a_restart_between(tmp_path: Path) -> None:
    async with hook() as server:
        it = Meshd(tmp_path, ops=NotifySettings(url=server.url))
        it.problems = None
        await it.after(0)
        it.problems = [trouble()]
        await it.after(0)
        await it.after(91)
        await it.until(it.told)
        await it.close()
        it.open()
        it.problems = None  # it has not looked around yet: unknown is not absent
        await it.after(5000)
        it.problems = [trouble()]
        await it.after(100)
        it.problems = []
        await it.after(1)
        await it.after(301)
        await it.until(lambda: len(it.told()) == 2)
        await it.close()
    assert states(server) == [[("begun", "slurm_unreadable")], [("resolved", "slurm_unreadable")]]


async def test_a_receiver_that_fails_is_told_to_the_others_and_gets_all_in_the_end(tmp_path: Path) -> None:
    async with hook() as bad, hook() as good:
        bad.status = 503
        it = Meshd(tmp_path, bad=NotifySettings(url=bad.url), good=NotifySettings(url=good.url))
        it.problems = [trouble()]
        await it.after(0)
        await it.after(91)
        await it.until(lambda: bad.got and it.told())
        assert not list(it.controller.problems()), "once may be chance"
        await it.after(11)
        await it.until(lambda: list(it.controller.problems()))
        (own,) = it.controller.problems()
        assert own.code == ProblemCode.NOTIFY_FAILS and "HTTP 503" in own.text and "bad" in own.text
        it.problems = [trouble(), own]
        await it.after(0)
        await it.after(91)
        await it.until(lambda: len(good.got) == 2)
        bad.status = 200
        await it.after(601)
        await it.until(lambda: not list(it.controller.problems()))
        await it.close()
    assert states(good) == [[("begun", "slurm_unreadable")], [("begun", "notify_fails")]]
    assert states(bad)[-1] == [("begun", "slurm_unreadable")]
    assert len({headers["X-Meshd-Delivery"] for _, headers, _ in bad.got}) == 1


async def test_one_that_hangs_delays_nobody(tmp_path: Path) -> None:
    async with hook() as slow, hook() as good:
        slow.hangs = True
        it = Meshd(tmp_path, slow=NotifySettings(url=slow.url), good=NotifySettings(url=good.url))
        it.problems = [trouble()]
        await it.after(0)
        await it.after(91)
        await it.until(lambda: slow.got and it.told())
        it.problems = []
        await it.after(1)
        await it.after(301)
        await it.until(lambda: len(it.told()) == 2)
        assert len(slow.got) == 1, "one message at a time"
        await it.close()


async def test_a_spot_machine_that_is_taken_back(tmp_path: Path) -> None:
    async with hook() as server:
        it = Meshd(tmp_path, ops=NotifySettings(url=server.url, after_s=0, group_s=0))
        noticed = replace(machine(Phase.READY), preempted_at=NOW + timedelta(minutes=2))
        it.machines = [noticed, machine(Phase.READY, index=2)]
        await it.after(0)
        await it.until(it.told)
        await it.close()
    (found,) = json.loads(server.got[0][2])["problems"]
    assert found["code"] == "spot_notice" and found["machine"] == it.machines[0].name and found["pool"] == "h100"


async def test_one_that_cannot_be_used_is_a_problem_and_one_that_left_is_forgotten(tmp_path: Path) -> None:
    it = Meshd(tmp_path, ops=NotifySettings(url_file=tmp_path / "none"))
    await it.after(0)
    (own,) = it.controller.problems()
    assert own.code == ProblemCode.NOTIFY_FAILS and "cannot be read" in own.text
    (check,) = it.controller.checks()
    assert (await check.run()).status == "warn"
    async with hook() as server:
        it.live.settings = live_settings(notify={"new": NotifySettings(url=server.url)}).settings
        it.problems = [trouble()]
        await it.after(0)
        assert not list(it.controller.problems())
        await it.after(91)
        await it.until(it.told)
        it.live.settings = live_settings().settings
        await it.after(0)
    assert it.journal.rows("SELECT * FROM told_receivers") == []
    await it.close()


def fill_up(journal: Journal) -> None:
    for length in (400, 1):  # the last free bytes of the last page too
        with pytest.raises(StoreError, match="full"):
            while True:
                journal.event(NOW, EventKind.JOURNAL, "n" * length)


class Full:
    """SQLite may not let the file grow: it has no page left either."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def fill(self, journal: Journal) -> None:
        with journal.writing() as db:
            db.execute("PRAGMA max_page_count = 1")
        fill_up(journal)

    def free(self, journal: Journal) -> None:
        with journal.writing() as db:
            db.execute("PRAGMA max_page_count = 100000")


class FullDisk(Full):
    """The disk has no byte left."""

    def fill(self, journal: Journal) -> None:
        with (self.directory / "other").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
            while True:
                file.write(b"x" * 4096)
        fill_up(journal)

    def free(self, journal: Journal) -> None:
        (self.directory / "other").unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FullDisk]:
    """A disk of its own for the journal."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small disk")
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(small)], check=True)
    try:
        yield FullDisk(small)
    finally:
        subprocess.run(["umount", "--lazy", str(small)], check=True)


@pytest.fixture(params=["pages", "disk"])
def full(request: pytest.FixtureRequest, tmp_path: Path) -> Full:
    """A journal that can be made full: by SQLite's own limit, or by the disk."""
    return Full(tmp_path) if request.param == "pages" else request.getfixturevalue("disk")


def codes(it: Meshd) -> list[str]:
    return [one.code for one in it.controller.problems()]


async def test_a_full_disk_after_a_delivery_repeats_nothing_and_is_a_problem(full: Full) -> None:
    async with hook() as server, hook() as other:
        server.hangs = True
        it = Meshd(full.directory, ops=NotifySettings(url=server.url), two=NotifySettings(url=other.url))
        it.problems = [trouble()]
        await it.after(0)
        await it.after(91)
        await it.until(lambda: server.got and len(it.told()) == 1)
        assert not codes(it)
        full.fill(it.journal)  # while the message is on its way
        server.released.set()
        await it.until(lambda: codes(it) == ["notify_not_written"])
        for _ in range(60):
            await it.after(2)
        assert (len(server.got), len(other.got)) == (1, 1), "each was told once"

        # It goes on: what begins and ends now is told, once, also to a receiver that fails now and then.
        server.status = 503
        it.problems = [problem(ProblemCode.BUDGET_WARNING, "error", "no money", "wait")]
        for _ in range(70):
            await it.after(2)
            await asyncio.sleep(0.01)
        await it.until(lambda: len(other.got) == 2)
        assert 2 <= len(server.got) - 1 <= 1 + (2 * 70 - 90) / FIRST_PAUSE_S, "one try in each pause"
        server.status = 200
        for _ in range(5):
            await it.after(5)
            await asyncio.sleep(0.05)
        await it.until(lambda: states(server)[-1] == states(other)[-1])
        for _ in range(5):
            await it.after(60)
            await asyncio.sleep(0.05)
        await it.until(lambda: states(server)[-1] == states(other)[-1])
        assert states(other)[1:] == [[("begun", "budget_warning")], [("resolved", "slurm_unreadable")]]
        assert "notify_not_written" in codes(it)

        full.free(it.journal)
        await it.after(11)
        assert not codes(it)
        sent = len(server.got), len(other.got)
        assert len([one for one in it.told() if one.startswith("two")]) == 3, "the events were written later"
        await it.close()
        it.open()
        for _ in range(5):
            await it.after(60)
        assert (len(server.got), len(other.got)) == sent, "the next life knows all"
        await it.close()


async def test_a_life_that_ends_on_a_full_disk_lets_the_next_one_repeat_once(full: Full) -> None:
    async with hook() as server:
        server.hangs = True
        it = Meshd(full.directory, ops=NotifySettings(url=server.url))
        it.problems = [trouble()]
        await it.after(0)
        await it.after(91)
        await it.until(lambda: server.got)
        full.fill(it.journal)
        server.released.set()
        await it.until(lambda: codes(it))
        await it.close()
        it.open()
        for _ in range(10):
            await it.after(60)
            await asyncio.sleep(0.01)
        await it.close()
    assert states(server) == [[("begun", "slurm_unreadable")]] * 2
    assert len({headers["X-Meshd-Delivery"] for _, headers, _ in server.got}) == 1


async def test_a_receiver_that_leaves_the_settings_on_a_full_disk_is_forgotten_later(disk: FullDisk) -> None:
    async with hook() as server:
        it = Meshd(disk.directory, ops=NotifySettings(url=server.url))
        it.problems = [trouble()]
        await it.after(0)
        disk.fill(it.journal)
        it.live.settings = live_settings(notify={}).settings
        assert await it.controller.reconcile() is not None, "it comes again"
        assert codes(it) == ["notify_not_written"]
        disk.free(it.journal)
        await it.after(11)
        assert (await it.controller.reconcile(), codes(it)) == (None, [])
        assert it.journal.rows("SELECT * FROM told_receivers") == []
        await it.close()


class Faulty(Receiver):
    """One with a fault of meshd's own in it."""

    async def send(self, message: Message, at: datetime) -> str:
        raise RuntimeError("a fault of ours")


async def test_a_fault_of_ours_in_a_delivery_ends_the_pass_and_is_tried_again_after_the_pause(tmp_path: Path) -> None:
    async with hook() as good:
        it = Meshd(tmp_path, bad=NotifySettings(url=good.url), good=NotifySettings(url=good.url))
        it.problems = [trouble()]
        await it.after(0)
        one = it.controller._receivers["bad"]
        it.controller._receivers["bad"] = Faulty(**{f.name: getattr(one, f.name) for f in fields(one)})
        raised = 0
        for _ in range(60):
            try:
                await it.after(5)
            except RuntimeError:  # `keep_running` logs it, with where it happened
                raised += 1
            await asyncio.sleep(0.02)
        assert 2 <= raised <= 1 + (5 * 60 - 90) / FIRST_PAUSE_S
        assert codes(it) == ["notify_fails"] and len(good.got) == 2
        await it.close()
    assert states(good)[0] == [("begun", "slurm_unreadable")]


async def test_a_test_tells_what_each_answered(tmp_path: Path) -> None:
    async with hook() as bad, hook() as good:
        bad.status, bad.body = 404, b"no such hook"
        it = Meshd(tmp_path, bad=NotifySettings(url=bad.url), good=NotifySettings(url=good.url), none=NotifySettings())
        answer = await it.controller.test(s.NotifyTestRequest(), ROOT)
        assert [(row.receiver, row.ok) for row in answer.rows] == [("bad", False), ("good", True), ("none", False)]
        assert "HTTP 404: no such hook" in answer.rows[0].text
        assert [row.ok for row in (await it.controller.test(s.NotifyTestRequest(receiver="good"), ROOT)).rows] == [True]
        with refused(RefusalCode.NO_SUCH_RECEIVER):
            await it.controller.test(s.NotifyTestRequest(receiver="nobody"), ROOT)
        await it.close()
    assert json.loads(good.got[0][2])["kind"] == "test"
