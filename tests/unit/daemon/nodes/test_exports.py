"""The head's exports follow the nodes, and the doctor tells what is wrong with the shares."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from meshd.codes import ProblemCode
from meshd.config import ShareSettings
from meshd.daemon.nodes import exports as module
from meshd.daemon.nodes.exports import AGAIN_S, SERVED_WITHIN_S, HeadExports
from meshd.model.machine import Machine, Phase
from meshd.model.node_settings import NodeFault, ReportedSection, SectionState
from meshd.model.observed import AgentReport
from meshd.shares.headexports import REQUEST, Exporter, serve
from tests.clocks import HandClock
from tests.exportfs import Exportfs
from tests.live import live_settings
from tests.unit.daemon.small import Small
from tests.unit.worlds import machine

ONE, TWO = machine(Phase.READY), machine(Phase.READY, index=2)


class Tailnet:
    head_tailnet_ip = ""


class Room(Small):
    """A head whose root's unit serves when a test lets it."""

    def __init__(self, directory: Path, *machines: Machine) -> None:
        super().__init__(directory, *machines)
        self.nfs = Exportfs(directory)
        self.run = directory / "run"
        self.run.mkdir()
        self.settings = directory / "meshd.toml"
        self.data = directory / "data"
        self.data.mkdir()
        self.hand, self.tailnet = HandClock(), Tailnet()
        self.live = live_settings()
        self.exports = HeadExports(
            self.run, self.live, self.journal, self.reports, cast("Any", self.tailnet), self.hand, {"runpod": ""},
            self.nfs.file, self.nfs.etab,
        )  # fmt: skip
        self.share(home="/home")

    def share(self, **paths: str) -> None:
        tables = {name: ShareSettings(path=path) for name, path in paths.items()}
        self.live.settings = self.live.settings.model_copy(update={"share": tables})
        self.settings.write_text("".join(f'[share.{name}]\npath = "{path}"\n' for name, path in paths.items()))

    def asked(self) -> list[str] | None:
        """The addresses of the request that waits; None where none does."""
        request = self.run / REQUEST
        return json.loads(request.read_text())["addresses"] if request.exists() else None

    def serve(self) -> None:
        exporter = Exporter(self.nfs.file, self.nfs.etab, str(self.nfs.program))
        serve(self.run / REQUEST, exporter, self.settings)

    def codes(self) -> list[str]:
        return [one.code for one in self.exports.problems()]

    async def check(self) -> str:
        row = await self.exports.check()
        return row.code or row.status


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path, ONE, TWO)


def pairs(room: Room) -> set[str]:
    return {line.partition("(")[0] for line in room.nfs.in_force()}


def test_each_node_is_exported_each_share_and_asked_for_once(room: Room) -> None:
    room.exports.look()
    assert room.asked() == sorted([ONE.tailnet_ip, TWO.tailnet_ip])
    room.serve()
    assert pairs(room) == {f"/home\t{ONE.tailnet_ip}", f"/home\t{TWO.tailnet_ip}"}
    room.exports.look()
    assert room.asked() is None


@pytest.mark.parametrize("phase", [Phase.REQUESTED, Phase.LAUNCHING, Phase.BOOTING, Phase.TERMINATING, Phase.LOST])
def test_a_machine_that_is_no_node_yet_or_no_more_is_exported_nothing(tmp_path: Path, phase: Phase) -> None:
    room = Room(tmp_path, replace(machine(phase), tailnet_ip="100.64.0.7"))
    room.exports.look()
    assert room.asked() is None


def test_a_pod_and_an_address_outside_of_the_tailnet_are_exported_nothing(tmp_path: Path) -> None:
    facts = ONE.facts
    assert facts is not None
    pod = replace(ONE, facts=replace(facts, systemd=False))
    room = Room(tmp_path, pod, replace(TWO, tailnet_ip="10.0.0.1"))
    room.exports.look()
    assert room.asked() is None


def test_a_new_address_is_exported_and_the_old_one_no_more(room: Room) -> None:
    room.exports.look()
    room.serve()
    room.journal.put(replace(ONE, tailnet_ip="100.64.0.99"), "login", "another address", room.clock.now())
    room.exports.look()
    room.serve()
    assert pairs(room) == {"/home\t100.64.0.99", f"/home\t{TWO.tailnet_ip}"}


def test_shares_come_and_go_with_the_settings(room: Room) -> None:
    room.exports.look()
    room.serve()
    room.share(home="/home", data="/srv/data")
    room.exports.look()
    room.serve()
    assert len(pairs(room)) == 4
    room.share()
    room.exports.look()
    assert room.asked() is not None
    room.serve()
    assert pairs(room) == set()
    room.exports.look()
    assert room.asked() is None


def test_what_somebody_changed_is_asked_for_again(room: Room) -> None:
    room.exports.look()
    room.serve()
    room.exports.look()
    room.nfs.etab.write_text("")
    room.exports.look()
    assert room.asked() is not None


async def test_a_unit_that_does_not_serve_is_asked_again_and_told_of(room: Room) -> None:
    room.exports.look()
    assert (room.codes(), await room.check()) == ([], "ok")
    (room.run / REQUEST).unlink()
    room.exports.look()
    assert room.asked() is None
    room.hand.t_s += max(AGAIN_S, SERVED_WITHIN_S) + 1
    room.exports.look()
    assert room.asked() is not None
    assert room.codes() == [ProblemCode.EXPORTS_NOT_KEPT]
    assert await room.check() == ProblemCode.EXPORTS_NOT_KEPT
    room.serve()
    room.exports.look()
    assert room.codes() == []


async def test_a_server_that_does_not_answer_and_a_missing_directory(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "NFS_PORT", 1)
    room.share(data=str(room.data))
    assert await room.check() == "ok", "without the head's address nothing is known"
    room.tailnet.head_tailnet_ip = "127.0.0.2"
    assert await room.check() == ProblemCode.SHARE_SERVER_DOWN
    room.data.rmdir()
    assert await room.check() == ProblemCode.SHARE_SERVER_DOWN


@pytest.mark.parametrize(("listens", "code"), [("127.0.0.2", "ok"), ("0.0.0.0", ProblemCode.SHARE_SERVER_OPEN)])
async def test_the_server_listens_on_the_tailnet_alone(
    room: Room, monkeypatch: pytest.MonkeyPatch, listens: str, code: str
) -> None:
    async def close(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(close, listens, 0)
    async with server:
        monkeypatch.setattr(module, "NFS_PORT", server.sockets[0].getsockname()[1])
        room.share(data=str(room.data))
        room.tailnet.head_tailnet_ip = "127.0.0.2"
        assert await room.check() == code


async def test_the_doctor_tells_which_nodes_have_lost_their_shares(room: Room) -> None:
    report = AgentReport(room.clock.now())
    section = ReportedSection("0" * 16, SectionState.APPLIED, room.clock.now())
    lost = NodeFault("shares", "share_lost", "/home does not answer", room.clock.now())
    reports = cast("dict[str, Any]", room.reports._reports)
    reports[ONE.name] = replace(report, sections={"shares": section})
    assert await room.check() == "ok"
    reports[ONE.name] = replace(report, sections={"shares": section}, faults=(lost,))
    assert await room.check() == ProblemCode.SHARE_LOST


async def test_a_head_without_shares_is_well(room: Room) -> None:
    room.share()
    room.exports.look()
    assert (room.asked(), room.codes(), await room.check()) == (None, [], "ok")
