"""What is delivered, what a restart knows, and that a receiver that fails is a problem for the others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from meshd.api import schema as s
from meshd.codes import ProblemCode, RefusalCode
from meshd.config import NotifySettings
from meshd.daemon.notifications.controller import NotificationController
from meshd.daemon.reporting import problem
from meshd.model.machine import Machine, Phase
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
        return [one.text for one in self.journal.events(limit=100) if one.kind == "notify"]


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
