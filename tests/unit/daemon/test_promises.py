"""The promises of pools: made from the offers, kept over restarts, and never changed under a job."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshd.config import PoolSettings, ProviderSettings, Settings
from meshd.daemon.promises import KEEP_S, PoolPromises
from meshd.model.desired import Promise
from meshd.model.machine import Phase
from meshd.model.observed import Fresh, Observation, SlurmJob, SlurmView, Unavailable
from meshd.provider_api import Offer, ProviderCapabilities
from meshd.slurm.pools import pool_lines
from meshd.store.journal import Journal
from tests.clocks import HandClock
from tests.live import live_settings
from tests.sources import Given
from tests.unit.worlds import NOW, OFFER, machine

BIG = replace(OFFER, vcpus=52, memory_mib=250_000, instance_type="g.big")
SMALL = replace(OFFER, vcpus=26, memory_mib=204_800, instance_type="g.small", provider="lambda")
BY_BIG, BY_SMALL = Promise(52, 237_500, 1), Promise(26, 194_560, 1)
DARK = Unavailable("does not answer", NOW)


class World:
    """Offers, Slurm and the settings, all of which a test may change."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.journal = Journal(path)
        self.clock = HandClock()
        self.offers: dict[str, Observation[tuple[Offer, ...]]] = {
            "aws": Fresh((BIG,), NOW), "lambda": Fresh((SMALL,), NOW)
        }  # fmt: skip
        self.jobs: tuple[SlurmJob, ...] = ()
        self.slurm_answers = True
        self.start()

    def start(self, **pool: Any) -> None:
        table = PoolSettings(gpu="h100", scale_from_queue=True, **pool)
        self.settings = Settings(
            pools={"h100": table, "by-hand": PoolSettings(gpu="h100", scale_from_queue=False)},
            providers={"aws": ProviderSettings(), "lambda": ProviderSettings()},
        )
        able = {name: ProviderCapabilities() for name in ("aws", "lambda")}
        slurm: Given[SlurmView] = Given(
            lambda: Fresh(SlurmView("24.11.5", {}, self.jobs), NOW) if self.slurm_answers else DARK
        )
        self.promises = PoolPromises(
            live_settings(self.settings), self.journal, able, lambda: self.offers, slurm, self.clock
        )

    def restart(self, **pool: Any) -> None:
        self.journal.close()
        self.journal = Journal(self.path)
        self.start(**pool)

    def look(self) -> Promise | None:
        asyncio.run(self.promises.reconcile())
        return self.promises.current.get("h100")

    def codes(self) -> list[str]:
        return [one.code for one in self.promises.problems()]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "journal.db")


def test_it_is_that_of_the_smallest_offer_and_stands_in_the_lines(world: World) -> None:
    assert world.look() == BY_SMALL
    assert set(world.promises.current) == {"h100"}, "none for a pool that people scale"
    lines = {line.name: line for line in pool_lines(world.settings.pools, world.promises.current)}
    assert (lines["h100"].cpus_min, lines["h100"].memory_min_mib, lines["h100"].gpus_per_node) == (26, 194_560, 1)
    assert (lines["by-hand"].cpus_min, lines["by-hand"].memory_min_mib) == (1, 1024)
    assert [event.kind for event in world.journal.events()] == ["promise"]


def test_a_restart_without_offers_keeps_it(world: World) -> None:
    world.look()
    world.offers = {"aws": DARK, "lambda": DARK}
    world.restart()
    assert world.promises.current["h100"] == BY_SMALL, "before anything was read"
    assert world.look() == BY_SMALL
    assert len(world.journal.events()) == 1


def test_while_a_provider_cannot_be_read_it_does_not_rise(world: World) -> None:
    world.look()
    world.offers["lambda"] = DARK
    assert world.look() == BY_SMALL
    world.restart()
    assert world.look() == BY_SMALL
    world.offers["lambda"] = Fresh((), NOW)
    assert world.look() == BY_SMALL, "what has no stock now may have some soon"
    world.clock.t_s += KEEP_S + 1
    world.offers["aws"] = Fresh((BIG,), NOW)
    assert world.look() == BY_BIG


def test_it_shrinks_at_once_while_nobody_uses_the_pool(world: World) -> None:
    del world.offers["lambda"]
    world.offers["lambda"] = Fresh((), NOW)
    assert world.look() == BY_BIG
    world.offers["lambda"] = Fresh((SMALL,), NOW)
    assert world.look() == BY_SMALL


JOB = SlurmJob("1", "u", "h100", "PENDING", ())


@pytest.mark.parametrize("use", ["machine", "pending", "configuring", "slurm"])
def test_nothing_changes_in_use(world: World, use: str) -> None:
    world.offers["lambda"] = Fresh((), NOW)
    world.look()
    if use == "machine":
        world.journal.put(machine(Phase.BOOTING), "phase", "boots", NOW)
    world.jobs = {
        "pending": (JOB,),
        "configuring": (replace(JOB, partition="other", state="CONFIGURING", nodes=("h100-1",)),),
    }.get(use, ())
    world.slurm_answers = use != "slurm"
    world.offers["lambda"] = Fresh((SMALL,), NOW)
    assert world.look() == BY_BIG
    world.jobs, world.slurm_answers = (), True
    if use == "machine":
        world.journal.put(machine(Phase.GONE), "phase", "gone", NOW)
    assert world.look() == BY_SMALL


def test_settings_change_it_at_once_but_not_in_use(world: World) -> None:
    world.look()
    world.jobs = (JOB,)
    world.restart(cpus_min=40)
    assert (world.look(), world.codes()) == (BY_SMALL, ["promise_waits"])
    world.jobs = ()
    assert (world.look(), world.codes()) == (Promise(40, 237_500, 1), [])


def test_an_odd_offer_is_reported(world: World) -> None:
    world.offers["aws"] = Fresh((BIG, replace(BIG, zone="r1b"), replace(BIG, zone="r1c", vcpus=4)), NOW)
    world.look()
    assert world.codes() == ["promise_small"]
    (one,) = world.promises.problems()
    assert "cpus_min = 26" in one.cure or "cpus_min = 52" in one.cure


def test_a_first_promise_is_held_by_machines_that_were_there(world: World) -> None:
    world.journal.put(machine(Phase.READY), "phase", "ready", NOW)
    assert world.look() == Promise(8, 62_259, 1)


def test_without_offers_nothing_is_promised(world: World) -> None:
    world.offers = {"aws": Fresh((), NOW), "lambda": DARK}
    assert world.look() is None
    assert pool_lines(world.settings.pools, world.promises.current)[0].cpus_min == 1
