"""The user's cluster over a virtual clock: what is rented, for how long jobs wait, and what is paid."""

from __future__ import annotations

from typing import Any

import pytest

from meshd.config import ClusterSettings, PoolSettings, ProviderSettings, Settings
from meshd.config.models import BudgetSettings
from meshd.provider_api import Offer, ProviderCapabilities, ProviderName
from meshd.simulate.load import JobSpec, Scenario
from meshd.simulate.run import Market, simulate
from meshd.simulate.schema import SimulationView

A, B = ProviderName("a"), ProviderName("b")
DEAR, CHEAP = (
    Offer(A, "r1", "", "x.2", "h100-sxm", 2, 80, 16, 131072, 4.0),
    Offer(B, "r2", "", "y.2", "h100-sxm", 2, 80, 16, 131072, 3.0),
)
SPOT = Offer(B, "r2", "", "y.2", "h100-sxm", 2, 80, 16, 131072, 1.0, spot=True)
BOOT = {"cloud": {"boot": (60, 60)}}


def settings(budget: BudgetSettings | None = None, **pool: Any) -> Settings:
    pool = {"gpu": "h100", "gpus_per_node": 2, "max_nodes": 4, "idle_timeout_s": 300, **pool}
    return Settings(
        cluster=ClusterSettings(name="lab"), pools={"h100": PoolSettings(**pool)},
        providers={A: ProviderSettings(), B: ProviderSettings()}, budget=budget or BudgetSettings(),
    )  # fmt: skip


def job(at_s: float, *, nodes: int = 1, run_s: float = 600, gpus: int | None = None, name: str = "1") -> JobSpec:
    return JobSpec(name, "u", "h100", at_s, nodes, run_s, gpus=gpus)


async def run(
    jobs: list[JobSpec], given: Settings | None = None, offers: tuple[Offer, ...] = (DEAR, CHEAP), **scenario: Any
) -> SimulationView:
    able = {name: ProviderCapabilities(idempotent_launch=True, spot=True, billing_minimum_s=60) for name in (A, B)}
    market = Market(able, {name: tuple(o for o in offers if o.provider == name) for name in (A, B)})
    described = Scenario.model_validate({**BOOT, **scenario})
    return await simulate(given or settings(), market, jobs, described, 1, lambda *_: None)


async def test_a_job_waits_for_the_boot_and_the_cheapest_is_paid_until_it_was_idle_long_enough() -> None:
    view = await run([job(0), job(100, name="2")])
    pool = view.all_pools
    assert (pool.started, pool.machines, pool.restarted) == (2, 2, 0)
    assert 60 <= (pool.wait_max_s or 0) <= 90
    assert {row.instance_type for row in view.rented} == {"y.2"}
    assert pool.job_node_hours == pytest.approx(1200 / 3600, abs=0.001)
    assert 2 * 900 / 3600 < pool.machine_hours < 2 * 1200 / 3600
    assert pool.usd == pytest.approx(3.0 * pool.machine_hours, abs=0.02)


async def test_the_next_job_takes_a_node_that_is_idle() -> None:
    view = await run([job(0), job(900, name="2")])
    assert view.all_pools.machines == 1
    assert (view.all_pools.wait_median_s or 0) <= 90
    assert view.all_pools.wait_max_s is not None


async def test_jobs_share_a_node_where_they_fit_and_others_wait_in_their_order() -> None:
    both = await run([job(0, gpus=1), job(0, gpus=1, name="2")], settings(max_nodes=1))
    assert (both.all_pools.machines, (both.all_pools.wait_max_s or 999) < 90) == (1, True)
    alone = await run([job(0), job(0, gpus=1, name="2")], settings(max_nodes=1))
    assert (alone.all_pools.wait_max_s or 0) > 600


async def test_a_gang_has_all_its_nodes_or_waits() -> None:
    view = await run([job(0, nodes=3, run_s=1000), job(10, nodes=2, name="2"), job(20, nodes=1, name="3")])
    assert view.all_pools.started == 3
    assert view.all_pools.machines_peak <= 4
    assert (view.all_pools.wait_max_s or 0) > 900, "no backfill: the third waits behind the second"


async def test_jobs_that_can_never_run_are_told() -> None:
    view = await run([job(0, nodes=5), job(0, gpus=3, name="2"), job(0, name="3")])
    assert (view.all_pools.started, sum(row.count for row in view.never)) == (1, 2)


async def test_without_capacity_jobs_wait_or_another_cloud_is_taken() -> None:
    gone = [{"kind": "no_capacity", "provider": "b", "for": "2h"}]
    view = await run([job(0)], faults=gone)
    assert {row.instance_type for row in view.rented} == {"x.2"}
    assert view.orders_refused > 0
    view = await run([job(0)], faults=[{"kind": "no_capacity", "for": "2h"}])
    assert 7200 <= (view.all_pools.wait_max_s or 0) < 7200 + 3600 + 120


async def test_a_slow_boot_and_an_outage_take_their_time() -> None:
    view = await run([job(0)], faults=[{"kind": "slow_boot", "factor": 5}])
    assert 300 <= (view.all_pools.wait_max_s or 0) <= 330
    view = await run([job(0)], offers=(CHEAP,), faults=[{"kind": "outage", "provider": "b", "for": "1h"}])
    assert 3600 <= (view.all_pools.wait_max_s or 0) < 7200
    during = await run([job(0)], faults=[{"kind": "outage", "from": "5m", "for": "1h"}])
    assert (during.all_pools.started, during.all_pools.restarted) == (1, 0), "machines run on"
    assert during.all_pools.machine_hours > 1.0, "and cannot be ended meanwhile"


async def test_spot_machines_that_are_taken_back_have_their_jobs_run_again() -> None:
    ends = [{"kind": "spot_ends", "per_hour": 2.0}]
    jobs = [job(0, run_s=1800, name=str(n)) for n in range(4)]
    view = await run(jobs, settings(spot="only"), (SPOT,), faults=ends)
    assert view.taken_back > 0
    assert view.all_pools.restarted > 0
    assert view.all_pools.started == 4
    assert view.all_pools.job_node_hours > 4 * 0.5


async def test_nothing_is_rented_past_a_budget() -> None:
    jobs = [job(0, run_s=7200, name=str(n)) for n in range(4)]
    free, bound = await run(jobs), await run(jobs, settings(BudgetSettings(usd_per_hour=6.5)))
    assert (free.all_pools.machines_peak, bound.all_pools.machines_peak) == (4, 2)
    assert (bound.all_pools.wait_max_s or 0) > 7000
    assert bound.all_pools.started == 4


async def test_a_pool_that_people_drive_has_what_its_target_says() -> None:
    driven = settings(scale_from_queue=False, idle_timeout_s=None)
    view = await run([job(600), job(600, name="2"), job(600, name="3")], driven, targets={"h100": 4})
    assert (view.all_pools.machines, view.all_pools.started) == (2, 3)
    assert 600 <= (view.all_pools.wait_max_s or 0) < 700, "two nodes for three jobs"


async def test_it_tells_for_what_jobs_waited() -> None:
    def waited(view: SimulationView) -> dict[str, int]:
        (pool,) = view.pools
        whole_s = (pool.wait_mean_s or 0) * pool.started
        assert sum(row.job_s for row in pool.waited) == pytest.approx(
            whole_s, abs=len(pool.waited) + 0.1 * pool.started
        )
        assert [row.job_s for row in pool.waited] == sorted((row.job_s for row in pool.waited), reverse=True)
        return {row.code: row.job_s for row in pool.waited}

    queue = [job(0, run_s=7200, name=str(n)) for n in range(4)]
    assert set(waited(await run(queue))) == {"boot"}
    taken = waited(await run(queue, settings(max_nodes=2)))
    assert set(taken) == {"boot", "nodes_taken"} and taken["nodes_taken"] > 2 * 7000
    bound = waited(await run(queue, settings(BudgetSettings(usd_per_hour=6.5))))
    assert bound["budget"] > 2 * 6000 and bound.get("nodes_taken", 0) < 300
    limit = waited(await run(queue, settings(max_usd_per_hour=6.5)))
    assert limit["limit_in_all"] > 2 * 6000
    sold_out = waited(await run([job(0)], faults=[{"kind": "no_capacity", "for": "2h"}]))
    assert sold_out["no_capacity"] > 7000
    by_hand = waited(await run(queue, settings(scale_from_queue=False, idle_timeout_s=None), targets={"h100": 4}))
    assert by_hand["nodes_taken"] > 2 * 7000


async def test_the_same_seed_gives_the_same_answer() -> None:
    jobs = [job(60.0 * n, run_s=100 + 17 * n, nodes=1 + n % 3, name=str(n)) for n in range(20)]
    ends = [{"kind": "spot_ends", "per_hour": 1.0}]
    assert await run(jobs, settings(spot="prefer"), (SPOT, DEAR), faults=ends) == await run(
        jobs, settings(spot="prefer"), (SPOT, DEAR), faults=ends
    )
