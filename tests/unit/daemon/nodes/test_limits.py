"""What agents say that jobs lack on their machines."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import ValidationError

from meshd.api.node_schema import PollIn
from meshd.codes import ProblemCode
from meshd.daemon.nodes import problems
from meshd.daemon.nodes.service import NodeService
from meshd.model.machine import Phase
from tests.node_room import node_parts
from tests.unit.daemon.small import Small
from tests.unit.daemon.standins import MungeKey
from tests.unit.worlds import machine

READY = machine(Phase.READY)
LACKS = ("process_tracking", "device_limits")


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[Small]:
    world = Small(tmp_path, READY)
    yield world
    await world.executor.aclose(1)
    world.journal.close()


@pytest.fixture
def service(small: Small) -> NodeService:
    return node_parts(small.machine_store, munge_key=cast("Any", MungeKey())).service


async def test_doctor_names_the_nodes_until_they_lack_nothing(small: Small, service: NodeService) -> None:
    await service.poll(READY.name, PollIn(phase="serving", munge_ok=True, lacks=LACKS), 0.0)
    assert small.get(READY.name).lacks == LACKS
    row = problems.check_limits([small.get(READY.name)])
    assert (row.status, row.code) == ("warn", ProblemCode.NODE_WITHOUT_LIMITS)
    assert READY.slot in row.text
    assert "device limits, process tracking" in row.text
    count = len(small.journal.events())
    for known in (LACKS, None):  # None: the agent has just started
        await service.poll(READY.name, PollIn(phase="serving", munge_ok=True, lacks=known), 0.0)
    assert len(small.journal.events()) == count
    assert small.get(READY.name).lacks == LACKS
    await service.poll(READY.name, PollIn(phase="serving", munge_ok=True, lacks=()), 0.0)
    assert problems.check_limits([small.get(READY.name)]).status == "ok"
    assert [event.kind for event in small.journal.events(machine=READY.name)[-2:]] == ["limits", "limits"]


@pytest.mark.parametrize("lacks", [("Device limits",), ("x" * 41,), ("",), tuple("abcdefghijklmnopq"), ("a\n",)])
def test_what_an_agent_says_has_bounds(lacks: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError):
        PollIn(lacks=lacks)
