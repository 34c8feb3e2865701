"""What nodes report of the head's accounts: events, problems, the row of doctor."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from meshd.api.node_schema import FaultIn, PollIn, SectionIn
from meshd.codes import EventKind, ProblemCode
from meshd.daemon.nodes.account_problems import check, problems
from meshd.daemon.nodes.service import NodeService
from meshd.daemon.observe.agent_reports import NodeReports
from meshd.model.machine import Phase
from meshd.model.node_settings import SectionState
from tests.node_room import node_parts
from tests.unit.daemon.small import Small
from tests.unit.daemon.standins import MungeKey
from tests.unit.worlds import machine

READY = machine(Phase.READY)
CLASH = FaultIn(section="accounts", code="account_clash", detail="1000 belongs to ubuntu")
LEFT_OUT = FaultIn(section="accounts", code="account_left_out", detail="group lab")
MOVED = FaultIn(section="accounts", code="account_moved", detail="ubuntu has 59999 now")


class Room:
    """A READY node, and what its agent says."""

    def __init__(self, path: Path) -> None:
        self.small = Small(path, READY)
        self.reports = NodeReports(self.small.machine_store.node_event)
        self.service: NodeService = node_parts(
            self.small.machine_store, munge_key=cast("Any", MungeKey()), reports=self.reports
        ).service

    async def says(self, *faults: FaultIn, state: SectionState = SectionState.APPLIED) -> None:
        sections = {"accounts": SectionIn(digest="a" * 16, state=state, detail="words")}
        await self.service.poll(
            READY.name, PollIn(phase="serving", munge_ok=True, sections=sections, faults=faults), 0.0
        )

    def codes(self) -> list[str]:
        return [one.code for one in problems([self.small.get(READY.name)], self.reports.current)]

    def row(self) -> tuple[str, str]:
        row = check([self.small.get(READY.name)], self.reports.current)
        return row.status, row.code

    def told(self) -> list[str]:
        return [one.text for one in self.small.journal.events() if one.kind == EventKind.ACCOUNTS]


@pytest.fixture
async def room(tmp_path: Path) -> AsyncIterator[Room]:
    made = Room(tmp_path)
    yield made
    await made.small.executor.aclose(1)
    made.small.journal.close()


async def test_all_is_well(room: Room) -> None:
    await room.says()
    assert room.codes() == [] and room.row() == ("ok", "") and room.told() == []


async def test_each_thing_is_one_event(room: Room) -> None:
    await room.says()
    await room.says(MOVED)
    await room.says(MOVED, LEFT_OUT)
    await room.says(LEFT_OUT)
    await room.says()
    assert room.told() == [MOVED.detail, LEFT_OUT.detail]


async def test_a_restarted_meshd_does_not_tell_it_again(room: Room) -> None:
    await room.says(MOVED)
    assert room.told() == []


async def test_problems_and_doctor(room: Room) -> None:
    await room.says(LEFT_OUT)
    assert room.codes() == [ProblemCode.ACCOUNT_LEFT_OUT]
    assert room.row() == ("warn", ProblemCode.ACCOUNT_LEFT_OUT)
    await room.says(CLASH, state=SectionState.FAILED)
    assert room.codes() == [], "the node is unfit, which is the problem"
    assert room.row() == ("warn", ProblemCode.ACCOUNT_CLASH)
    await room.says(state=SectionState.FAILED)
    assert room.row() == ("warn", ProblemCode.ACCOUNT_LEFT_OUT)


@pytest.mark.parametrize("code", ["shell_missing", "ssh_not_adopted"])
async def test_what_keeps_nothing_off(room: Room, code: str) -> None:
    await room.says(FaultIn(section="accounts", code=code, detail="words"))
    assert room.codes() == [code]
    assert room.row() == ("ok", "")


async def test_faults_of_other_sections_and_unknown_ones(room: Room) -> None:
    await room.says(
        FaultIn(section="shares", code="account_left_out"), FaultIn(section="accounts", code="something_new")
    )
    assert room.codes() == [] and room.row() == ("ok", "")
