"""A head's node API on loopback and a machine with the real agent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from meshd.api.node_api import NodeApi
from meshd.runtime.clock import SystemClock
from tests.unit.node.standins import House, Machine, MemoryHandlers, new_token


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    token = new_token()
    handlers = MemoryHandlers(token)
    api = NodeApi(handlers, poll_hold_s=1.0, clock=SystemClock())
    port = await api.start("127.0.0.1", 0)
    machine = Machine(tmp_path / "m", port, token)
    yield House(handlers, api, port, machine)
    await machine.stop()
    machine.power_cut()
    await api.stop()
