"""One answer for all who watch the whole cluster, and never one that is older than what it is about."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from meshd.api import endpoints as e
from meshd.api.auth import Actor, Authorizer
from meshd.api.handlers import Handlers
from meshd.api.monitoring import MonitoringPages
from meshd.api.routes import SHARED_S
from meshd.api.schema import DrainRequest, JobsQuery, JobsView, MachineAnswer, NodesView, VersionView
from meshd.api.server import HeadApiServer
from meshd.codes import EventKind
from meshd.errors import StoreError
from meshd.obs.metrics import Metrics
from tests.clocks import HandClock
from tests.unit.api.sim_head import SimHead
from tests.unit.worlds import NOW

SHARED = [e.STATUS, e.NODES, e.JOBS]


class Counted(Handlers):
    """Each answer has its number.

    Attributes:
        changes: what the answers depend on.
        made: how many answers of an endpoint were made.
        begun: is released by each answer that is begun.
        go: set while answers may end.
        fails: so many answers fail.
    """

    def __init__(self) -> None:
        super().__init__(lambda: self.changes)
        self.changes, self.made, self.fails = 0, 0, 0
        self.begun = asyncio.Semaphore(0)
        self.go = asyncio.Event()
        self.go.set()
        self.read(e.NODES, self._nodes)
        self.read(e.JOBS, self._jobs)
        self.read(e.VERSION, self._version)
        self.write(e.DRAIN, self._drain)

    def check(self) -> None:
        """These are enough."""

    async def _number(self) -> int:
        self.made += 1
        number = self.made
        self.begun.release()
        await self.go.wait()
        if self.fails:
            self.fails -= 1
            raise StoreError("the disk is full")
        return number

    async def _nodes(self) -> NodesView:
        return NodesView(at=NOW, nodes=[], schema_version=await self._number())

    async def _jobs(self, query: JobsQuery) -> JobsView:
        return JobsView(at=NOW, left_out=query.limit, schema_version=await self._number())

    async def _version(self) -> VersionView:
        return VersionView(meshd=f"{await self._number()}", cluster="lab", python="3", slurm="", tailscale="")

    async def _drain(self, request: DrainRequest, _actor: Actor) -> MachineAnswer:
        return MachineAnswer(machine=request.machine, slot="h100-1", phase="ready", text="drained")


class Lab:
    """A server of counted answers, and a client."""

    def __init__(self, handlers: Counted, clock: HandClock, http: aiohttp.ClientSession) -> None:
        self.handlers, self.clock, self.http = handlers, clock, http

    async def number(self, path: str = "/v1/nodes") -> int:
        """The number of the answer that is got."""
        async with self.http.get(path) as answer:
            assert answer.status == 200
            return int((await answer.json())["schema_version"])


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    async with serving(tmp_path) as made:
        yield made


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[Lab]:
    handlers, clock, path = Counted(), HandClock(), directory / "s"
    server = HeadApiServer(
        handlers, path=path, authorizer=Authorizer("nobody", own_uid=os.getuid()),
        monitoring=MonitoringPages(Metrics().registry, list), clock=clock,
    )  # fmt: skip
    await server.start()
    async with aiohttp.ClientSession("http://meshd", connector=aiohttp.UnixConnector(f"{path}", limit=0)) as http:
        yield Lab(handlers, clock, http)
    await server.stop()


def test_only_what_everybody_may_ask_is_shared() -> None:
    assert [one for one in e.ENDPOINTS if one.shared] == SHARED
    assert all(isinstance(one, e.Read) and not one.long_poll for one in SHARED)


async def test_all_who_look_at_the_same_time_cost_as_much_as_one(lab: Lab) -> None:
    lab.handlers.go.clear()
    asking = [asyncio.create_task(lab.number()) for _ in range(10)]
    await lab.handlers.begun.acquire()
    lab.handlers.go.set()
    assert await asyncio.gather(*asking) == [1] * 10
    assert await lab.number() == 1
    lab.clock.t_s += SHARED_S
    assert await lab.number() == 2


async def test_a_change_is_seen_at_once(lab: Lab) -> None:
    assert await lab.number() == 1
    lab.handlers.changes += 1
    assert [await lab.number(), await lab.number()] == [2, 2]


async def test_who_asks_after_a_change_does_not_get_what_others_wait_for_since_before_it(lab: Lab) -> None:
    lab.handlers.go.clear()
    before = asyncio.create_task(lab.number())
    await lab.handlers.begun.acquire()
    lab.handlers.changes += 1
    after = asyncio.create_task(lab.number())
    await lab.handlers.begun.acquire()
    lab.handlers.go.set()
    assert await asyncio.gather(before, after) == [1, 2]


async def test_who_wrote_sees_it(lab: Lab) -> None:
    assert await lab.number() == 1
    async with lab.http.post("/v1/drain", json={"machine": "h100-1"}) as answer:
        assert answer.status == 200
    assert await lab.number() == 2


async def test_another_question_is_another_answer(lab: Lab) -> None:
    usual = JobsQuery().limit
    assert await lab.number("/v1/jobs") == 1
    assert await lab.number(f"/v1/jobs?limit={usual}") == 1
    assert await lab.number("/v1/nodes") == 2
    for number in (3, 4):
        async with lab.http.get("/v1/jobs?limit=7") as answer:
            found = await answer.json()
        assert (found["left_out"], found["schema_version"]) == (7, number)
    async with lab.http.get("/v1/jobs?limit=0") as answer:
        assert answer.status == 400


async def test_a_failure_is_not_kept(lab: Lab) -> None:
    lab.handlers.fails = 1
    async with lab.http.get("/v1/nodes") as answer:
        assert answer.status >= 500
    assert await lab.number() == 2


async def test_other_answers_are_made_for_each(lab: Lab) -> None:
    for number in ("1", "2"):
        async with lab.http.get("/v1/version") as answer:
            assert (await answer.json())["meshd"] == number


def test_a_tick_and_a_change_of_a_record_are_changes_and_a_heartbeat_is_none() -> None:
    head = SimHead()
    try:
        (machine,) = head.grow(1)
        seen = [head.state.revision]
        head.do(lambda: head.journal.note(replace(machine, heartbeat_at=NOW)))
        assert head.state.revision == seen[-1]
        head.do(lambda: head.journal.put(machine, EventKind.PHASE, "ready: again", NOW))
        seen.append(head.state.revision)
        head.run(head.tick())
        seen.append(head.state.revision)
        assert len(set(seen)) == 3
    finally:
        head.close()
