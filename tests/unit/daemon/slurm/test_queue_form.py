"""Which form each pool has in Slurm's files, and the addresses of CLOUD nodes in force."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from meshd.config import PoolSettings, ProviderSettings, Settings
from meshd.daemon.slurm.content import FileContent
from meshd.daemon.slurm.held_lines import HeldLines
from meshd.daemon.slurm.node_addrs import NodeAddrs
from meshd.model.desired import Promise
from meshd.model.machine import Phase
from meshd.model.observed import Fresh, Observation, SlurmNode, SlurmView, Unavailable
from meshd.plan.slurm_lines import check
from meshd.runtime.run import Result
from meshd.slurm.apply import Applier
from meshd.slurm.client import SlurmClient
from meshd.slurm.files import SlurmFiles, Texts
from meshd.slurm.nodes import Rendered
from meshd.slurm.read_back import node_records, read_cloud_slots
from meshd.store.journal import Journal
from tests.clocks import HandClock
from tests.live import live_settings
from tests.sources import Given
from tests.unit.daemon.joins import FACTS, GPU
from tests.unit.worlds import NOW, OFFER, machine

GPUS = tuple(replace(GPU, index=i, device=f"/dev/nvidia{i}") for i in range(8))
PROMISE = Promise(6, 30_000, 4)
VIEW = SlurmView("24.11.5", {}, (), power_saving=True)


class World:
    """A pool of the queue with one machine, and one that is scaled by hand."""

    def __init__(self, directory: Path, *, from_queue: bool = True) -> None:
        self.promises: dict[str, Promise] = {}
        settings = Settings(
            pools={
                "h100": PoolSettings(gpu="h100", gpus_per_node=4, max_nodes=3, scale_from_queue=from_queue),
                "cpu": PoolSettings(cpus_min=2, scale_from_queue=False),
            },
            providers={"aws": ProviderSettings()},
        )
        journal = Journal(directory / "journal.db")
        offer = replace(OFFER, gpus=8, vcpus=1000, memory_mib=1 << 30)
        journal.put(machine(Phase.READY, offer=offer, facts=replace(FACTS, gpus=GPUS)), "phase", "ready", NOW)
        client = SlurmClient(Told(), 1.0)
        held = HeldLines(client, HandClock())
        self.content = FileContent(live_settings(settings), journal, held, promises=lambda: self.promises)

    def made(self, view: SlurmView = VIEW, nodes_conf: str = "") -> Rendered:
        made = self.content.make(view, nodes_conf, {})
        assert made is not None
        check(made.nodes_conf, made.gres_conf)
        return made


class Told:
    """A scontrol that takes everything and keeps what it was told."""

    def __init__(self) -> None:
        self.argv: list[str] = []

    async def __call__(self, argv: Sequence[str], **_: Any) -> Result:
        self.argv.append(" ".join(argv))
        return Result(tuple(argv), 0, "", "")


def slots(made: Rendered, pool: str = "h100") -> set[str]:
    return {slot for slot in made.slots if slot.startswith(pool)}


def test_only_slots_of_a_pool_that_the_queue_drives_are_cloud_nodes(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.promises = {"h100": PROMISE}
    made = world.made()
    assert read_cloud_slots(made.nodes_conf) == slots(made) == {"h100-1", "h100-2", "h100-3"}
    records = {record["nodename"]: record for record in node_records(made.nodes_conf)}
    for names in ("h100-1", "h100-[2-3]"):
        shape = {key: records[names][key] for key in ("cpus", "realmemory", "gres")}
        assert shape == {"cpus": "6", "realmemory": "30000", "gres": "gpu:h100:4"}
    assert "NodeName=h100-[1-3] Name=gpu Type=h100 File=/dev/nvidia[0-3]\n" in made.gres_conf


def test_without_power_saving_the_lines_are_as_if_the_queue_did_not_drive_it(tmp_path: Path) -> None:
    for name in ("queue", "hand"):
        (tmp_path / name).mkdir()
    world, by_hand = World(tmp_path / "queue"), World(tmp_path / "hand", from_queue=False)
    world.promises = {"h100": PROMISE}
    off = replace(VIEW, power_saving=False)
    assert world.made(off).digest == by_hand.made(VIEW).digest == by_hand.made(off).digest
    assert read_cloud_slots(world.made(off).nodes_conf) == frozenset()


def test_a_pool_keeps_its_form_until_its_promise_is_known(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert read_cloud_slots(world.made().nodes_conf) == frozenset()
    world.promises = {"h100": PROMISE}
    in_force = world.made()
    world.promises = {}
    assert world.made(nodes_conf=in_force.nodes_conf).digest == in_force.digest
    world.promises = {"h100": replace(PROMISE, cpus=7)}
    assert "CPUs=7 " in world.made(nodes_conf=in_force.nodes_conf).nodes_conf


class Seen:
    """Slurm with h100-1 at an address, read at a time."""

    def __init__(self) -> None:
        self.now: Observation[SlurmView] = Unavailable("not read", NOW)

    def read(self, address: str, at_s: float) -> None:
        node = SlurmNode("h100-1", address, frozenset({"MIXED", "CLOUD", "POWERING_UP"}))
        self.now = Fresh(replace(VIEW, nodes={"h100-1": node}), NOW + timedelta(seconds=at_s))


async def test_an_address_that_is_off_is_set_and_looked_at_again_when_slurm_was_read_since(tmp_path: Path) -> None:
    world, clock, scontrol, seen = World(tmp_path), HandClock(NOW), Told(), Seen()
    world.promises = {"h100": PROMISE}
    wanted = world.made()
    address = wanted.node_addrs["h100-1"]
    client, files = SlurmClient(scontrol, 1.0), SlurmFiles(tmp_path)
    free = wanted.nodes_conf.replace(address, "239.192.0.8")
    files.mark_good(Texts(free, wanted.gres_conf))

    async def restart() -> None:
        raise AssertionError

    applier = Applier(files, client, clock, restart, None, None)
    addrs = NodeAddrs(client, clock, Given(lambda: seen.now))
    assert addrs.settable(wanted, applier) == {"h100-1": address}
    await addrs.reconcile(wanted, applier)
    assert scontrol.argv == []
    clock.t_s += 10
    seen.read("239.192.0.8", 9)
    for _ in range(3):
        await addrs.reconcile(wanted, applier)
    assert scontrol.argv == [f"scontrol update nodename=h100-1 nodeaddr={address} nodehostname=h100-1"]
    seen.read("h100-1", 20)
    await addrs.reconcile(wanted, applier)
    assert len(scontrol.argv) == 2
    clock.t_s += 10
    seen.read(address, 30)
    await addrs.reconcile(wanted, applier)
    assert len(scontrol.argv) == 2


@pytest.mark.parametrize("power", [True, False])
def test_the_promise_of_a_pool_that_is_scaled_by_hand_does_not_matter(tmp_path: Path, power: bool) -> None:
    world = World(tmp_path, from_queue=False)
    before = world.made(replace(VIEW, power_saving=power)).digest
    world.promises = {"h100": PROMISE, "cpu": PROMISE}
    assert world.made(replace(VIEW, power_saving=power)).digest == before
