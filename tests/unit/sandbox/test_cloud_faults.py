"""The fault engine and the ledger."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from deploy.sandbox.clouds.host import BootDefaults, Host
from deploy.sandbox.clouds.ledger import End, Ledger, Life, NewMachine, Rules
from deploy.sandbox.hypervisor import HollowHypervisor, MachineSpec
from meshd.contract.faults import CallFaults, CloudFault, FaultEngine, FaultKind, When


def test_next_hits_as_often_as_said() -> None:
    engine = FaultEngine()
    engine.inject(CloudFault(FaultKind.QUOTA, "launch", times=2))
    kinds = [engine.take(op).answer is not None for op in ("list", "launch", "launch", "launch")]
    assert kinds == [False, True, True, False]


def test_one_answer_per_call_but_any_number_of_lifecycle_faults() -> None:
    engine = FaultEngine()
    for kind in (
        FaultKind.QUOTA,
        FaultKind.NO_CAPACITY,
        FaultKind.NEVER_BOOTS,
        FaultKind.LIST_LAG,
        FaultKind.UNKNOWN_FIELDS,
    ):
        engine.inject(CloudFault(kind))
    hit = engine.take("launch")
    assert hit.answer is not None and hit.answer.kind is FaultKind.QUOTA
    assert {fault.kind for fault in hit.lifecycle} == {FaultKind.NEVER_BOOTS, FaultKind.LIST_LAG}
    assert hit.content == {FaultKind.UNKNOWN_FIELDS}
    assert [fault.kind for fault in engine.pending()] == [FaultKind.NO_CAPACITY]


def test_chance_repeats_with_the_seed() -> None:
    def run(seed: int) -> list[bool]:
        engine = FaultEngine(seed)
        engine.inject(CloudFault(FaultKind.QUOTA, when=When.RANDOM, probability=0.5))
        return [engine.take("launch").answer is not None for _ in range(40)]

    assert run(1) == run(1) != run(2)
    assert 5 < sum(run(1)) < 35


class Time:
    def __init__(self) -> None:
        self.at = datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self.at

    def advance(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)


def birth(machine_id: str = "id-00000001", token: str = "lab-1") -> NewMachine:
    return NewMachine(machine_id, token, "r", "ra", "type", 8, "NVIDIA H100 80GB HBM3", 3.6, "#!/bin/sh")


class Recording(HollowHypervisor):
    def __init__(self) -> None:
        super().__init__()
        self.specs: list[MachineSpec] = []

    async def boot(self, spec: MachineSpec) -> str:
        self.specs.append(spec)
        if spec.image == "broken":
            raise RuntimeError("no such image")
        return await super().boot(spec)


async def test_life_and_cost() -> None:
    time, hypervisor = Time(), Recording()
    host = Host(hypervisor)
    ledger = Ledger("aws", host, time.now, Rules(boot_s=10, end_s=5, keep_s=100, ends_itself=True))
    machine = ledger.add(birth(), CallFaults())
    await host.settle()

    def life() -> Life:
        ledger.observe()
        return machine.life

    assert life() is Life.PENDING
    time.advance(10)
    assert life() is Life.RUNNING
    time.advance(990)
    ledger.ask_end(machine.id)
    assert life() is Life.ENDING
    time.advance(50)
    found = ledger.find(machine.id)
    assert found is not None and found.life is Life.ENDED
    assert found.cost_usd(time.now()) == pytest.approx(1005 / 1000)
    time.advance(100)
    assert ledger.find(machine.id) is None
    assert ledger.listed() == []
    assert ledger.everything() == [machine]


async def test_boot_defaults_and_names() -> None:
    time, hypervisor = Time(), Recording()
    host = Host(hypervisor)
    host.boot_defaults = BootDefaults("bookworm", 600, 99)
    ledger = Ledger("aws", host, time.now, Rules())
    ledger.add(birth("id-00000001"), CallFaults())
    ledger.add(birth("id-00000002"), CallFaults())
    await host.settle()
    assert [spec.name for spec in hypervisor.specs] == ["lab-1", "lab-1-00000002"]
    assert (hypervisor.specs[0].image, hypervisor.specs[0].clock_offset_s, hypervisor.specs[0].missing_gpus) == (
        "bookworm",
        600,
        8,
    )


async def test_failed_boot_ends_the_machine() -> None:
    time, hypervisor = Time(), Recording()
    host = Host(hypervisor)
    host.boot_defaults = BootDefaults("broken")
    ledger = Ledger("aws", host, time.now, Rules())
    machine = ledger.add(birth(), CallFaults())
    await host.settle()
    assert (machine.life, machine.end) == (Life.ENDED, End.BOOT_FAILED)


@pytest.mark.parametrize("ends_itself", [True, False])
async def test_power_off(ends_itself: bool) -> None:
    time, hypervisor = Time(), Recording()
    host = Host(hypervisor)
    ledger = Ledger("x", host, time.now, Rules(ends_itself=ends_itself))
    machine = ledger.add(birth(), CallFaults())
    await host.settle()
    ledger.observe()
    await hypervisor.destroy(machine.name)
    ledger.observe()
    assert machine.powered_off
    assert (machine.life is Life.ENDED) is ends_itself
