"""A burst of joins that goes on is few reconfigures; the last of it does not wait."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from meshd.config import PoolSettings, Settings
from meshd.daemon.slurm.controller import SlurmFilesController
from meshd.model.ids import MachineName, PoolName, SlotName
from meshd.model.machine import Machine, Phase
from meshd.model.observed import SlurmView
from meshd.runtime.run import run
from meshd.slurm.client import SlurmClient
from meshd.slurm.node_lines import Lines
from meshd.slurm.nodes import Rendered
from meshd.store.journal import Journal
from tests.clocks import HandClock
from tests.live import live_settings
from tests.sources import fresh
from tests.unit.daemon.joins import FACTS, OFFER, START


class Asked:
    """Stands for the publisher: counts what it is asked for."""

    nodes_conf = ""
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
