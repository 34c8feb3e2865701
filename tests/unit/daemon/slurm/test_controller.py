"""A burst of joins that goes on is few reconfigures; the last of it does not wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from meshd.config import PoolSettings, ProviderSettings, Settings
from meshd.daemon.slurm.controller import SlurmFilesController
from meshd.model.desired import Promise
from meshd.model.ids import MachineName, PoolName, SlotName
from meshd.model.machine import Machine, Phase
from meshd.model.observed import SlurmView
from meshd.runtime.run import run
from meshd.slurm.client import SlurmClient
from meshd.slurm.node_lines import Lines
from meshd.slurm.nodes import Rendered
from meshd.slurm.read_back import read_lines
from meshd.store.journal import Journal
from tests.clocks import HandClock
from tests.live import live_settings
from tests.sources import fresh
from tests.unit.daemon.joins import FACTS, OFFER, START


class Asked:
    """Stands for the publisher: counts what it is asked for."""

    nodes_conf = gres_conf = ""
    read_s: float | None = None
    unsafe: Mapping[str, str] = MappingProxyType({})

    def __init__(self) -> None:
        self.digests: list[str] = []
        self.sizes: list[int] = []
        self.lines: dict[str, Lines] = {}
        self.applier = self

    def request(self, wanted: Rendered) -> None:
        if wanted.digest not in self.digests[-1:]:
            self.digests.append(wanted.digest)
            self.sizes.append(len(wanted.node_addrs))


def machine(index: int, *, joined: bool) -> Machine:
    return Machine(
        MachineName(f"lab-h100-{index}-aaaaaa"), PoolName("h100"), SlotName(f"h100-{index}"), "aws", OFFER,
        Phase.CONFIGURING if joined else Phase.BOOTING, START, START, instance_id=f"i-{index}",
        tailnet_ip=f"100.64.0.{index}" if joined else "", facts=FACTS if joined else None,
    )  # fmt: skip


def joins(tmp_path: Path, count: int, spacing_s: float) -> tuple[list[int], float]:
    """How many nodes each reconfigure brought in, and how long the last one waited."""
    settings = Settings(pools={"h100": PoolSettings(gpu="h100", max_nodes=count)})
    view = SlurmView("24.11.5", {}, ())
    clock, journal, asked = HandClock(START), Journal(tmp_path / "journal.db"), Asked()
    publishing = SlurmFilesController(
        live=live_settings(settings), journal=journal, client=SlurmClient(run, 1.0), clock=clock,
        slurm=fresh(lambda: view), applied=lambda: None,
    )  # fmt: skip
    publishing._publisher = asked  # type: ignore[assignment]
    publishing.look()
    clock.t_s += 1
    publishing.look()
    asked.sizes.clear()
    for index in range(1, count + 1):
        journal.put(machine(index, joined=False), "phase", "", START)
    for index in range(1, count + 1):
        journal.put(machine(index, joined=True), "phase", "", START)
        for _ in range(max(round(spacing_s / 0.1), 1)):
            publishing.look()
            clock.t_s += 0.1
    last_s = clock.t_s
    while asked.sizes[-1:] != [count]:
        publishing.look()
        clock.t_s += 0.1
        assert clock.t_s < last_s + 5
    journal.close()
    return asked.sizes, clock.t_s - last_s


def test_a_quick_burst_is_one_reconfigure(tmp_path: Path) -> None:
    sizes, waited_s = joins(tmp_path, 8, 0.5)
    assert sizes == [8]
    assert waited_s < 0.5


def test_a_slow_burst_is_few_reconfigures_and_the_first_do_not_wait_for_all(tmp_path: Path) -> None:
    sizes, waited_s = joins(tmp_path, 8, 6.0)
    assert len(sizes) == 3
    assert sizes[0] <= 3
    assert sizes[-1] == 8
    assert waited_s < 0.5


class Applied(Asked):
    """A publisher whose every content is in force at once."""

    def __init__(self, clock: HandClock) -> None:
        super().__init__()
        self._clock = clock
        self.asked_s: list[float] = []
        self.again = 0

    def reconfigure(self) -> None:
        self.again += 1

    def request(self, wanted: Rendered) -> None:
        if wanted.digest not in self.digests[-1:]:
            super().request(wanted)
            self.nodes_conf, self.gres_conf = wanted.nodes_conf, wanted.gres_conf
            self.lines, self.read_s = read_lines(self.nodes_conf, self.gres_conf), self._clock.monotonic_s()
            self.asked_s.append(self.read_s)


def test_slurm_keeps_its_backfill_while_machines_come_and_go(tmp_path: Path) -> None:
    """Only what a job waits for is put in force at once."""
    settings = Settings(pools={"h100": PoolSettings(gpu="h100", max_nodes=8)}, providers={"aws": ProviderSettings()})
    spacing_s = settings.slurm.reconfigure_spacing_s
    view = SlurmView("24.11.5", {}, (), power_saving=True)
    clock, journal = HandClock(START), Journal(tmp_path / "journal.db")
    promise = Promise(FACTS.shape.cpus, 1000, len(FACTS.gpus))
    applied = Applied(clock)
    publishing = SlurmFilesController(
        live=live_settings(settings), journal=journal, client=SlurmClient(run, 1.0), clock=clock,
        slurm=fresh(lambda: view), applied=lambda: None, promises=lambda: {"h100": promise},
    )  # fmt: skip
    publishing._publisher = applied  # type: ignore[assignment]

    def pass_s(seconds: float) -> None:
        for _ in range(round(seconds)):
            clock.t_s += 1
            publishing.look()

    pass_s(2)
    first_s, count = applied.asked_s[-1], len(applied.asked_s)
    for index in range(1, 4):
        journal.put(machine(index, joined=True), "phase", "", START)
        pass_s(10)
    assert len(applied.asked_s) == count, "their addresses are set without the files"
    assert set(publishing.settable_addrs) == {"h100-1", "h100-2", "h100-3"}
    pass_s(spacing_s)
    assert first_s + spacing_s <= applied.asked_s[count] <= first_s + spacing_s + 1
    assert (len(applied.asked_s), applied.sizes[-1]) == (count + 1, 3)

    for index in (1, 2):
        gone = replace(machine(index, joined=True), phase=Phase.TERMINATING, left_slurm=True)
        journal.put(gone, "phase", "", START)
    pass_s(5)
    assert len(applied.asked_s) == count + 1, "no job goes to them"
    pass_s(spacing_s)
    assert (len(applied.asked_s), applied.sizes[-1]) == (count + 2, 1)

    own_files = replace(FACTS, gpus=tuple(replace(gpu, device="/dev/nvidia7") for gpu in FACTS.gpus))
    journal.put(replace(machine(4, joined=True), facts=own_files), "phase", "", START)
    pass_s(2)
    assert (len(applied.asked_s), applied.sizes[-1]) == (count + 3, 2), "its line is its own"

    journal.put(machine(5, joined=True), "phase", "", START)
    pass_s(2)
    assert (len(applied.asked_s), applied.again) == (count + 3, 0)
    publishing.reconfigure()
    assert (len(applied.asked_s), applied.sizes[-1], applied.again) == (count + 4, 3, 1), "one for both"
    journal.close()
