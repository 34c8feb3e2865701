"""Owned machines between their polls: held answers, who comes and goes, wake, and the way out."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from meshd.api.host_schema import HostPollAnswer, HostPollIn
from meshd.codes import ProblemCode
from meshd.daemon.hosts.provider import WAKE_S
from meshd.daemon.hosts.wake import Waker, magic_packet
from meshd.daemon.hosts.wiring import open_invitations
from meshd.daemon.machine_store import MachineStore
from meshd.errors import TailnetError
from meshd.model.desired import Desired, Pool
from meshd.model.host import Host, HostOrder, HostState
from meshd.model.ids import MachineName
from meshd.model.machine import Phase
from meshd.model.observed import Fresh, TailnetPeer
from meshd.plan.hosts import offer_of
from meshd.runtime.run import run
from meshd.store.hosts import Hosts
from meshd.store.journal import Journal
from meshd.tailnet.rotation_fleet import fleet_of
from meshd.tailnet.spare_keys import may_hold
from tests.clocks import SimClock
from tests.host_room import Deleted, Woken, host_parts
from tests.unit.worlds import NOW, host, machine, peer, slurm, tailnet

PEER = TailnetPeer("n-pc-1", "laptop", "100.64.0.9", online=True)
POOL = Pool("h100", "h100", 1, 8, ("static",))


class Room:
    """The parts around a journal on disk."""

    def __init__(self, path: Path, **given: Any) -> None:
        self.clock = SimClock(NOW)
        self.journal = Journal(path)
        self.planned = 0
        self.store = MachineStore(self.journal, self.clock, lambda: None)
        self.hosts = Hosts(self.journal)
        self.woken, self.api = Woken(), Deleted()
        ports = {"devices": self.api, "desired": lambda: Desired("lab", {"h100": POOL}, {}), **given}
        self.parts = host_parts(self.store, self.hosts, wake_host=self.woken, changed=self._plan, **ports)

    def _plan(self) -> None:
        self.planned += 1

    def put(self, one: Host) -> Host:
        return self.hosts.put(one, "given", self.clock.now())

    def find(self, name: str = "pc-1") -> Host:
        found = self.hosts.find(name)
        assert found is not None
        return found

    async def poll(self, hold_s: float = 0.0, **report: Any) -> HostPollAnswer:
        body = HostPollIn.model_validate({"state": "free", **report})
        return await self.parts.service.poll("pc-1", PEER, body, hold_s)

    async def look(self, later_s: float = 0.0) -> None:
        self.clock.t_s += later_s
        await self.parts.controller.reconcile()

    def texts(self) -> list[str]:
        return [event.text for event in self.journal.events(limit=100) if event.kind == "host"]


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    made = Room(tmp_path / "j.db")
    yield made
    made.journal.close()


# -- polls ------------------------------------------------------------------------------------------------------------


async def test_a_poll_is_held_until_the_order_changes(room: Room) -> None:
    room.put(host(1))
    poll = asyncio.create_task(room.poll(25.0, order="free"))
    await asyncio.sleep(0.01)
    assert not poll.done()
    room.hosts.change("pc-1", "assigned", NOW, machine="lab-h100-1-abcdef")
    answer = await asyncio.wait_for(poll, 5)
    assert (answer.order, answer.machine) == (HostOrder.NODE, "lab-h100-1-abcdef")
    assert answer.join is not None and answer.join.heads == ("100.64.0.1",)


async def test_a_poll_that_follows_another_order_is_answered_at_once(room: Room) -> None:
    room.put(host(1, machine="lab-h100-1-abcdef"))
    for report in ({}, {"order": "free"}, {"order": "evict"}, {"order": "node", "machine": "lab-h100-1-another"}):
        assert (await asyncio.wait_for(room.poll(25.0, **report), 5)).order is HostOrder.NODE
    same = {"state": "node", "order": "node", "machine": "lab-h100-1-abcdef"}
    held = asyncio.create_task(room.poll(25.0, **same))
    await asyncio.sleep(0.01)
    assert not held.done()
    room.clock.t_s += 26
    room.hosts.note(replace(room.find(), problem="x"))
    assert (await asyncio.wait_for(held, 5)).order is HostOrder.NODE, "its time is over"


async def test_a_newer_poll_ends_the_one_before(room: Room) -> None:
    room.put(host(1))
    first = asyncio.create_task(room.poll(25.0, order="free"))
    await asyncio.sleep(0.01)
    second = asyncio.create_task(room.poll(25.0, order="free"))
    await asyncio.wait_for(first, 5)
    assert not second.done()
    second.cancel()


async def test_what_a_host_says_of_itself_costs_no_write_each_time(room: Room) -> None:
    room.put(host(1))
    before = room.journal.last_event_id()
    for _ in range(50):
        await room.poll(state="leaving")
    assert room.journal.last_event_id() == before
    assert (room.find().state, room.find().tailnet_ip) == (HostState.LEAVING, "100.64.0.9")
    for number in range(50):
        await room.poll(problem=f"apt fails {number}")
    assert room.journal.last_event_id() <= before + 10, "a host cannot fill the journal"
    assert room.find().problem == "apt fails 49"


async def test_only_news_of_a_host_is_planned_with(room: Room) -> None:
    room.put(host(1))
    await room.poll()
    before = room.planned
    for _ in range(10):
        room.clock.t_s += 25
        await room.poll()
    assert room.planned == before
    await room.poll(state="leaving")
    assert room.planned > before


async def test_a_host_that_wakes_by_itself_stays_awake(room: Room) -> None:
    room.put(host(1, sleeps=True, sleeping_since=NOW))
    answer = await room.poll(order="free")
    assert (answer.order, answer.sleep_command) == (HostOrder.SLEEP, ("systemctl", "suspend"))
    assert (await room.poll(order="sleep")).order is HostOrder.SLEEP
    assert (await room.poll()).order is HostOrder.FREE, "a poll without an order: it is back"
    assert room.find().sleeping_since is None


# -- who comes and goes -----------------------------------------------------------------------------------------------


async def test_who_goes_and_comes_back_is_an_event_once(room: Room) -> None:
    room.put(host(1))
    await room.look()
    planned = room.planned
    for _ in range(5):
        await room.look(61)
    assert room.planned > planned, "its silence is news to the plan"
    await room.poll()
    await room.look()
    await room.look(5)
    assert room.texts()[1:] == ["pc-1: it is away", "pc-1: it is back"]


async def test_a_host_that_is_awaited_is_woken_again_for_a_while(room: Room) -> None:
    room.put(host(1, sleeps=True, there=False, machine="m", woken_at=NOW))
    for _ in range(30):
        await room.look(30)
    assert 5 <= len(room.woken.names) <= WAKE_S / 60
    quiet = len(room.woken.names)
    await room.look(3600)
    assert len(room.woken.names) == quiet


async def test_invitations_that_nobody_redeems_are_forgotten(room: Room) -> None:
    room.put(host(1, enrolled_at=None, expires_at=NOW + timedelta(hours=1), auth_key=True))
    assert len(open_invitations(room.hosts, room.store)) == 1
    await room.look(3601)
    assert open_invitations(room.hosts, room.store) == frozenset(), "its auth key is revoked"
    assert room.hosts.find("pc-1") is not None, "who uses it is told that it has expired"
    await room.look(86400)
    assert room.hosts.find("pc-1") is None


async def test_the_device_of_an_evicted_host_is_deleted_even_if_that_takes_a_while(tmp_path: Path) -> None:
    class Away(Deleted):
        down = True

        async def delete_device(self, device_id: str) -> None:
            if self.down:
                raise TailnetError("no answer")
            await super().delete_device(device_id)

    api = Away()
    room = Room(tmp_path / "j.db", devices=api)
    room.put(host(1, evict=True, evicted_at=NOW, ours=True))
    await room.look(60)
    assert room.hosts.find("pc-1") is not None
    api.down = False
    await room.look(5)
    assert (api.ids, room.hosts.find("pc-1")) == (["n-pc-1"], None)
    room.put(host(2, evict=True, evicted_at=room.clock.now(), ours=True))
    api.down = True
    await room.look(3601)
    assert room.hosts.find("pc-2") is None
    assert "delete its tailnet device by hand: no answer" in room.texts()[-1]
    room.journal.close()


def test_what_keeps_a_host_from_its_place_is_a_problem(room: Room) -> None:
    room.put(host(1, problem="apt is busy"))
    room.put(host(2, pool="gone"))
    room.put(host(3, facts=None, enrolled_at=None))
    room.put(host(4))
    found = list(room.parts.controller.problems())
    assert {one.code for one in found} == {ProblemCode.HOST_STUCK}
    assert [one.text for one in found] == ["pc-1: apt is busy", "pc-2: there is no pool gone any more"]


def test_hosts_are_in_the_journal(tmp_path: Path) -> None:
    first = Room(tmp_path / "j.db")
    one = first.put(host(1, machine="m", sleep_command=("a b", "c")))
    first.journal.close()
    again = Journal(tmp_path / "j.db")
    assert Hosts(again).all() == (one,)
    again.close()


def test_a_lost_journal_does_not_cut_hosts_off(tmp_path: Path) -> None:
    """They would take meshd off themselves."""
    copy, clock = tmp_path / "hosts.json", SimClock(NOW)
    first = Journal(tmp_path / "j.db")
    hosts = Hosts(first, copy)
    one, other = hosts.put(host(1, machine="m"), "given", NOW), hosts.put(host(2), "given", NOW)
    hosts.forget(other.name, "evicted", NOW)
    first.close()
    assert copy.stat().st_mode & 0o777 == 0o600
    lost = Journal(tmp_path / "other.db")
    assert Hosts(lost, copy).restore(clock.now()) == 1
    again = Hosts(lost, copy)
    assert again.all() == (one,)
    assert again.restore(clock.now()) == 0, "the journal has it"
    copy.write_text("[{")
    third = Journal(tmp_path / "third.db")
    assert Hosts(third, copy).restore(clock.now()) == 0
    third.close()
    lost.close()


async def test_new_hardware_of_a_host_is_known(room: Room) -> None:
    room.put(host(1))
    facts = asdict(host(1).facts)  # type: ignore[arg-type]
    before = room.journal.last_event_id()
    await room.poll(facts={**facts, "clock_skew_s": 0.3})
    assert room.journal.last_event_id() == before, "a clock is no hardware"
    await room.poll(facts={**facts, "gpus": facts["gpus"] * 2})
    found = offer_of(room.find())
    assert found is not None and found.gpus == 2


def test_the_device_of_an_owner_takes_part_in_no_rotation_of_auth_keys() -> None:
    """Nor is it given a spare key: it has its owner's login."""
    offer = offer_of(host(1))
    assert offer is not None
    theirs = machine(Phase.READY, provider="static", offer=offer, tailnet_id="n-1")
    ours = replace(theirs, name=MachineName("lab-h100-1-ours22"), own_key=True)
    seen = Fresh(tailnet(peer(theirs), peer(ours)), NOW), Fresh(slurm(), NOW)
    fleet = fleet_of([theirs, ours], *seen, in_use="", now=NOW, silent_s=60, spare_at=lambda _: None)
    assert set(fleet.nodes) == {ours.name}
    assert (may_hold(theirs), may_hold(ours)) == (False, True)


# -- wake -------------------------------------------------------------------------------------------------------------


async def test_a_magic_packet_goes_out() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        link.bind(("127.0.0.1", 0))
        link.settimeout(10)
        await Waker(run, ("127.0.0.1", link.getsockname()[1]))(host(1, sleeps=True))
        packet = link.recv(1024)
    assert packet == magic_packet("3c:ec:ef:00:12:34") == b"\xff" * 6 + bytes.fromhex("3cecef001234") * 16


async def test_a_command_gets_its_words_without_a_shell(tmp_path: Path) -> None:
    made = tmp_path / "words"
    program = "import sys, pathlib; pathlib.Path(sys.argv[1]).write_text(repr(sys.argv[2:]))"
    await Waker(run)(host(1, wake_command=(sys.executable, "-c", program, str(made), "a b", "$(id)", ";")))
    assert made.read_text() == "['a b', '$(id)', ';']"


@pytest.mark.parametrize("words", [("/no/such/program",), ("false",)])
async def test_a_command_that_fails_harms_nothing(words: tuple[str, ...]) -> None:
    await Waker(run)(host(1, wake_command=words))
