"""A pool that is removed from the settings: what waits in it is not killed, others go on, and a person is told."""

from __future__ import annotations

import re
from pathlib import Path

from meshd.config import PoolSettings, Settings
from meshd.daemon.slurm.controller import SlurmFilesController
from meshd.errors import SlurmError
from meshd.model.observed import SlurmJob, SlurmReservation, SlurmView
from meshd.runtime.run import run
from meshd.slurm.client import SlurmClient
from meshd.slurm.node_lines import Lines
from meshd.slurm.nodes import Rendered
from meshd.slurm.pools import read_pools
from meshd.store.journal import Journal
from tests.clocks import HandClock
from tests.live import live_settings
from tests.sources import fresh
from tests.unit.daemon.joins import START


class Slurm(SlurmClient):
    """Tells the reservations that it is given; None: it does not answer."""

    def __init__(self) -> None:
        super().__init__(run, 1.0)
        self.told: tuple[SlurmReservation, ...] | None = ()

    async def reservations(self) -> tuple[SlurmReservation, ...]:
        if self.told is None:
            raise SlurmError("does not answer")
        return self.told


class Taker:
    """Stands for the publisher: everything comes into force at once."""

    def __init__(self) -> None:
        self.unsafe: dict[str, str] = {}
        self.lines: dict[str, Lines] = {}
        self.nodes_conf = ""
        self.read_s: float | None = None
        self.applier = self

    def request(self, wanted: Rendered) -> None:
        self.nodes_conf = wanted.nodes_conf


class Head:
    def __init__(self, directory: Path) -> None:
        self.live = live_settings(pools={"a": PoolSettings(gpu="a100", max_nodes=2), "b": PoolSettings(max_nodes=3)})
        self.view = SlurmView("24.11.5", {}, ())
        self.slurm, self.clock, self.taker = Slurm(), HandClock(START), Taker()
        self.publishing = SlurmFilesController(
            live=self.live, journal=Journal(directory / "journal.db"), client=self.slurm,
            clock=self.clock, slurm=fresh(lambda: self.view), applied=lambda: None,
        )  # fmt: skip
        self.publishing._publisher = self.taker  # type: ignore[assignment]

    async def pools(self) -> dict[str, int]:
        """What Slurm has some seconds later."""
        for _ in range(4):
            await self.publishing.held.ask()
            self.publishing.look()
            self.clock.t_s += 3
        return {pool.name: pool.max_nodes for pool in read_pools(self.taker.nodes_conf).values()}

    def waiting(self, *jobs: SlurmJob) -> None:
        self.view = SlurmView("24.11.5", {}, jobs)

    def keep(self, **sizes: int) -> None:
        self.live.settings = Settings(pools={name: PoolSettings(max_nodes=size) for name, size in sizes.items()})

    def cures(self) -> list[str]:
        return [cure for problem in self.publishing.held.problems() for cure in re.findall(r"`([^`]+)`", problem.cure)]


def job(id_: str, partition: str, *nodes: str) -> SlurmJob:
    return SlurmJob(id_, "u", partition, "PENDING", required_nodes=nodes)


async def test_a_removed_pool_stays_while_jobs_wait_in_it_and_others_change_meanwhile(tmp_path: Path) -> None:
    head = Head(tmp_path)
    assert await head.pools() == {"a": 2, "b": 3}
    head.waiting(job("12", "a"), job("13_4", "b,a"))
    head.keep(b=5)
    assert await head.pools() == {"a": 2, "b": 5}, "the other pool does not wait"
    (problem,) = head.publishing.held.problems()
    assert (problem.severity, problem.pool, problem.blocking) == ("warning", "a", False)
    assert head.cures() == ["scancel 12 13_4", "scontrol update jobid=12,13_4 partition=b"]
    head.waiting(job("14", "b"))
    assert await head.pools() == {"b": 5}
    assert not list(head.publishing.held.problems()), "it clears by itself"


async def test_a_slot_stays_while_it_is_named(tmp_path: Path) -> None:
    head = Head(tmp_path)
    await head.pools()
    head.waiting(job("12", "b", "b-2"))
    head.keep(a=2, b=1)
    assert await head.pools() == {"a": 2, "b": 2}
    assert head.cures() == ["scancel 12", "scontrol update jobid=12 reqnodelist="]
    head.waiting()
    head.slurm.told = (SlurmReservation("maint", ("b-3",)),)
    assert await head.pools() == {"a": 2, "b": 1}, "what has gone does not come back for a later reservation"


async def test_a_reservation_holds_it_and_an_unknown_one_too(tmp_path: Path) -> None:
    head = Head(tmp_path)
    await head.pools()
    head.slurm.told = None
    head.keep(b=3)
    assert await head.pools() == {"a": 2, "b": 3}, "Slurm was not heard about its reservations"
    head.slurm.told = (SlurmReservation("maint", ("a-1",), "a"),)
    assert await head.pools() == {"a": 2, "b": 3}
    assert head.cures() == ["scontrol delete reservationname=maint"]
    head.slurm.told = ()
    assert await head.pools() == {"b": 3}


async def test_many_jobs_are_cancelled_by_their_partition(tmp_path: Path) -> None:
    head = Head(tmp_path)
    await head.pools()
    head.waiting(*(job(f"9_{i}", "a") for i in range(500)))
    head.keep(b=3)
    await head.pools()
    assert head.cures()[0] == "scancel --state=PENDING --partition=a"
    assert all(len(cure) < 200 for cure in head.cures())
