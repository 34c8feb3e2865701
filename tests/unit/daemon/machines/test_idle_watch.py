"""The loop gives back what is idle, says why, and stops no job."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from meshd.model.desired import Target
from meshd.model.guards import Guards
from meshd.model.machine import Phase
from meshd.model.observed import Fresh
from tests.unit.daemon.small import Small
from tests.unit.worlds import GONE_DARK, NOW, instance, machine, node, peer, snapshot, tailnet

MACHINES = tuple(machine(Phase.READY, index=index) for index in (1, 2, 3))


@pytest.fixture
async def unscaled(tmp_path: Path) -> AsyncIterator[Small]:
    """A pool that nobody has set a target for."""
    world = Small(tmp_path, *MACHINES)
    world.pool = replace(world.pool, idle_timeout_s=600, min_gpus=1)
    yield world
    await world.executor.aclose(1)
    world.journal.close()


@pytest.fixture
async def small(unscaled: Small) -> Small:
    unscaled.journal.set_target(Target("h100", 3), "said", NOW)
    return unscaled


async def tick(small: Small, *, at_s: float, busy: tuple[str, ...] = (), dark: bool = False) -> None:
    small.clock.t_s = at_s
    now = small.clock.now()
    for m in small.journal.machines():
        small.journal.note(replace(m, heartbeat_at=now))
    nodes = [node(m, *(["ALLOCATED"] if m.slot in busy else ["IDLE"])) for m in MACHINES]
    small.slurm.set(*nodes, jobs=dict.fromkeys(busy, "7"))
    small.seen = snapshot(
        instances={"aws": Fresh(tuple(instance(m) for m in MACHINES), now)},
        tailnet=Fresh(tailnet(*(peer(m) for m in MACHINES)), now),
        slurm=GONE_DARK if dark else Fresh(small.slurm.seen, now),
        node_addrs={m.slot: m.tailnet_ip for m in MACHINES},
    )  # fmt: skip
    small.reconciler.tick()
    await small.settle()


def leaving(small: Small) -> set[str]:
    return {m.slot for m in small.journal.machines() if m.removal}


async def test_after_the_time_they_go_one_by_one_down_to_the_least(small: Small) -> None:
    await tick(small, at_s=0, busy=("h100-2",))
    await tick(small, at_s=590, busy=("h100-2",))
    assert leaving(small) == set()
    await tick(small, at_s=601, busy=("h100-2",))
    assert leaving(small) == {"h100-1"}
    assert small.journal.targets()["h100"].gpus == 2
    await tick(small, at_s=602, busy=("h100-2",))
    assert leaving(small) == {"h100-1", "h100-3"}
    await tick(small, at_s=5000)
    await tick(small, at_s=9000)
    assert small.journal.targets()["h100"].gpus == 1
    assert leaving(small) == {"h100-1", "h100-3"}
    told = [event.text for event in small.journal.events() if event.kind == "target"]
    assert told[1:] == [
        "h100 shall have 2 GPUs: h100-1 had no job for 10 min",
        "h100 shall have 1 GPU: h100-3 had no job for 10 min",
    ]


async def test_a_pool_that_nobody_scaled_goes_down_to_its_least_as_well(unscaled: Small) -> None:
    for at_s in (0, 601, 602, 5000, 9000):
        await tick(unscaled, at_s=at_s)
    assert leaving(unscaled) == {"h100-1", "h100-2"}
    assert unscaled.journal.targets() == {}


async def test_a_time_in_which_slurm_was_away_does_not_count(small: Small) -> None:
    await tick(small, at_s=0)
    await tick(small, at_s=500, dark=True)
    await tick(small, at_s=700)
    await tick(small, at_s=1290)
    assert leaving(small) == set()
    await tick(small, at_s=1301)
    assert leaving(small) == {"h100-1"}


async def test_not_more_leave_at_once_than_the_guard_allows(small: Small) -> None:
    small.guards = Guards(max_leaving=1)
    for at_s in (0, 601, 602, 603):
        await tick(small, at_s=at_s)
        assert len(leaving(small)) <= 1
    assert len(leaving(small)) == 1


@pytest.mark.parametrize("step", [timedelta(hours=1), timedelta(hours=-1)])
async def test_the_time_counts_on_when_the_clock_is_set(small: Small, step: timedelta) -> None:
    await tick(small, at_s=0, busy=("h100-2",))
    small.clock.shift = step
    await tick(small, at_s=300, busy=("h100-2",))
    await tick(small, at_s=590, busy=("h100-2",))
    assert leaving(small) == set()
    await tick(small, at_s=601, busy=("h100-2",))
    assert leaving(small) == {"h100-1"}
