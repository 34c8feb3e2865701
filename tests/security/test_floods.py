"""A machine that talks without a pause pushes out nothing, fills no disk and costs its neighbours nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshd.api.node_schema import PollIn, ResultIn
from meshd.daemon.agents import AgentQueues
from meshd.daemon.machine_store import BURST, SUMMED_EVERY_S
from meshd.daemon.nodes.devices import COPIES_MAX, MachineDevices
from meshd.daemon.nodes.service import HeadFacts
from meshd.errors import JoinRefused
from meshd.model.desired import Target
from meshd.model.machine import Phase
from meshd.model.observed import TailnetPeer
from meshd.store import database
from meshd.store.events import Origin
from meshd.store.journal import Journal
from tests.node_room import node_parts
from tests.sources import fresh
from tests.unit.daemon.small import Small
from tests.unit.worlds import FACTS, NOW, machine, tailnet

HEAD = HeadFacts("lab", "127.0.0.1:6817", 1, 1, 2, 2, (), 25.0)


class MungeKey:
    """No rotation is under way; what it hears is kept."""

    def __init__(self) -> None:
        self.results: list[ResultIn] = []

    def note_report(self, _machine: str, report: PollIn) -> None:
        self.results += report.results


class House:
    """The node API with a real journal and one machine."""

    def __init__(self, root: Path) -> None:
        self.one = machine(Phase.READY, facts=FACTS, tailnet_id="n-1")
        self.small = Small(root, self.one)
        self.queues, self.munge_key = AgentQueues(), MungeKey()
        self.small.journal.event(NOW, "drain", "drained by alice")
        munge_key: Any = self.munge_key
        self.service = node_parts(self.small.machine_store, agents=self.queues, munge_key=munge_key).service

    def kinds(self) -> Counter[str]:
        return Counter(event.kind for event in self.small.journal.events(limit=100_000))


@pytest.fixture
def house(tmp_path: Path) -> Any:
    made = House(tmp_path)
    yield made
    made.small.journal.close()


async def test_events_of_one_machine_have_a_budget_and_the_rest_is_summed_up(house: House) -> None:
    for number in range(500):
        report = PollIn(problem=f"p{number}", notices=("x" * 500,) * 16, auth_key_sha256=f"{number:064x}")
        await house.service.poll(house.one.name, report, 0.0)
        house.small.clock.t_s += 0.01
    kinds = house.kinds()
    assert sum(kinds[kind] for kind in ("problem", "login", "auth_key")) <= BURST + 1
    assert kinds["flood"] == 1
    assert kinds["drain"] == 1
    record = house.small.machine_store.get(house.one.name)
    assert record.problem == "p499", "what a node says is in force all the same"
    assert [p.machine for p in house.small.machine_store.node_events.problems({house.one.name})] == [house.one.name]
    house.small.clock.t_s += SUMMED_EVERY_S + 1
    await house.service.poll(house.one.name, PollIn(problem="later"), 0.0)
    assert house.kinds()["flood"] == 2
    assert list(house.small.machine_store.node_events.problems({house.one.name})) == []


async def test_a_machine_that_is_well_is_not_counted_with_another(house: House) -> None:
    other = machine(Phase.READY, index=2, facts=FACTS, tailnet_id="n-2")
    house.small.journal.put(other, "phase", "given", NOW)
    for number in range(200):
        await house.service.poll(house.one.name, PollIn(problem=f"p{number}"), 0.0)
    before = house.kinds()["problem"]
    await house.service.poll(other.name, PollIn(problem="the disk is full"), 0.0)
    assert house.kinds()["problem"] == before + 1


async def test_results_reach_readers_only_when_they_end_a_command(house: House) -> None:
    poison = {"stopped_unix": 1.0, "started_unix": 2.0}
    await house.service.poll(house.one.name, PollIn(results=(ResultIn(id="zz", ok=True, data=poison),)), 0.0)
    assert house.munge_key.results == []
    command_id = house.queues.of(house.one.name).put("munge_key", {"action": "switch"})
    await house.service.poll(house.one.name, PollIn(results=(ResultIn(id=command_id, ok=True, data=poison),)), 0.0)
    assert [result.data for result in house.munge_key.results] == [poison]


def test_a_node_pushes_out_no_event_of_people_or_of_meshd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "NODE_EVENTS_KEPT", 30)
    monkeypatch.setattr(database, "EVENTS_KEPT", 50)
    monkeypatch.setattr(database, "PRUNED_EVERY", 10)
    journal = Journal(tmp_path / "j.db")
    journal.set_target(Target("h100", 2), "two, said alice", NOW)
    journal.event(NOW, "munge_key", "the munge key was rotated")
    journal.event(NOW, "phase", "a machine is ready")
    for number in range(500):
        journal.event(NOW, "login", f"{number}", "m", origin=Origin.NODE)
    kinds = Counter(event.kind for event in journal.events(limit=1000))
    assert kinds["target"] == kinds["munge_key"] == kinds["phase"] == 1
    assert 30 <= kinds["login"] <= 40
    for number in range(500):
        journal.event(NOW, "block", f"{number}")
    kinds = Counter(event.kind for event in journal.events(limit=1000))
    assert kinds["target"] == kinds["munge_key"] == 1
    assert 50 <= kinds["block"] <= 60
    journal.close()


def test_long_and_unprintable_words_are_bounded_in_the_journal(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.db")
    words = "a\x1b[31m\x9b\ud800" + "x" * 100_000
    journal.event(NOW, "login", words, "m", origin=Origin.NODE, words=words)
    kept = journal.put(machine(Phase.READY, problem=words, vendor_words=words), "problem", words, NOW)
    assert len(kept.problem) <= 2000 and kept.problem.isprintable()
    for event in journal.events(limit=10):
        assert len(event.text) <= 2000 and event.text.isprintable()
        assert len(str(event.fields)) <= 8000
    journal.close()
    again = Journal(tmp_path / "j.db")
    assert again.machine(kept.name) == kept
    again.close()


def test_copies_with_ever_new_names_are_bounded(house: House) -> None:
    peer = TailnetPeer("n-9", "x", "100.64.0.9", True)
    devices = MachineDevices(house.small.machine_store, fresh(lambda: tailnet(peer)), None)
    for number in range(COPIES_MAX * 2):
        devices._note(
            house.one.name,
            replace(peer, hostname=f"h{number}"),
            JoinRefused("it is a copy", "make it anew", fatal=True),
        )
    assert len(devices._copies) == COPIES_MAX
    assert house.kinds()["copy"] <= BURST
