"""What agents tell of their login on the tailnet, and what the head sees of it by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from meshd.api.node_schema import PollIn
from meshd.config import TimingSettings
from meshd.daemon import problems
from meshd.daemon.agents import AgentQueues
from meshd.daemon.node_desk import NodeDeskOfDaemon
from meshd.daemon.tokens import MachineTokens
from meshd.model.machine import Phase
from meshd.model.observed import Fresh, Snapshot
from tests.unit.daemon.small import Small
from tests.unit.worlds import GONE_DARK, NOW, ago, around, machine, node, peer, slurm, tailnet

READY = machine(Phase.READY, tailnet_id="n-lab-h100-1-abcde1")
WORDS = "its login on the tailnet was broken for 6 s (invalid key): the old login is back"


class Rotator:
    """Nobody changes the munge key."""

    def heard(self, machine: str, report: PollIn) -> None:
        pass


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[Small]:
    world = Small(tmp_path, READY)
    yield world
    await world.executor.aclose(1)
    world.journal.close()


def desk_of(small: Small, directory: Path) -> NodeDeskOfDaemon:
    others: dict[str, Any] = dict.fromkeys(("whois", "munge", "head", "nodes"))
    return NodeDeskOfDaemon(
        records=small.records, tokens=MachineTokens.at(directory / "machines.key"), agents=AgentQueues(),
        rotator=cast("Any", Rotator()), timing=TimingSettings, slurm_version=lambda: "",
        ends_itself=lambda _: True, **others,
    )  # fmt: skip


async def test_an_agent_tells_what_it_mended(small: Small, tmp_path: Path) -> None:
    desk = desk_of(small, tmp_path)
    await desk.poll(READY.name, PollIn(phase="serving", munge_ok=True, notices=(WORDS,)), 0.0)
    event = small.journal.events(-1, 1, READY.name)[0]
    assert (event.kind, event.text) == ("login", WORDS)


async def test_a_problem_of_a_ready_node_shows_until_it_is_over(small: Small, tmp_path: Path) -> None:
    desk = desk_of(small, tmp_path)
    await desk.poll(READY.name, PollIn(phase="serving", munge_ok=True, problem="not connected: invalid key"), 0.0)
    (told,) = problems.of_machines([small.get(READY.name)], {}, NOW)
    assert (told.severity, told.machine) == ("warning", READY.name)
    assert "not connected: invalid key" in told.text
    await desk.poll(READY.name, PollIn(phase="serving", munge_ok=True), 0.0)
    assert list(problems.of_machines([small.get(READY.name)], {}, NOW)) == []
    assert small.journal.events(machine=READY.name)[-1].text == "is over: not connected: invalid key"
    count = len(small.journal.events())
    await desk.poll(READY.name, PollIn(phase="serving", munge_ok=True), 0.0)
    assert len(small.journal.events()) == count


def seen(offline_s: float, *states: str, healthy: bool = True) -> Snapshot:
    away = replace(peer(READY), online=False, last_seen=ago(offline_s))
    return around(
        READY, tailnet=Fresh(tailnet(away, healthy=healthy), NOW), slurm=Fresh(slurm(node(READY, *states)), NOW)
    )


def test_a_node_that_control_does_not_see_is_told() -> None:
    assert list(problems.of_logins([READY], seen(60), NOW)) == []
    (told,) = problems.of_logins([READY], seen(1800, "MIXED"), NOW)
    assert (told.severity, told.machine, told.since) == ("warning", READY.name, ago(1800))
    assert "for 30 min; its slurmd answers, so it is kept" in told.text
    (told,) = problems.of_logins([READY], seen(1800, "DOWN", "NOT_RESPONDING"), NOW)
    assert "it is kept while jobs may run" in told.text


def test_it_is_not_told_where_it_is_not_known_or_told_already() -> None:
    assert list(problems.of_logins([READY], seen(1800, healthy=False), NOW)) == []
    assert list(problems.of_logins([READY], around(READY, tailnet=GONE_DARK), NOW)) == []
    assert list(problems.of_logins([READY], around(READY), NOW)) == []
    assert list(problems.of_logins([replace(READY, problem="its agent's words")], seen(1800), NOW)) == []
    assert list(problems.of_logins([replace(READY, phase=Phase.DRAINING)], seen(1800), NOW)) == []
