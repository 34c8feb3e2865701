"""Slurm's queue drives the pool: every job gets its nodes, in one place, and no machine is left over."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.property.queue_sim import a_node_in_a_sold_out_place, live_with_queue
from tests.tiers import bounded


@pytest.mark.parametrize("batch", range(bounded(4, 400)))
async def test_every_history_of_a_queue_ends_well(batch: int, tmp_path: Path) -> None:
    """Jobs of several nodes, cancels, refusals, machines that die, targets beside the queue, kill -9."""
    ran = give_ups = 0
    for seed in range(batch * 5, batch * 5 + 5):
        world = await live_with_queue(seed, tmp_path)
        ran, give_ups = ran + world.ran, give_ups + world.give_ups
    assert ran > 5
    assert give_ups > 0


@pytest.mark.parametrize("batch", range(bounded(4, 400)))
async def test_every_history_of_gangs_ends_well_whatever_their_clouds_answer(batch: int, tmp_path: Path) -> None:
    """The machines of a job come with one call, and half of the answers are wrong."""
    wrong = 0
    for seed in range(batch * 5, batch * 5 + 5):
        world = await live_with_queue(seed, tmp_path, wrong=0.5)
        wrong += sum(kind is not None for kind in world.gangs.values())
    assert wrong > 0


async def test_a_node_in_a_sold_out_place_starves_no_job(tmp_path: Path) -> None:
    """Another place can give all: the job is put back once, and the node leaves."""
    world = await a_node_in_a_sold_out_place(tmp_path)
    assert (world.ran, world.give_ups) == (1, 1)
    assert not world.queue
