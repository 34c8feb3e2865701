"""Spare keys as the daemon gives them: after READY, one at a time, again when one was used, and never a storm."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshd.codes import ProblemCode
from meshd.daemon.auth_key.spare_keys import PROBLEM_AFTER, RETRY_MAX_S
from meshd.daemon.nodes.service import NodeService
from meshd.model.machine import Machine, Phase
from meshd.store.machine_keys import OpenKeys
from meshd.tailnet import spare_keys as s
from meshd.tailnet.rotation import AuthKeyStage, KeyOrigin, begin
from tests.auth_key_room import TAGS, Room, key_ports
from tests.property.rotation_sim import SimTailnet, sha
from tests.property.spare_key_agents import Agents
from tests.unit.worlds import machine


class House:
    """Machines with keys of their own, and what gives them spares."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.net = SimTailnet(rng=SimpleNamespace(randrange=lambda _: 1, random=lambda: 0.5), faults=False)  # type: ignore[arg-type]
        self.agents = Agents(self.net)
        self.away: set[str] = set()
        self.begin()

    def begin(self) -> None:
        """A life of the daemon."""
        room = Room(self.directory, key_ports(self.directory, self.net, self.net.clock), self.agents, self.net.clock)
        self.journal, self.machine_store, self.rotations = room.journal, room.machine_store, room.rotations
        self.keys, self.spares = room.machine_keys, room.spares

    def rotated(self) -> None:
        """A rotation of the keys begins and has ended at once."""
        now = self.net.clock.now()
        rotation = begin(f"r{now:%H%M%S}", KeyOrigin.NONE, now, by="root", reason="asked for", old=None)
        self.rotations.put(replace(rotation, stage=AuthKeyStage.DONE, ended_at=now), now)

    def add(self, phase: Phase = Phase.READY, index: int = 1, **changes: Any) -> Machine:
        one = machine(phase, index=index, **{"own_key": True, "tailnet_id": f"n-{index}", **changes})
        return self.journal.put(one, "phase", "there", self.net.clock.now())

    def change(self, one: Machine, **changes: Any) -> Machine:
        return self.journal.put(
            replace(self.machine_store.get(one.name), **changes), "x", "changed", self.net.clock.now()
        )

    def holds(self, one: Machine) -> str:
        """The id of the key that the machine holds."""
        return self.agents.spare[one.name].split("-")[2]

    @property
    def living(self) -> set[str]:
        return {key.id for key in self.net.keys.values() if key.valid}

    async def ticks(self, count: int = 1, step_s: float = 2.0) -> None:
        for _ in range(count):
            self.net.clock.t_s += step_s
            self.agents_speak()
            await self.keys.reconcile()
            await self.spares.reconcile()

    def agents_speak(self) -> None:
        """Those that can be reached."""
        for one in self.journal.machines():
            if one.name not in self.away:
                self.journal.note(replace(one, heartbeat_at=self.net.clock.now()))


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path)
    yield made
    made.journal.close()


async def test_a_machine_gets_its_spare_when_it_is_ready_and_not_before(house: House) -> None:
    one = house.add(Phase.TESTING)
    others = [house.add(index=2, own_key=False), house.add(index=3, device_gone_since=house.net.clock.now())]
    await house.ticks(3)
    assert not house.net.keys and not house.agents.spare
    house.change(one, phase=Phase.READY)
    await house.ticks(3)
    (key,) = house.net.keys.values()
    assert (key.reusable, key.ephemeral, key.preauthorized, key.tags) == (False, False, True, TAGS)
    assert key.description == f"meshd spare-1 {one.name}"
    assert key.expires == key.created + timedelta(seconds=s.LIFETIME_S)  # type: ignore[operator]
    assert house.holds(one) == key.id and house.machine_store.get(one.name).spare_key == sha(
        house.agents.spare[one.name]
    )
    assert not list(house.directory.glob("*.own.json")), "the head keeps no secret that the node has"
    assert house.spares.count() == (1, 1) and house.keys.unused == 0
    assert not any(other.name in house.agents.spare for other in others)


async def test_a_used_one_is_replaced_and_a_dead_file_too(house: House) -> None:
    one = house.add()
    await house.ticks()
    first = house.holds(one)
    house.agents.device_deleted(one.name)
    house.agents.spare[one.name] = ""
    house.change(one, tailnet_id="n-9", spare_key="")  # as the node's next poll tells
    await house.ticks(2)
    second = house.holds(one)
    assert second != first and house.living == {second}
    house.change(one, tailnet_id="n-10")  # it died before it had removed the used file
    await house.ticks(2)
    assert house.holds(one) not in (first, second) and house.living == {house.holds(one)}


async def test_one_that_lost_its_file_gets_another(house: House) -> None:
    one = house.add()
    await house.ticks()
    first = house.holds(one)
    house.change(one, spare_key="")
    await house.ticks(2)
    assert house.holds(one) != first and house.living == {house.holds(one)}


async def test_one_that_was_used_while_the_device_stayed_is_the_last(house: House) -> None:
    """The machine, or somebody who has the spare, made another device with it."""
    one = house.add()
    other = house.add(index=2)
    await house.ticks()
    first = house.holds(one)
    house.net.keys[first] = replace(house.net.keys[first], valid=False)
    house.change(one, spare_key="")
    minted = len(house.net.keys)
    await house.ticks(200)
    assert len(house.net.keys) == minted
    (told,) = house.spares.problems()
    assert (told.code, told.severity, told.machine) == (ProblemCode.SPARE_KEY_STOPPED, "error", one.name)
    assert "meshctl rotate-key --compromised" in told.cure
    assert house.holds(other) in house.living, "others are served as before"
    house.journal.close()
    house.begin()
    await house.ticks(50)
    assert len(house.net.keys) == minted, "a restart forgets nothing"
    house.rotated()
    house.net.clock.t_s += RETRY_MAX_S
    await house.ticks(3)
    assert house.holds(one) in house.living and not list(house.spares.problems()), "the cure works"


async def test_a_machine_that_says_it_holds_none_gets_so_many_a_day_and_no_more(house: House) -> None:
    one = house.add()
    start = len(house.net.keys)
    for _ in range(s.PER_DAY * 3):
        await house.ticks(2, 60.0)
        house.change(one, spare_key="")
    assert len(house.net.keys) - start == s.PER_DAY
    assert [(told.severity, told.machine) for told in house.spares.problems()] == [("error", one.name)]
    house.net.clock.t_s += 86400.0
    await house.ticks(2)
    assert house.holds(one) in house.living


async def test_it_is_exchanged_in_time_and_the_old_one_lives_until_then(house: House) -> None:
    one = house.add()
    await house.ticks()
    first = house.holds(one)
    house.net.clock.t_s += s.LIFETIME_S - s.EXCHANGE_AHEAD.total_seconds()
    house.net.control_down = True
    await house.ticks()
    assert house.holds(one) == first and house.net.alive(house.agents.spare[one.name])
    house.net.control_down = False
    house.net.clock.t_s += RETRY_MAX_S
    await house.ticks(2)
    assert house.holds(one) != first and house.living == {house.holds(one)}


async def test_it_ends_with_its_machine(house: House) -> None:
    one, other = house.add(index=1), house.add(index=2)
    await house.ticks()
    house.change(one, phase=Phase.DRAINING)
    await house.ticks()
    assert house.living == {house.holds(one), house.holds(other)}, "a job may still be on it"
    house.change(one, phase=Phase.TERMINATING)
    await house.ticks()
    assert house.living == {house.holds(other)}
    house.change(other, phase=Phase.GONE)
    await house.ticks()
    assert not house.living


async def test_an_api_that_is_away_is_asked_ever_more_seldom_and_told_without_alarm(house: House) -> None:
    machines = [house.add(index=index) for index in range(1, 21)]
    asked, ask = 0, house.net._ask

    def counted() -> None:
        nonlocal asked
        asked += 1
        ask()

    house.net._ask = counted  # type: ignore[method-assign]
    house.net.control_down = True
    while asked < PROBLEM_AFTER:
        await house.ticks()
    (told,) = house.spares.problems()
    assert (told.code, told.severity) == (ProblemCode.SPARE_KEYS_NOT_MINTED, "info")
    await house.ticks(1800)
    assert 5 <= asked <= 14, "one machine speaks for all"
    assert all(house.machine_store.get(one.name).phase is Phase.READY for one in machines)
    house.net.control_down = False
    house.net.clock.t_s += RETRY_MAX_S
    await house.ticks(2)
    assert house.spares.count() == (20, 20) and not list(house.spares.problems())


async def test_an_agent_that_does_not_answer_is_told_and_holds_up_no_other(house: House) -> None:
    one, other = house.add(index=1), house.add(index=2)
    ask = house.agents.ask

    async def deaf(machine: str, *rest: Any, **more: Any) -> Any:
        return None if machine == one.name else await ask(machine, *rest, **more)

    house.agents.ask = deaf  # type: ignore[method-assign]
    await house.ticks(60)
    assert house.holds(other) and one.name not in house.agents.spare
    (told,) = house.spares.problems()
    assert (told.code, told.severity, told.machine) == (ProblemCode.SPARE_KEY_NOT_TAKEN, "info", one.name)
    assert len([key for key in house.net.keys.values() if key.valid]) == 2, "the same key is offered again"
    house.agents.ask = ask  # type: ignore[method-assign]
    house.net.clock.t_s += RETRY_MAX_S
    await house.ticks(2)
    assert house.holds(one) and not list(house.spares.problems())
    assert house.living == {house.holds(one), house.holds(other)}


async def test_who_is_out_of_reach_is_given_its_own_when_it_returns(house: House) -> None:
    one = house.add()
    house.away = {one.name}
    house.change(one, heartbeat_at=None)
    await house.ticks(5)
    assert not house.net.keys
    house.away = set()
    await house.ticks()
    assert house.living == {house.holds(one)}


async def test_a_name_that_is_used_anew_while_its_old_key_is_ended_keeps_the_new_record(house: House) -> None:
    """If the new record were lost, the new key would never be revoked."""

    async def exchange() -> None:
        house.net.clock.t_s += 1
        house.rotated()
        house.net.clock.t_s += 1
        await house.spares.reconcile()

    one = house.add()
    await house.ticks()
    await exchange()
    revoke, asked, go = house.net.revoke_key, asyncio.Event(), asyncio.Event()

    async def slow(key_id: str) -> None:
        asked.set()
        await go.wait()
        await revoke(key_id)

    house.net.revoke_key = slow  # type: ignore[method-assign]
    ending = asyncio.create_task(house.keys.reconcile())
    await asked.wait()
    house.net.revoke_key = revoke  # type: ignore[method-assign]
    await exchange()
    go.set()
    await ending
    held = s.held(house.machine_store.get(one.name), OpenKeys(house.journal).spares_of(one.name))
    assert held is not None and held.id == house.holds(one) and held.purpose == s.PURPOSES[0]
    house.change(one, phase=Phase.GONE)
    await house.ticks(2)
    assert not house.living


async def test_after_a_crash_with_the_key_in_hand_the_same_one_is_handed_over(house: House) -> None:
    one = house.add()
    await house.keys.for_spare(one, s.Want(s.PURPOSES[0], "it has none"))
    house.journal.close()
    house.begin()
    await house.ticks()
    assert len(house.net.keys) == 1 and house.living == {house.holds(one)}


async def test_after_the_journal_was_lost_what_it_had_minted_is_found(house: House) -> None:
    one = house.add()
    await house.ticks()
    spare = house.agents.spare[one.name]
    house.journal.close()
    (house.directory / "j.db").unlink()
    house.begin()
    one = house.add(spare_key=sha(spare))
    await house.ticks(90, 4.0)
    assert house.agents.spare[one.name] != spare and house.living == {house.holds(one)}
    assert len(OpenKeys(house.journal).spares_of(one.name)) == 1


async def test_the_nodes_word_decides_what_it_holds(house: House) -> None:
    """One that holds a spare and no other key was born with a key of its own, also when the journal has forgotten."""
    one = house.add(own_key=False)
    service: Any = SimpleNamespace(_machine_store=house.machine_store)
    report: Any = SimpleNamespace(spare_key_sha256="a" * 64, auth_key_sha256="")
    after = NodeService._keeps_spare(service, one, report)
    assert (after.spare_key, after.own_key) == ("a" * 64, True)
    report.spare_key_sha256 = ""
    after = NodeService._keeps_spare(service, after, report)
    assert (after.spare_key, after.own_key) == ("", True)
    assert "no longer keeps a spare auth key" in [event.text for event in house.journal.events(0, 100)][-1]
