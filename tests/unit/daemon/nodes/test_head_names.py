"""The nodes' names on the head are asked for when they lack, not again and again, and the doctor tells."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from meshd.codes import ProblemCode
from meshd.config import Settings, SlurmSettings
from meshd.daemon.nodes.roster import AGAIN_S, SERVED_WITHIN_S, HeadNames
from meshd.tailnet.headhosts import REQUEST, serve
from tests.clocks import HandClock
from tests.live import live_settings

BEFORE = "127.0.0.1 localhost\n"
NODES = {"h100-1": "100.64.0.2", "h100-2": "100.64.0.3"}


class Head:
    """A head's /etc/hosts, and the unit that writes it when it is let."""

    def __init__(self, root: Path) -> None:
        self.hosts = root / "hosts"
        self.hosts.write_text(BEFORE)
        (root / "meshd.toml").write_text("[pools.h100]\n")
        self.run = root / "run"
        self.run.mkdir()
        self.clock = HandClock()
        self.live = live_settings()
        self.lookups: list[str] = []
        self.lookup_s = 0.0
        self.names = HeadNames(self.run, self.live, self.clock, self.hosts, self._look_up)

    def _look_up(self, address: str) -> str:
        self.lookups.append(address)
        time.sleep(self.lookup_s)
        return address

    @property
    def asked(self) -> bool:
        return (self.run / REQUEST).exists()

    def serve(self) -> None:
        serve(self.run / REQUEST, self.hosts, self.run.parent / "meshd.toml")


@pytest.fixture
def head(tmp_path: Path) -> Head:
    return Head(tmp_path)


def test_names_are_asked_for_once_and_follow_the_nodes(head: Head) -> None:
    head.names.keep({})
    assert not head.asked
    head.names.keep(NODES)
    assert head.asked
    head.serve()
    assert "100.64.0.3\th100-2\n" in head.hosts.read_text()
    head.names.keep(NODES)
    assert not head.asked
    head.names.keep({"h100-1": "100.64.0.2"})
    head.serve()
    assert "h100-2" not in head.hosts.read_text()
    head.live.settings = Settings(slurm=SlurmSettings(head_hosts=False))
    head.names.keep(NODES)
    head.serve()
    assert head.hosts.read_text() == BEFORE


def test_a_file_that_somebody_wrote_anew_is_mended(head: Head) -> None:
    head.names.keep(NODES)
    head.serve()
    head.names.keep(NODES)
    head.hosts.write_text(BEFORE + "10.0.0.1 new\n")
    head.names.keep(NODES)
    assert head.asked


def test_what_can_never_be_put_is_not_asked_for(head: Head) -> None:
    head.names.keep({"Not.A.Slot": "100.64.0.2", "h100-1": "10.0.0.1", "localhost": "100.64.0.4"})
    assert not head.asked


async def test_a_unit_that_does_not_serve_is_asked_again_and_told_of(head: Head) -> None:
    head.names.keep(NODES)
    request = head.run / REQUEST
    request.unlink()  # taken, and refused
    assert (await head.names.check("")).status == "ok", "it may still come"
    head.clock.t_s = SERVED_WITHIN_S + 1
    head.names.keep(NODES)
    assert not head.asked
    row = await head.names.check("")
    assert (row.status, row.code) == ("warn", ProblemCode.HEAD_NAMES_NOT_KEPT)
    head.clock.t_s = AGAIN_S + 1
    head.names.keep(NODES)
    head.serve()
    head.names.keep(NODES)
    row = await head.names.check("")
    assert (row.status, row.text) == ("ok", f"2 in {head.hosts}")


async def test_a_file_that_is_not_there_is_told(head: Head) -> None:
    head.hosts.unlink()
    head.names.keep(NODES)
    row = await head.names.check("")
    assert (row.status, row.code) == ("warn", ProblemCode.HEAD_NAMES_NOT_KEPT)


async def test_slow_name_servers_are_told(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    head.names.keep(NODES)
    head.serve()
    head.names.keep(NODES)
    monkeypatch.setattr("meshd.daemon.nodes.roster.SLOW_S", 60.0)
    assert (await head.names.check("100.64.0.1")).status == "ok"
    assert head.lookups == ["100.64.0.1", "100.64.0.2"]
    monkeypatch.setattr("meshd.daemon.nodes.roster.SLOW_S", 0.05)
    head.lookup_s = 0.06
    row = await head.names.check("100.64.0.1")
    assert (row.status, row.code) == ("warn", ProblemCode.HEAD_NAMES_SLOW)
    assert "100.64.0.1" in row.cure
    head.live.settings = Settings(slurm=SlurmSettings(head_hosts=False))
    head.lookup_s = 0.0
    head.names.keep(NODES)
    head.serve()
    head.names.keep(NODES)
    assert (await head.names.check("")).status == "ok"
