from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from meshd.model.observed import Fresh, TailnetView, Unavailable
from meshd.runtime.clock import SystemClock
from meshd.tailnet.localapi import LocalApi
from meshd.tailnet.watcher import TailnetWatcher


class Watching:
    """A watcher at work, and the times at which it woke somebody."""

    def __init__(self, tailscaled: Any, poll_interval_s: float) -> None:
        self.api = LocalApi(tailscaled.socket, timeout_s=60)
        self.woken: list[float] = []
        self.watcher = TailnetWatcher(self.api, SystemClock(), poll_interval_s=poll_interval_s)
        self.watcher.on_change(lambda: self.woken.append(time.monotonic()))
        self.task = asyncio.create_task(self.watcher.run())

    @property
    def view(self) -> TailnetView:
        assert isinstance(self.watcher.current, Fresh)
        return self.watcher.current.value

    async def until(self, condition: Callable[[], bool], within_s: float = 30) -> None:
        async with asyncio.timeout(within_s):
            while not condition():  # noqa: ASYNC110 - conditions of any kind
                await asyncio.sleep(0.001)

    async def fresh(self) -> None:
        await self.until(lambda: isinstance(self.watcher.current, Fresh))

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.api.aclose()


@pytest.fixture
async def watching(tailscaled: Any) -> AsyncIterator[Watching]:
    found = Watching(tailscaled, poll_interval_s=60)
    yield found
    await found.stop()


async def test_unknown_until_asked(watching: Watching) -> None:
    assert isinstance(watching.watcher.current, Unavailable)
    await watching.fresh()
    assert watching.view.healthy and len(watching.woken) == 1


async def test_a_change_wakes_at_once_and_a_quiet_message_does_not(watching: Watching, tailscaled: Any) -> None:
    await watching.fresh()
    tailscaled.say(Version="1.102.5")
    tailscaled.say(PeerChangedPatch=[{"NodeID": 2, "Online": True}])
    await asyncio.sleep(0.05)
    assert len(watching.woken) == 1
    tailscaled.say(PeerChangedPatch=[{"NodeID": 2, "Online": False}])
    await watching.until(lambda: len(watching.woken) == 2)
    assert not watching.view.peers["nMINI00002"].online


async def test_what_the_bus_cannot_tell_is_read_anew(watching: Watching, tailscaled: Any) -> None:
    await watching.fresh()
    tailscaled.status["Self"]["Online"] = False
    tailscaled.say(ErrMessage="invalid key: API key does not exist")
    await watching.until(lambda: not watching.view.healthy)
    assert len(watching.woken) == 2


async def test_a_dropped_bus_is_opened_again_without_an_outage(watching: Watching, tailscaled: Any) -> None:
    await watching.fresh()
    tailscaled.status["Peer"] = {}
    tailscaled.hang_up()
    await watching.until(lambda: len(tailscaled.masks) == 2)
    assert watching.view.peers == {}
    assert len(watching.woken) == 2


async def test_a_restart_is_an_outage_and_then_a_whole_new_view(watching: Watching, tailscaled: Any) -> None:
    await watching.fresh()
    await tailscaled.stop()
    await watching.until(lambda: isinstance(watching.watcher.current, Unavailable))
    gone = watching.watcher.current
    assert isinstance(gone, Unavailable) and "systemctl start" in gone.reason
    await asyncio.sleep(0.3)
    still = watching.watcher.current
    assert isinstance(still, Unavailable) and still.since == gone.since
    assert len(watching.woken) == 2
    tailscaled.status["Peer"] = {}
    await tailscaled.start()
    await watching.fresh()
    assert watching.view.peers == {} and len(watching.woken) == 3


async def test_the_slow_poll_finds_what_the_bus_never_said(tailscaled: Any) -> None:
    watching = Watching(tailscaled, poll_interval_s=0.05)
    await watching.fresh()
    next(iter(tailscaled.status["Peer"].values()))["CurAddr"] = "10.9.9.9:41641"
    await watching.until(lambda: watching.view.peers["nMINI00002"].path == "direct 10.9.9.9:41641")
    await watching.stop()


async def test_an_unreadable_bus_is_survived(watching: Watching, tailscaled: Any) -> None:
    await watching.fresh()
    tailscaled.say(InitialStatus={"Self": {}})
    await watching.until(lambda: len(tailscaled.masks) == 2)
    assert watching.view.healthy


async def test_an_older_tailscaled_without_initial_status(watching: Watching, tailscaled: Any) -> None:
    await watching.fresh()
    assert json.dumps(tailscaled.status)
    before = tailscaled.status_calls
    tailscaled.say(NetMap={"Peers": []})
    await watching.until(lambda: tailscaled.status_calls == before + 1)
