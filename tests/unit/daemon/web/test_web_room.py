"""The page's server moves with the head's address and the settings; samples are taken each minute."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import ValidationError

from meshd.api import endpoints as e
from meshd.codes import ProblemCode
from meshd.config import WebSettings
from meshd.daemon.web.sampler import join_times
from meshd.daemon.web.wiring import Nodes, WebParts, build
from meshd.errors import TailnetError
from meshd.model.machine import Machine, Phase
from meshd.plan.samples import DAY_S, MINUTE_S, QUARTER_S, Figure, Mean, begin
from meshd.store.journal import Journal
from meshd.tailnet.deltas import Delta
from meshd.tailnet.status import Identity, TailnetTable
from meshd.tailnet.watcher import TailnetWatcher
from tests.live import live_settings
from tests.unit import worlds
from tests.waiting import until
from tests.web_room import ANN, NOW, Room

HEAD, MOVED = "127.2.0.1", "127.2.0.2"


class Tailscaled:
    """The head's, on loopback."""

    def __init__(self) -> None:
        self.table: TailnetTable | None = TailnetTable("Running", True, "n0", HEAD, self_name="head.tail.ts.net")

    async def status(self) -> TailnetTable:
        if self.table is None:
            raise TailnetError("tailscaled does not answer")
        return self.table

    async def watch(self) -> AsyncGenerator[Delta, None]:
        await asyncio.Event().wait()
        yield Delta()


class Head:
    """The parts of the page around a room's answers."""

    def __init__(self, path: Path, web: WebSettings) -> None:
        self.room, self.tailscaled = Room(), Tailscaled()
        self.journal = Journal(path / "journal.db")
        self.live = live_settings(web=web)
        self.watcher = TailnetWatcher(self.tailscaled, self.room.clock)
        self.parts: WebParts = build(
            self.live, self.journal, handlers=lambda: self.room, tailscaled=self.room.tailnet, tailnet=self.watcher,
            hosts=tuple, clock=self.room.clock,
        )  # fmt: skip

    def set(self, **web: object) -> None:
        settings = self.live.settings
        self.live.settings = settings.model_copy(update={"web": settings.web.model_copy(update=web)})

    async def answers(self, address: str, port: int) -> int:
        """The status, 0 where nobody listens."""
        self.room.base = f"http://{address}:{port}"
        try:
            return (await self.room.get("/"))[0]
        except OSError:
            return 0


@pytest.fixture
def port() -> int:
    with socket.create_server((HEAD, 0)) as one:
        return int(one.getsockname()[1])


async def test_it_serves_on_the_tailnet_alone_and_moves_with_it(tmp_path: Path, port: int) -> None:
    head = Head(tmp_path, WebSettings(enabled=True, port=port, allow=("ann@example.com",)))

    async def at(address: str) -> int:
        await head.watcher.look()
        return await head.answers(address, port)

    head.tailscaled.table, table = None, head.tailscaled.table
    running = asyncio.create_task(head.parts.service.run())
    try:
        assert await at(HEAD) == 0, "it waits for the head's address"
        head.tailscaled.table = table
        await until(lambda: at(HEAD), lambda status: status == 200, "it serves")
        assert await at("127.0.0.1") == 0 and await at(MOVED) == 0, "there alone"
        assert {"head", "head.tail.ts.net", HEAD} == head.parts.service.names()
        head.tailscaled.table = None
        assert await at(HEAD) == 200, "tailscaled away does not end it"
        assert table is not None
        head.tailscaled.table = replace(table, self_tailnet_ip=MOVED)
        await until(lambda: at(MOVED), lambda status: status == 200, "it has moved")
        assert await at(HEAD) == 0
        head.set(allow=("bob@other.example",))
        assert await at(MOVED) == 403
        head.set(enabled=False)
        await until(lambda: at(MOVED), lambda status: status == 0, "it has ended")
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        head.journal.close()


async def test_a_port_that_is_taken_is_a_problem_until_it_is_free(tmp_path: Path, port: int) -> None:
    head = Head(tmp_path, WebSettings(enabled=True, port=port, allow=("ann@example.com",)))
    other = await asyncio.start_server(lambda *_: None, HEAD, port)
    await head.watcher.look()
    running = asyncio.create_task(head.parts.service.run())

    async def codes() -> list[str]:
        return [problem.code for problem in head.parts.service.problems()]

    try:
        await until(codes, lambda found: found == [ProblemCode.WEB_NOT_SERVED], "it says so")
        other.close()
        await other.wait_closed()
        await until(codes, lambda found: found == [], "it serves")
        assert await head.answers(HEAD, port) == 200
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        head.journal.close()


async def test_a_sample_each_minute_while_it_is_enabled(tmp_path: Path) -> None:
    head = Head(tmp_path, WebSettings())
    sampler, clock = head.parts.sampler, head.room.clock
    assert await sampler.reconcile() == MINUTE_S and head.room.calls == []
    assert sampler.samples.last(NOW) is None
    head.set(enabled=True, allow=("ann@example.com",))
    clock.t_s = 20.0
    assert await sampler.reconcile() == 40.0
    await sampler.reconcile()
    (found,) = sampler.samples.read(MINUTE_S, NOW - timedelta(days=1), NOW + timedelta(days=1))
    busy = sum(load.utilization_percent for row in head.room.node_rows for load in row.gpu_load) / 100
    assert found.at == begin(NOW, MINUTE_S) and found.means == {
        Figure.GPUS_WANTED: Mean(64.0), Figure.GPUS_READY: Mean(24.0), Figure.GPUS_BUSY: Mean(busy),
        Figure.JOBS_RUNNING: Mean(3.0), Figure.JOBS_PENDING: Mean(2.0), Figure.USD_PER_HOUR: Mean(23.92 * 3),
    }  # fmt: skip
    head.room.status = head.room.status.model_copy(update={"sources": []})
    clock.t_s = 61.0
    await sampler.reconcile()
    (_, second) = sampler.samples.read(MINUTE_S, NOW, NOW + timedelta(days=1))
    assert Figure.JOBS_RUNNING not in second.means, "unknown is not 0"
    for step_s in (QUARTER_S, DAY_S):
        (whole,) = sampler.samples.read(step_s, begin(NOW, step_s), NOW)
        assert whole.means[Figure.GPUS_READY] == Mean(48.0, 2) and whole.means[Figure.JOBS_RUNNING] == Mean(3.0)
    assert len([call for call in head.room.calls if call.endpoint is e.STATUS]) == 2
    head.journal.close()


def test_join_times_count_each_machine_once() -> None:
    def ready(after_s: float, took_s: float | None) -> Machine:
        at = NOW + timedelta(seconds=after_s)
        asked = at - timedelta(seconds=took_s) if took_s is not None else None
        return worlds.machine(Phase.READY, ready_at=at, launch_called_at=asked)

    machines = [ready(-1, 100), ready(0, 90), ready(59, 110), ready(60, 200), ready(30, None), ready(30, -5)]
    assert join_times(machines, NOW, NOW + timedelta(minutes=1)) == Mean(200.0, 2)
    assert join_times(machines[:1], NOW, NOW + timedelta(minutes=1)) is None


def test_machines_and_hosts_are_nodes(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    one = worlds.machine(Phase.READY, tailnet_ip="100.64.0.9")
    journal.put(one, "phase", "ready", NOW)
    host = replace(worlds.host(1), device_id="nHOST", tailnet_ip="100.64.0.10")
    is_node = Nodes(journal, lambda: (host,))
    assert is_node(Identity("n1", one.name)) and is_node(Identity("n1", "x", ("100.64.0.9",)))
    assert is_node(Identity("nHOST", "x")) and is_node(Identity("n1", "x", ("fd7a::1", "100.64.0.10")))
    assert not is_node(Identity("n1", "laptop", (ANN,)))
    journal.close()


def test_settings_that_let_nobody_look_are_refused() -> None:
    with pytest.raises(ValidationError, match="enabled needs allow"):
        WebSettings(enabled=True)
    for allow in (("",), ("*",), ("a*@b",), ("two words",), ("a,b",)):
        with pytest.raises(ValidationError):
            WebSettings(enabled=True, allow=allow)
    for url in ("javascript:alert(1)", "//evil.example", 'https://x"onclick=', "ftp://x"):
        with pytest.raises(ValidationError):
            WebSettings(slurm_web_url=url)
