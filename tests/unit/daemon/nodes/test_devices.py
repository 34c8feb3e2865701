"""A machine that comes back with another device keeps its slot; a copy of a machine is refused, and both are named."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from meshd.codes import JoinCode, ProblemCode
from meshd.daemon.agents import AgentQueues
from meshd.daemon.machines.node_steps import NodeSteps
from meshd.daemon.nodes import problems
from meshd.daemon.nodes.devices import CHANGES, DAY_S, FORMER_MAX, SHOWN_FOR, MachineDevices
from meshd.errors import JoinRefused, NotNow, TailnetError
from meshd.model.ids import MachineName, SlotName
from meshd.model.machine import Machine, Phase
from meshd.model.observed import Fresh, Observation, TailnetPeer, TailnetView
from meshd.store.join_tokens import JoinTokens
from tests.live import live_settings
from tests.node_room import node_parts
from tests.sources import Given
from tests.unit.daemon.small import Small
from tests.unit.worlds import FACTS, GONE_DARK, NOW, ago, machine, peer, tailnet

M = machine(Phase.READY, tailnet_id="n-1", device_gone_since=ago(20))
OTHER = replace(
    machine(Phase.READY), name=MachineName("lab-h100-2-zzzzzz"), slot=SlotName("h100-2"), instance_id="i-other",
    tailnet_ip="100.64.0.99", tailnet_id="n-2",
)  # fmt: skip
NEW = replace(peer(M), id="n-7", tailnet_ip="100.64.0.77")


class Api:
    """The tailnet's API: gives addresses, or may not."""

    def __init__(self, refuses: str = "") -> None:
        self.refuses = refuses
        self.given: list[tuple[str, str]] = []

    async def set_address(self, device_id: str, tailnet_ip: str) -> None:
        if self.refuses:
            raise TailnetError(self.refuses)
        self.given.append((device_id, tailnet_ip))


class House:
    """The records, and a tailnet that shows what a test wants."""

    def __init__(self, root: Path, api: Api | None = None) -> None:
        self.small = Small(root, M, OTHER)
        self.seen: Observation[TailnetView] = Fresh(tailnet(NEW, peer(OTHER)), NOW)
        self.tailnet = Given(lambda: self.seen)
        self.devices = MachineDevices(self.small.machine_store, self.tailnet, api)

    def get(self) -> Machine:
        return self.small.get(M.name)

    def events(self, kind: str) -> list[str]:
        return [event.text for event in self.small.journal.events(machine=M.name) if event.kind == kind]


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    found = House(tmp_path)
    yield found
    found.small.journal.close()


async def test_a_machine_that_comes_back_with_another_device_keeps_its_slot(house: House) -> None:
    await house.devices.take(M.name, NEW)
    record = house.get()
    assert (record.tailnet_ip, record.tailnet_id, record.phase, record.slot) == ("100.64.0.77", "n-7", M.phase, M.slot)
    assert record.former_ips == (M.tailnet_ip,)
    assert record.device_gone_since is None
    assert record.line_published
    assert JoinTokens(house.small.journal).device(M.name) == "n-7"
    (told,) = house.events("device")
    assert f"replaced: 100.64.0.77 instead of {M.tailnet_ip} (without an API credential" in told
    assert "scancel" in told
    assert list(problems.devices([record], NOW)) == []


async def test_with_an_api_credential_it_gets_its_address_back(tmp_path: Path) -> None:
    api = Api()
    house = House(tmp_path, api)
    await asyncio.gather(house.devices.take(M.name, NEW), house.devices.take(M.name, NEW))
    assert api.given == [("n-7", M.tailnet_ip)]
    record = house.get()
    assert (record.tailnet_ip, record.tailnet_id, record.former_ips) == (M.tailnet_ip, "n-7", ())
    asked, done = house.events("device")
    assert "is given back to it" in asked, "written down before it is asked for"
    assert done.endswith(f"with its address {M.tailnet_ip}")
    house.small.journal.close()


async def test_an_api_that_refuses_its_address_costs_no_more_than_that(tmp_path: Path) -> None:
    house = House(tmp_path, Api("the address is taken"))
    await house.devices.take(M.name, NEW)
    assert house.get().tailnet_ip == NEW.tailnet_ip
    assert "the address is taken" in house.events("device")[-1]
    house.small.journal.close()


async def test_one_that_comes_with_ever_other_devices_is_not_followed(house: House) -> None:
    for n in range(CHANGES):
        await house.devices.take(M.name, replace(NEW, id=f"n-7{n}", tailnet_ip=f"100.64.1.{n}"))
    with pytest.raises(JoinRefused) as caught:
        await house.devices.take(M.name, replace(NEW, id="n-900", tailnet_ip="100.64.2.1"))
    assert (caught.value.code, caught.value.fatal) == (JoinCode.TOO_MANY_DEVICES, False)
    assert [(told.code, told.machine) for told in house.devices.problems(NOW)] == [
        (ProblemCode.DEVICE_FLAPPING, M.name)
    ]
    house.small.clock.t_s += DAY_S
    await house.devices.take(M.name, replace(NEW, id="n-901", tailnet_ip="100.64.2.2"))
    assert house.get().tailnet_id == "n-901"


async def test_addresses_that_it_had_are_remembered_but_not_for_ever(house: House) -> None:
    for n in range(20):
        await house.devices.take(M.name, replace(NEW, id=f"n-7{n}", tailnet_ip=f"100.64.1.{n}"))
    former = house.get().former_ips
    assert len(former) == FORMER_MAX
    assert former[-1] == "100.64.1.18"


async def test_a_line_that_slurm_does_not_have_yet_is_waited_for_anew(house: House) -> None:
    house.small.journal.put(replace(M, phase=Phase.CONFIGURING), "phase", "configuring", NOW)
    await house.devices.take(M.name, NEW)
    assert not house.get().line_published


@pytest.mark.parametrize("seen", [GONE_DARK, Fresh(tailnet(healthy=False), NOW)])
async def test_where_the_tailnet_is_not_known_nothing_is_taken(house: House, seen: Any) -> None:
    house.seen = seen
    with pytest.raises(NotNow):
        await house.devices.take(M.name, NEW)
    assert house.get() == M


@pytest.mark.parametrize("online", [True, False])
async def test_a_device_that_is_still_there_is_not_replaced(house: House, *, online: bool) -> None:
    house.seen = Fresh(tailnet(replace(peer(M), id="n-1", online=online), NEW), NOW)
    with pytest.raises(JoinRefused) as refused:
        await house.devices.take(M.name, NEW)
    assert (refused.value.code, refused.value.fatal) == (JoinCode.OLD_DEVICE_THERE, False)
    assert house.get() == M
    assert house.devices.problems(NOW) == []


@pytest.mark.parametrize(
    ("caller", "named"),
    [(replace(NEW, hostname="lab-h100-3-cccccc"), "lab-h100-3-cccccc"), (replace(NEW, id="n-2"), OTHER.name)],
)
async def test_a_copy_is_refused_and_told_once(house: House, caller: TailnetPeer, named: str) -> None:
    for _ in range(3):
        with pytest.raises(JoinRefused) as refused:
            await house.devices.take(M.name, caller)
        assert refused.value.code is JoinCode.DEVICE_COPIED
    assert house.get() == M
    assert len(house.events("copy")) == 1
    (told,) = house.devices.problems(NOW)
    assert (told.code, told.severity, told.machine) == (ProblemCode.DEVICE_COPIED, "error", M.name)
    assert named in told.text
    assert house.devices.problems(NOW + SHOWN_FOR) == [], "it has gone"


async def test_a_second_machine_with_a_living_machines_device_may_not_join_and_is_given_back(
    house: House, tmp_path: Path
) -> None:
    second = replace(
        machine(Phase.BOOTING), name=MachineName("lab-h100-4-dddddd"), slot=SlotName("h100-4"), instance_id="i-second",
        tailnet_ip="", tailnet_id="",
    )  # fmt: skip
    machine_store = house.small.machine_store
    house.small.journal.put(second, "phase", "booting", NOW)
    parts = node_parts(
        machine_store, tailnet=house.tailnet,
        node_steps=NodeSteps(machine_store, cast("Any", None), AgentQueues(), None, live_settings()),
    )  # fmt: skip
    service = parts.service
    with pytest.raises(JoinRefused) as refused:
        await service.check_device(second.name, replace(peer(M), id="n-1"))
    given_back = house.small.get(second.name)
    assert given_back.phase is Phase.TERMINATING
    assert refused.value.code is JoinCode.DEVICE_COPIED
    assert M.name in given_back.failure
    (told,) = parts.devices.problems(NOW)
    assert (told.code, told.machine) == (ProblemCode.DEVICE_COPIED, second.name)
    await service.check_device(M.name, replace(peer(M), id="n-1"))
    assert house.get() == M


def test_an_address_of_a_machine_whose_device_was_deleted_is_waited_for(house: House) -> None:
    with pytest.raises(JoinRefused) as refused:
        house.devices.check(OTHER.name, replace(peer(OTHER), tailnet_ip=M.tailnet_ip))
    assert (refused.value.code, refused.value.fatal) == (JoinCode.ADDRESS_TAKEN, False)
    house.small.journal.put(replace(M, left_slurm=True), "left", "out of Slurm", NOW)
    house.devices.check(OTHER.name, replace(peer(OTHER), tailnet_ip=M.tailnet_ip))


# -- what people are told ---------------------------------------------------------------------------------------------


def test_a_deleted_device_is_a_problem_that_grows_with_its_time() -> None:
    (fresh,) = problems.devices([M], NOW)
    assert (fresh.code, fresh.severity) == (ProblemCode.DEVICE_DELETED, "warning")
    assert (fresh.machine, fresh.since) == (M.name, ago(20))
    old = replace(M, device_gone_since=ago(600), public_ip="198.51.100.7")
    (late,) = problems.devices([old], NOW)
    assert late.severity == "error"
    assert f"--hostname={M.name}" in late.cure
    assert "ssh 198.51.100.7" in late.cure
    assert f"meshctl remove {M.name}" in late.cure
    assert list(problems.devices([replace(M, phase=Phase.TERMINATING)], NOW)) == []


def test_one_that_holds_no_key_to_come_back_with_is_an_error_at_once() -> None:
    (told,) = problems.devices([replace(M, own_key=True)], NOW)
    assert (told.code, told.severity, told.machine) == (ProblemCode.DEVICE_DELETED, "error", M.name)
    assert f"--hostname={M.name}" in told.cure
    (told,) = problems.devices([replace(M, own_key=True, spare_key="ab")], NOW)
    assert told.severity == "warning"
    (late,) = problems.devices([replace(M, own_key=True, spare_key="ab", device_gone_since=ago(600))], NOW)
    assert late.severity == "error" and "ssh" not in late.cure


def test_machines_with_one_machine_id_are_named_together() -> None:
    same = replace(FACTS, machine_id="a" * 16)
    one, two = replace(M, device_gone_since=None, facts=same), replace(OTHER, facts=same)
    (told,) = problems.devices([one, two, replace(OTHER, facts=FACTS)], NOW + timedelta(seconds=1))
    assert told.code == ProblemCode.MACHINE_ID_SHARED
    assert M.name in told.text
    assert OTHER.name in told.text
