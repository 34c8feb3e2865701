"""What agents tell of their login on the tailnet, and what the head sees of it by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from meshd.api.node_schema import PollIn
from meshd.api.schema import ProblemView
from meshd.codes import ProblemCode
from meshd.daemon.machines import problems as machine_problems
from meshd.daemon.machines.node_steps import NodeSteps
from meshd.daemon.nodes import problems
from meshd.daemon.nodes.service import NodeService
from meshd.errors import TailnetError
from meshd.model import plan as p
from meshd.model.machine import Phase
from meshd.model.observed import Fresh, Snapshot
from tests.live import live_settings
from tests.node_room import node_parts
from tests.unit.daemon.small import Small
from tests.unit.daemon.standins import MungeKey
from tests.unit.worlds import GONE_DARK, NOW, ago, around, machine, node, peer, slurm, tailnet

READY = machine(Phase.READY, tailnet_id="n-lab-h100-1-abcde1")
WORDS = "its login on the tailnet was broken for 6 s (invalid key): the old login is back"


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[Small]:
    world = Small(tmp_path, READY)
    yield world
    await world.executor.aclose(1)
    world.journal.close()


def service_of(small: Small, directory: Path) -> NodeService:
    return node_parts(small.machine_store, munge_key=cast("Any", MungeKey())).service


async def test_an_agent_tells_what_it_mended(small: Small, tmp_path: Path) -> None:
    service = service_of(small, tmp_path)
    await service.poll(READY.name, PollIn(phase="serving", munge_ok=True, notices=(WORDS,)), 0.0)
    event = small.journal.events(-1, 1, READY.name)[0]
    assert (event.kind, event.text) == ("login", WORDS)


async def test_a_problem_of_a_ready_node_shows_until_it_is_over(small: Small, tmp_path: Path) -> None:
    service = service_of(small, tmp_path)
    await service.poll(READY.name, PollIn(phase="serving", munge_ok=True, problem="not connected: invalid key"), 0.0)
    (told,) = machine_problems.machines([small.get(READY.name)], {})
    assert (told.code, told.machine) == (ProblemCode.AGENT_TROUBLE, READY.name)
    assert "not connected: invalid key" in told.text
    await service.poll(READY.name, PollIn(phase="serving", munge_ok=True), 0.0)
    assert list(machine_problems.machines([small.get(READY.name)], {})) == []
    assert small.journal.events(machine=READY.name)[-1].text == "is over: not connected: invalid key"
    count = len(small.journal.events())
    await service.poll(READY.name, PollIn(phase="serving", munge_ok=True), 0.0)
    assert len(small.journal.events()) == count


def seen(offline_s: float, *states: str, healthy: bool = True) -> Snapshot:
    away = replace(peer(READY), online=False, last_seen=ago(offline_s))
    return around(
        READY, tailnet=Fresh(tailnet(away, healthy=healthy), NOW), slurm=Fresh(slurm(node(READY, *states)), NOW)
    )


def test_a_node_that_control_does_not_see_is_told() -> None:
    assert list(problems.logins([READY], seen(60), NOW)) == []
    (told,) = problems.logins([READY], seen(1800, "MIXED"), NOW)
    assert (told.code, told.severity) == (ProblemCode.CONTROL_OFFLINE, "warning")
    assert (told.machine, told.since) == (READY.name, ago(1800))
    (told,) = problems.logins([READY], seen(1800, "DOWN", "NOT_RESPONDING"), NOW)
    assert told.code == ProblemCode.CONTROL_OFFLINE


def test_it_is_not_told_where_it_is_not_known_or_told_already() -> None:
    assert list(problems.logins([READY], seen(1800, healthy=False), NOW)) == []
    assert list(problems.logins([READY], around(READY, tailnet=GONE_DARK), NOW)) == []
    assert list(problems.logins([READY], around(READY), NOW)) == []
    assert list(problems.logins([replace(READY, problem="its agent's words")], seen(1800), NOW)) == []
    assert list(problems.logins([replace(READY, phase=Phase.DRAINING)], seen(1800), NOW)) == []


# -- node keys that expire --------------------------------------------------------------------------------------------

AHEAD = timedelta(days=14)


class TailnetApi:
    """The tailnet's API: changes devices, or may not."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.refuses = ""

    async def delete_device(self, device_id: str) -> None:
        raise AssertionError("nothing is deleted here")

    async def disable_key_expiry(self, device_id: str) -> None:
        self.asked.append(device_id)
        if self.refuses:
            raise TailnetError(self.refuses)


@pytest.mark.parametrize("refuses", ["", "the tailnet's API refused: give the credential the scope devices:core"])
async def test_a_node_key_is_made_to_last(small: Small, refuses: str) -> None:
    api = TailnetApi()
    api.refuses = refuses
    steps = NodeSteps(small.machine_store, small.slurm, small.agents, api, live_settings())
    await steps.disable_key_expiry(p.DisableKeyExpiry(READY.name, "its node key would end on 2026-05-30", "n-1"))
    assert api.asked == ["n-1"]
    assert small.get(READY.name).key_expiry_asked_at == NOW
    text = small.journal.events(-1, 1, READY.name)[0].text
    assert text.endswith(refuses or "its expiry is disabled")


def key_problems(
    ends_d: float, *, expired: bool = False, head_d: float = 100.0, api: bool = False
) -> list[ProblemView]:
    ends = replace(peer(READY), key_expiry=ago(-86400 * ends_d), expired=expired)
    view = replace(tailnet(ends), self_key_expiry=ago(-86400 * head_d))
    seen = around(READY, tailnet=Fresh(view, NOW))
    return list(problems.node_keys([READY], seen, NOW, AHEAD, may_change=api))


def test_the_end_of_a_node_key_is_announced() -> None:
    assert key_problems(15) == []
    (told,) = key_problems(9.5)
    assert (told.code, told.severity) == (ProblemCode.NODE_KEY_EXPIRES, "warning")
    assert (told.machine, told.pool) == (READY.name, READY.pool)
    assert "2026-03-11" in told.text
    assert "devices:core" in key_problems(9.5, api=True)[0].cure
    assert (key_problems(3)[0].code, key_problems(3)[0].severity) == (ProblemCode.NODE_KEY_EXPIRES, "error")
    for (told,) in (key_problems(15, expired=True), key_problems(-1)):
        assert (told.code, told.severity) == (ProblemCode.NODE_KEY_EXPIRED, "error")


def test_the_heads_own_is_announced_too() -> None:
    (told,) = key_problems(100, head_d=2, api=True)
    assert (told.code, told.severity, told.machine) == (ProblemCode.NODE_KEY_EXPIRES, "error", "")
    assert list(problems.node_keys([READY], around(READY, tailnet=GONE_DARK), NOW, AHEAD, may_change=True)) == []


def test_what_keeps_a_machine_from_joining_is_shown_while_it_lasts() -> None:
    m = machine(Phase.JOINING, problem="packages: E: Could not get lock /var/lib/apt/lists/lock")
    (told,) = machine_problems.machines([m], {})
    assert (told.code, told.severity, told.machine) == (ProblemCode.MACHINE_LATE, "warning", m.name)
    assert not told.blocking
    assert "/var/lib/apt/lists/lock" in told.text
    assert not list(machine_problems.machines([replace(m, problem="")], {}))
