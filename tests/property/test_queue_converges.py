"""Slurm's queue drives the pool: every job gets its nodes, in one place, and no machine is left over."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.property.queue_sim import a_node_in_a_sold_out_place, dear_nodes_under_a_limit, live_with_queue
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


@pytest.mark.parametrize(("limit_usd", "budget_usd"), [(8.0, None), (None, 8.0)])
async def test_dear_nodes_under_a_limit_starve_no_job(
    limit_usd: float | None, budget_usd: float | None, tmp_path: Path
) -> None:
    """Their place cannot give the rest within the limit, and another can give all: the job moves, with the nodes."""
    world = await dear_nodes_under_a_limit(tmp_path, limit_usd=limit_usd, budget_usd=budget_usd)
    assert (world.ran, world.give_ups) == (1, 1)
    assert not world.queue


@pytest.mark.parametrize("seed", [204, 406])
async def test_histories_with_wrong_answers_that_ended_badly_at_a_limit(seed: int, tmp_path: Path) -> None:
    """204: a target's nodes left no money for a job. 406: a machine that was refused, and made, passed the limit."""
    world = await live_with_queue(seed, tmp_path, wrong=0.5)
    assert world.limit_usd or world.budget_usd


@pytest.mark.parametrize("batch", range(bounded(4, 400)))
async def test_every_history_with_freezes_ends_well(batch: int, tmp_path: Path) -> None:
    """Nothing is rented and nothing is ended meanwhile; after the thaw each job runs without anyone's doing."""
    ran = back = 0
    for seed in range(batch * 5, batch * 5 + 5):
        world = await live_with_queue(seed, tmp_path, freezes=0.1, wrong=0.2 if batch % 2 else None)
        ran, back = ran + world.ran, back + world.give_ups
    assert ran > 5
    assert back > 0


@pytest.mark.parametrize("batch", range(bounded(1, 200)))
async def test_every_history_in_which_the_heads_clock_is_set_ends_well(batch: int, tmp_path: Path) -> None:
    """An hour ahead, an hour behind and right again: no job ends by it, and no machine stays that nobody needs."""
    for seed in range(batch * 5, batch * 5 + 5):
        await live_with_queue(seed, tmp_path, leaps=0.03)


async def test_a_head_behind_its_cloud_gives_idle_machines_back(tmp_path: Path) -> None:
    """They were launched in the future, and their next hour counted as paid for."""
    await live_with_queue(24, tmp_path, leaps=0.03)
