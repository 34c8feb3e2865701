"""An older journal is restored: it has machines that have ended, and lacks others that live.

Whatever happened in between, and whether cloud, tailnet or Slurm can be read first: as many machines as the target says
live on, none is rented beside them, none of them is ended, and no job is lost.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from meshd.config import PoolSettings, ProviderSettings
from meshd.model.desired import Policy, Target
from meshd.model.machine import Phase, Removal
from meshd.model.observed import Snapshot, Unavailable
from meshd.provider_api import ProviderCapabilities
from meshd.simulate.life import Life
from meshd.store.restored_mark import mark
from tests.clocks import SimClock
from tests.live import live_settings
from tests.property.sim import CLOUD, LAG_MAX_S, OFFERS, SMALL, START, TIMING, Daemon, Violation, World, policy_of
from tests.tiers import bounded

LIVE = live_settings(
    timing=TIMING, providers={CLOUD: ProviderSettings()}, pools={"h100": PoolSettings(gpu="h100", max_nodes=6)}
)
GAP_S = 15
ROUNDS = 120
POLICY = Policy(listing_lag_s=LAG_MAX_S + 5, launch_settle_s=25.0, orphan_grace_s=120)


@dataclass(frozen=True)
class History:
    """What happens.

    Attributes:
        target: from the begin to the end.
        backup_round: after so many rounds the backup is made, also before anything was rented, and while machines are
            on their way.
        leave: after it these go, one after the other, and others come: the index among those that are there, and
            whether the cloud ends it by itself.
        rest_s: how long the head is off then.
        away_s: how long after the new head's start tailnet, Slurm and the cloud cannot be read.
        times: the cloud says when it launched a machine.
        works: jobs start on nodes.
    """

    target: int
    backup_round: int
    leave: tuple[tuple[int, bool], ...]
    rest_s: int
    away_s: tuple[int, int, int]
    times: bool = True
    works: bool = False


class Restored(Daemon):
    """A meshd whose sources can be read one after the other."""

    away_s: tuple[float, ...] = (0, 0, 0)
    times = True

    def __init__(self, world: World, path: Path) -> None:
        self.pool, self.policy = SMALL, policy_of(world, POLICY)
        Life.__init__(self, world, path, LIVE, {CLOUD: OFFERS})

    def snapshot(self) -> Snapshot:
        seen, now = super().snapshot(), self.world.clock.now()
        gone = Unavailable("not yet", now)
        if not self.times:
            listed = {
                cloud: replace(one, value=tuple(replace(i, launched_at=None) for i in one.value))  # type: ignore[union-attr]
                for cloud, one in seen.instances.items()
            }
            seen = replace(seen, instances=listed)
        tailnet_s, slurm_s, cloud_s = self.away_s
        if self.world.clock.t_s < cloud_s:
            seen = replace(seen, instances=dict.fromkeys(seen.instances, gone))
        if self.world.clock.t_s < tailnet_s:
            self.fresh_since.pop("tailnet", None)
            seen = replace(seen, tailnet=gone)
        if self.world.clock.t_s < slurm_s:
            self.fresh_since.pop("slurm", None)
            seen = replace(seen, slurm=gone)
        return seen


def backup(journal: Path, to: Path) -> None:
    with closing(sqlite3.connect(journal)) as source, closing(sqlite3.connect(to)) as target:
        source.backup(target)


async def one_round(world: World, daemon: Daemon) -> None:
    world.move_on(GAP_S)
    daemon.agents_act()
    daemon.publish()
    daemon.reconciler.tick()
    await daemon.settle()
    assert not Violation.seen, Violation.seen


def alive(world: World) -> set[str]:
    return {m.token for m in world.machines.values() if m.ended_s is None}


def at_rest(world: World, daemon: Daemon, target: int) -> bool:
    machines = daemon.journal.machines()
    return len(alive(world)) == len(machines) == target and all(m.phase is Phase.READY for m in machines)


async def until_rest(world: World, daemon: Daemon, target: int) -> None:
    for _ in range(ROUNDS):
        await one_round(world, daemon)
        if at_rest(world, daemon, target):
            return
    raise AssertionError([(m.name, m.phase, m.reason) for m in daemon.journal.machines()])


async def live(history: History, path: Path) -> None:
    Violation.seen.clear()
    world = World(random.Random(0), SimClock(START), ProviderCapabilities(idempotent_launch=True), faults=False)
    if not history.works:
        world.start_jobs = lambda _: None  # type: ignore[method-assign]
    daemon: Daemon = Daemon(world, path, SMALL, POLICY)
    daemon.journal.set_target(Target("h100", history.target), "said root", world.clock.now())
    copy = path.with_suffix(".old")
    for _ in range(history.backup_round):
        await one_round(world, daemon)
    backup(path, copy)
    published = dict(world.published)
    await until_rest(world, daemon, history.target)
    for index, by_itself in history.leave:
        one = sorted(alive(world))[index % history.target]
        if by_itself:
            machine = next(m for m in world.machines.values() if m.token == one)
            world._end(machine, by_meshd=False)
        else:
            daemon.machine_store.change(one, "remove", "said root", removal=Removal.BY_USER)
        await one_round(world, daemon)
        await until_rest(world, daemon, history.target)
    there, rented = alive(world), world.creates
    await daemon.kill()
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()
    shutil.copy(copy, path)
    mark(path, world.clock.now())
    world.move_on(history.rest_s)
    restored = Restored(world, path)
    start_s = world.clock.t_s
    restored.away_s = tuple(start_s + one for one in history.away_s)
    restored.times = history.times
    world.published = published
    try:
        for _ in range(ROUNDS):
            await one_round(world, restored)
            told = [(m.name, m.phase, m.reason) for m in restored.journal.machines()]
            assert world.creates == rented, (world.creates - rented, told)
            assert alive(world) == there, (there - alive(world), told)
            if at_rest(world, restored, history.target):
                return
        raise AssertionError(told)
    finally:
        await restored.kill()


histories = st.builds(
    History,
    target=st.integers(1, 4),
    backup_round=st.integers(0, 13),
    leave=st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=4).map(tuple),
    rest_s=st.integers(1, 3000),
    away_s=st.tuples(*(st.sampled_from((0, 0, 20, 60, 300, 900)) for _ in range(3))),
    times=st.booleans(),
    works=st.booleans(),
)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A new journal each time."""
    folder = tmp_path_factory.mktemp("journals")
    return (folder / f"{index}.db" for index in count())


@settings(max_examples=bounded(40, 3000), deadline=None)
@given(history=histories)
@example(history=History(target=3, backup_round=0, leave=(), rest_s=1, away_s=(0, 0, 300)))
@example(history=History(target=3, backup_round=13, leave=((1, True), (1, False)), rest_s=600, away_s=(0, 0, 900)))
def test_a_restored_journal_keeps_every_machine_and_rents_none(history: History, paths: Iterator[Path]) -> None:
    asyncio.run(live(history, next(paths)))
