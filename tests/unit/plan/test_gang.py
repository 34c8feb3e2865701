"""All machines of a target are in one place; the whole gang moves, or none of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from meshd.codes import WarningCode
from meshd.model import plan as p
from meshd.model.cooldown import Cooldown, CooldownKey
from meshd.model.desired import Desired, Pool, Target
from meshd.model.machine import Machine, Phase, Removal
from meshd.model.observed import Fresh
from meshd.plan.planner import plan
from meshd.provider_api import Offer, ProviderName
from tests.unit.worlds import NOW, OFFER, ago, instance, machine, node, slurm, snapshot

POOL = Pool("h100", "h100", 1, 8, ("aws", "gce"), gpus_per_node_max=8)
HERE = OFFER
THERE = replace(OFFER, provider=ProviderName("gce"), region="r2", zone="r2a", instance_type="g.2", usd_per_hour=3.0)
"""Dearer, and elsewhere."""


def decided(
    gpus: int, *machines: Machine, offers: Sequence[Offer] = (HERE, THERE), pool: Pool = POOL,
    cooling: Sequence[Offer] = (), jobs: dict[str, str] | None = None, **target: Any,
) -> p.Plan:  # fmt: skip
    rented = [m for m in machines if m.instance_id]
    seen = snapshot(
        instances={"aws": Fresh(tuple(instance(m) for m in rented), NOW)}, offers={"all": Fresh(tuple(offers), NOW)},
        slurm=Fresh(slurm(*(node(m) for m in machines if m.tailnet_ip), jobs=jobs), NOW),
    )  # fmt: skip
    until = NOW + timedelta(seconds=60)
    cooldowns = {
        CooldownKey.of_offer(o): Cooldown(CooldownKey.of_offer(o), until, "sold out, said the cloud") for o in cooling
    }
    desired = Desired("lab", {"h100": pool}, {"h100": Target("h100", gpus, **target)}, cooldowns=cooldowns)
    return plan(desired, machines, seen, NOW)


def rents(found: p.Plan) -> list[tuple[str, str]]:
    return [(step.subject, step.offer.key) for step in found.steps if isinstance(step, p.RequestMachine)]


def removed(found: p.Plan) -> set[str]:
    return {step.subject for step in found.steps if isinstance(step, p.Remove)}


def test_the_place_whose_whole_cover_is_cheapest_is_taken() -> None:
    cheap_one, big = replace(HERE, usd_per_hour=1.0), replace(THERE, gpus=4, usd_per_hour=6.0)
    assert {key for _, key in rents(decided(1, offers=(cheap_one, big)))} == {cheap_one.key}
    assert {key for _, key in rents(decided(8, offers=(cheap_one, big)))} == {cheap_one.key}
    dear_one = replace(HERE, usd_per_hour=1.6)
    assert rents(decided(8, offers=(dear_one, big))) == [("h100-1", big.key), ("h100-2", big.key)]


def test_one_place_unless_it_may_be_spread() -> None:
    pair = replace(HERE, gpus=2, usd_per_hour=3.0)
    single = replace(THERE, usd_per_hour=1.9)
    assert {key for _, key in rents(decided(3, offers=(pair, single)))} == {single.key}
    spread = rents(decided(3, offers=(pair, single), spread=True))
    assert [key for _, key in spread] == [pair.key, single.key]


def test_machines_that_are_there_fix_the_place() -> None:
    there = machine(Phase.READY, offer=THERE, provider="gce")
    assert {key for _, key in rents(decided(3, there))} == {THERE.key}
    assert {key for _, key in rents(decided(3, there, spread=True))} == {HERE.key}


def test_of_several_places_any_one_will_do_and_the_one_that_is_there_when_it_costs_no_more() -> None:
    both = (machine(Phase.READY), machine(Phase.READY, index=2, offer=THERE, provider="gce"))
    third = replace(HERE, region="r3", zone="r3a", usd_per_hour=2.0)
    assert {key for _, key in rents(decided(4, *both, offers=(third, THERE, HERE)))} == {HERE.key}
    cheaper = replace(third, usd_per_hour=1.9)
    assert {key for _, key in rents(decided(4, *both, offers=(cheaper, THERE, HERE)))} == {cheaper.key}


def test_the_place_chosen_for_this_target_stays_chosen() -> None:
    old = (machine(Phase.READY), machine(Phase.READY, index=2, offer=THERE, provider="gce"))
    new = machine(Phase.BOOTING, index=3, offer=THERE, provider="gce", created_at=ago(10))
    assert {key for _, key in rents(decided(4, *old, new, at=ago(60)))} == {THERE.key}


def test_a_gang_that_cannot_be_whole_moves_as_a_whole() -> None:
    gang = (machine(Phase.BOOTING), machine(Phase.REQUESTED, index=2), machine(Phase.TESTING, index=3))
    found = decided(4, *gang, cooling=(HERE,))
    assert removed(found) == {m.name for m in gang}
    assert rents(found) == [], "first the old ones go: more is never rented than wanted"
    step = next(step for step in found.steps if isinstance(step, p.Remove))
    assert step.removal is Removal.GANG_MOVED
    assert "its gang moves: aws r1 cannot give 1 of 4 GPUs, and gce r2 can give all" in step.reason
    gone = [replace(m, removal=Removal.GANG_MOVED) for m in gang]
    assert {key for _, key in rents(decided(4, *gone, cooling=(HERE,)))} == {THERE.key}


def test_it_stays_when_nowhere_is_room_for_all() -> None:
    gang = (machine(Phase.BOOTING), machine(Phase.BOOTING, index=2))
    found = decided(4, *gang, cooling=(HERE,), offers=(HERE,))
    assert removed(found) == set()
    assert "sold out, said the cloud" in found.warnings[0].reason
    small = decided(4, *gang, cooling=(HERE,), max_usd_per_hour=11.0)
    assert removed(small) == set(), "four there would cost 12"
    assert small.warnings[0].code is WarningCode.PLACE
    assert "sold out, said the cloud" in small.warnings[0].reason


@pytest.mark.parametrize("at_work", [Phase.READY, Phase.TESTING])
def test_one_at_work_holds_it(at_work: Phase) -> None:
    gang = (machine(at_work), machine(Phase.BOOTING, index=2))
    found = decided(4, *gang, cooling=(HERE,), jobs={"h100-1": "7"})
    assert (removed(found), rents(found)) == (set(), [])
    assert "sold out, said the cloud" in found.warnings[0].reason
    assert "--spread" in found.warnings[0].cure


def test_the_next_rung_in_the_same_place_comes_first() -> None:
    next_offer = replace(HERE, zone="r1b", usd_per_hour=2.9)
    found = decided(3, machine(Phase.BOOTING), cooling=(HERE,), offers=(HERE, next_offer, THERE))
    assert rents(found) == [("h100-2", next_offer.key), ("h100-3", next_offer.key)]


def test_what_moved_away_does_not_come_back() -> None:
    leaving = machine(Phase.DRAINING, removal=Removal.GANG_MOVED)
    found = decided(1, leaving)
    assert not [step for step in found.steps if isinstance(step, p.CancelRemoval)]


def test_nor_is_one_kept_that_is_elsewhere() -> None:
    leaving = machine(Phase.DRAINING, index=2, removal=Removal.SCALE_DOWN, offer=THERE, provider="gce")
    for spread in (False, True):
        found = decided(2, machine(Phase.READY), leaving, spread=spread)
        assert bool([step for step in found.steps if isinstance(step, p.CancelRemoval)]) is spread


def test_machines_without_gpus_are_no_gang() -> None:
    pool = replace(POOL, gpu="", gpus_per_node=0, gpus_per_node_max=None)
    offer = replace(THERE, gpu="", gpus=0, gpu_memory_gib=0, usd_per_hour=0.1)
    there = machine(Phase.READY, offer=replace(HERE, gpu="", gpus=0))
    assert rents(decided(3, there, offers=(offer,), pool=pool)) == [("h100-2", offer.key), ("h100-3", offer.key)]


def test_it_stays_until_no_create_call_of_it_is_in_doubt() -> None:
    """Otherwise one that is made late would be one too many."""
    calling = machine(Phase.LAUNCHING, launch_called_at=ago(5))
    found = decided(2, calling, cooling=[HERE])
    assert not removed(found)
    assert not rents(found)
    assert found.warnings[0].code is WarningCode.PLACE
    assert "h100-1" in found.warnings[0].reason
    booting = replace(calling, phase=Phase.BOOTING, instance_id="i-1")
    assert removed(decided(2, booting, cooling=[HERE])) == {booting.name}
