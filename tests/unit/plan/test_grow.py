"""What a pool rents when GPUs are missing: shapes, slots, money, spot; and the warnings when it cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from meshd.codes import WarningCode
from meshd.model import plan as p
from meshd.model.cooldown import Cooldown, CooldownCause, CooldownKey
from meshd.model.desired import Desired, Pool, Target
from meshd.model.machine import Machine, Phase, Removal
from meshd.model.observed import Fresh
from meshd.plan.placement import misses, why_none
from meshd.plan.planner import plan
from meshd.provider_api import Offer
from tests.unit.worlds import GONE_DARK, NOW, OFFER, ago, instance, machine, node, slurm, snapshot

POOL = Pool("h100", "h100", 1, 6, ("aws", "gce"), gpus_per_node_max=8)
ONE = OFFER
FOUR = replace(OFFER, gpus=4, instance_type="g.4", usd_per_hour=7.0)
EIGHT = replace(OFFER, gpus=8, instance_type="g.8", usd_per_hour=13.0)
ALL = (ONE, FOUR, EIGHT)


def decided(
    gpus: int | None, *machines: Machine, offers: Sequence[Offer] = ALL, pool: Pool = POOL, dark: bool = False,
    expired: Cooldown | None = None, **target: Any,
) -> p.Plan:  # fmt: skip
    seen = snapshot(
        instances={"aws": Fresh(tuple(instance(m) for m in machines if m.instance_id), NOW)},
        offers={"aws": Fresh(tuple(offers), NOW)},
        slurm=GONE_DARK if dark else Fresh(slurm(*(node(m) for m in machines if m.tailnet_ip)), NOW),
    )
    targets = {} if gpus is None else {"h100": Target("h100", gpus, **target)}
    remembered = {expired.key: expired} if expired else {}
    return plan(Desired("lab", {"h100": pool}, targets, expired_cooldowns=remembered), machines, seen, NOW)


def rents(found: p.Plan) -> list[tuple[str, int]]:
    return [(step.subject, step.offer.gpus) for step in found.steps if isinstance(step, p.RequestMachine)]


def test_the_cheapest_machines_that_come_to_the_number() -> None:
    assert rents(decided(13)) == [("h100-1", 8), ("h100-2", 4), ("h100-3", 1)]
    assert rents(decided(7)) == [("h100-1", 8)], "one too many, and cheaper"
    assert rents(decided(7, overshoot_max_gpus=0)) == [("h100-1", 4), ("h100-2", 1), ("h100-3", 1), ("h100-4", 1)]
    assert rents(decided(7, pool=replace(POOL, overshoot_max_gpus=0), overshoot_max_gpus=1)) == [("h100-1", 8)]


def test_exactly_so_many_gpus_in_each() -> None:
    assert rents(decided(6, gpus_per_node=4)) == [("h100-1", 4), ("h100-2", 4)]


def test_machines_that_are_there_count_with_their_own_gpus() -> None:
    big = machine(Phase.READY, offer=EIGHT)
    assert rents(decided(9, big)) == [("h100-2", 1)]
    assert decided(8, big).steps == ()
    assert decided(5, big).steps == (), "a whole machine would be too much to take away"
    assert [s.subject for s in decided(4, big, machine(Phase.READY, index=2, offer=FOUR)).steps] == [
        "lab-h100-1-abcde1"
    ]


def test_few_slots_make_larger_machines() -> None:
    assert rents(decided(6, pool=replace(POOL, max_nodes=2), offers=(ONE, EIGHT))) == [("h100-1", 8)]
    found = decided(40, pool=replace(POOL, max_nodes=2))
    assert rents(found) == [("h100-1", 8), ("h100-2", 8)]
    assert found.warnings[0].reason.startswith("40 GPUs wanted, 16 can be had: the pool has at most 2 nodes")


def test_a_slot_that_is_about_to_be_free_is_waited_for() -> None:
    """Otherwise something dearer would be rented only because it needs fewer slots."""
    pool = replace(POOL, max_nodes=3)
    leaving = machine(Phase.BOOTING, removal=Removal.GANG_MOVED)
    offers = (ONE, replace(FOUR, usd_per_hour=9.0))
    assert rents(decided(3, leaving, pool=pool, offers=offers)) == [("h100-2", 1), ("h100-3", 1)]
    draining = machine(Phase.DRAINING, removal=Removal.BY_USER)
    assert rents(decided(3, draining, pool=pool, offers=offers)) == [("h100-2", 1), ("h100-3", 1)]
    unknown = decided(3, draining, pool=pool, offers=offers, dark=True)
    assert rents(unknown) == [("h100-2", 4)], "it may wait for a job, for days"


def test_the_limit_in_all_counts_what_is_there() -> None:
    there = machine(Phase.READY, offer=EIGHT)
    found = decided(16, there, max_usd_per_hour=20.5)
    assert rents(found) == [("h100-2", 4)]
    assert found.warnings[0].code is WarningCode.LIMIT_IN_ALL
    assert "--max-total" in found.warnings[0].cure
    pool = replace(POOL, max_usd_per_hour=20.5)
    assert "pools.h100.max_usd_per_hour" in decided(16, there, pool=pool).warnings[0].cure
    lost = machine(Phase.LOST, index=2, offer=EIGHT)
    assert rents(decided(8, lost, max_usd_per_hour=20.5)) == [("h100-1", 4)], "it costs until it is gone"


def test_money_that_is_about_to_be_free_is_waited_for() -> None:
    going = machine(Phase.TERMINATING, offer=EIGHT)
    found = decided(8, going, max_usd_per_hour=15.0)
    assert (rents(found), found.warnings) == ([], ())
    assert rents(decided(8, going, max_usd_per_hour=26.0)) == [("h100-1", 8)]


def test_an_overshoot_that_is_not_allowed_is_told() -> None:
    found = decided(7, offers=(EIGHT, FOUR), overshoot_max_gpus=0)
    assert rents(found) == [("h100-1", 4)]
    assert found.warnings[0].code is WarningCode.OVERSHOOT


def test_limits_that_only_together_are_too_much() -> None:
    found = decided(9, pool=replace(POOL, max_nodes=2), offers=(FOUR, EIGHT), overshoot_max_gpus=0)
    assert rents(found) == [("h100-1", 8)]
    assert found.warnings


def test_spot_first_then_what_is_left() -> None:
    spot = replace(FOUR, spot=True, usd_per_hour=9.0)
    assert rents(decided(4, offers=(FOUR, spot), spot="prefer"))
    assert decided(4, offers=(FOUR, spot), spot="prefer").steps[0].offer.spot  # type: ignore[attr-defined]
    assert not decided(4, offers=(FOUR, spot)).steps[0].offer.spot  # type: ignore[attr-defined]
    assert not decided(4, offers=(FOUR, spot), spot="if_cheaper").steps[0].offer.spot  # type: ignore[attr-defined]
    cheaper, equal = replace(spot, usd_per_hour=6.0), replace(spot, usd_per_hour=FOUR.usd_per_hour, zone="r1a-first")
    assert decided(4, offers=(FOUR, cheaper), spot="if_cheaper").steps[0].offer.spot  # type: ignore[attr-defined]
    assert not decided(4, offers=(equal, FOUR), spot="if_cheaper").steps[0].offer.spot  # type: ignore[attr-defined]
    mixed = decided(8, offers=(FOUR, spot), spot="prefer", max_usd_per_hour=16.0)
    assert sorted(step.offer.spot for step in mixed.steps) == [False, True]  # type: ignore[attr-defined]
    assert decided(4, offers=(FOUR,), spot="only").steps == ()


def test_a_pools_least_is_its_target_until_somebody_says_another() -> None:
    pool = replace(POOL, min_gpus=4)
    assert rents(decided(None, pool=pool)) == [("h100-1", 4)]
    assert rents(decided(1, pool=pool)) == [("h100-1", 1)]
    held = [machine(Phase.READY, index=index, offer=FOUR) for index in (1, 2)]
    assert decided(None, *held, pool=pool).steps == (), "nobody said that they are too many"


# -- the breaker, half open -------------------------------------------------------------------------------------------

EXPIRED = Cooldown(CooldownKey("pool:h100"), ago(30), "3 machines failed one after another", cause=CooldownCause.BOOTS)


def test_after_the_breaker_one_machine_is_tried_alone() -> None:
    found = decided(13, expired=EXPIRED)
    assert rents(found) == [("h100-1", 8)]
    assert "tried alone" in found.steps[0].reason


@pytest.mark.parametrize("phase", [Phase.REQUESTED, Phase.BOOTING, Phase.TESTING])
def test_the_others_wait_for_it(phase: Phase) -> None:
    found = decided(13, machine(phase, offer=EIGHT, created_at=ago(20)), expired=EXPIRED)
    assert rents(found) == []
    assert found.warnings[0].code is WarningCode.TRIED_ALONE
    assert "h100-1" in found.warnings[0].reason


def test_they_follow_once_it_is_ready() -> None:
    ready = machine(Phase.READY, offer=EIGHT, created_at=ago(20), ready_at=ago(5))
    assert rents(decided(13, ready, expired=EXPIRED)) == [("h100-2", 4), ("h100-3", 1)]


def test_one_from_before_proves_nothing() -> None:
    before = machine(Phase.READY, offer=ONE, ready_at=ago(3000))
    assert len(rents(decided(13, before, expired=EXPIRED))) == 1


OFFER_EXPIRED = Cooldown(
    CooldownKey.of_offer(ONE), ago(30), "2 machines failed one after another", cause=CooldownCause.BOOTS
)
ONES = (ONE, replace(EIGHT, usd_per_hour=99.0))


def test_after_an_offers_breaker_one_machine_of_it_is_tried_alone() -> None:
    found = decided(3, offers=ONES, expired=OFFER_EXPIRED)
    assert rents(found) == [("h100-1", 1)]
    assert "tried alone" in found.steps[0].reason
    assert found.warnings[0].code is WarningCode.TRIED_ALONE
    assert ONE.key in found.warnings[0].reason


def test_other_offers_of_the_cover_do_not_wait_for_it() -> None:
    pool = replace(POOL, overshoot_max_gpus=0)
    assert rents(decided(14, pool=pool, expired=OFFER_EXPIRED)) == [
        ("h100-1", 8),
        ("h100-2", 4),
        ("h100-3", 1),
    ]


@pytest.mark.parametrize("phase", [Phase.REQUESTED, Phase.BOOTING, Phase.TESTING])
def test_more_of_an_offer_wait_for_the_one_that_is_tried(phase: Phase) -> None:
    found = decided(3, machine(phase, created_at=ago(20)), offers=ONES, expired=OFFER_EXPIRED)
    assert rents(found) == []
    assert found.warnings[0].code is WarningCode.TRIED_ALONE
    assert "h100-1" in found.warnings[0].reason


def test_they_follow_once_one_of_the_same_offer_is_ready() -> None:
    ready = machine(Phase.READY, created_at=ago(20), ready_at=ago(5))
    assert rents(decided(3, ready, offers=ONES, expired=OFFER_EXPIRED)) == [("h100-2", 1), ("h100-3", 1)]
    other = replace(ready, offer=FOUR)
    assert rents(decided(7, other, offers=ONES, expired=OFFER_EXPIRED)) == [("h100-2", 1)]


# -- why not ----------------------------------------------------------------------------------------------------------


def test_all_that_speaks_against_an_offer_with_the_setting_to_change() -> None:
    pool = replace(POOL, regions=("r9",), arch="arm64", gpu_memory_min_gib=100, max_usd_per_gpu_hour=1.0)
    target = Target("h100", 1, gpu="h100-pcie", regions=("r8",), spot="only", provider="gce")
    found = {miss.cure for miss in misses(ONE, pool, target)}
    assert found == {
        "--gpu", "pools.h100.arch", "pools.h100.gpu_memory_min_gib", "pools.h100.regions", "--region", "--spot",
        "pools.h100.max_usd_per_gpu_hour", "--provider",
    }  # fmt: skip
    said = Target("h100", 1, max_usd_per_gpu_hour=0.5)
    assert [miss.cure for miss in misses(ONE, POOL, said)] == ["--max-price"]


def test_a_zone_is_as_good_as_its_region() -> None:
    for places in (("r1",), ("r1a",), ("r7", "r1a")):
        assert rents(decided(1, pool=replace(POOL, regions=places)))
        assert rents(decided(1, regions=places))
    assert not rents(decided(1, regions=("r1b",)))


def test_the_closest_miss_comes_first() -> None:
    pool = replace(POOL, max_usd_per_gpu_hour=1.0, regions=("r2",))
    near = replace(ONE, region="r2", zone="r2a", usd_per_hour=5.0)
    text = why_none([ONE, near], pool, Target("h100", 1), {}, NOW)
    assert text.startswith(near.key)
    assert "over the limit of 1.00 (pools.h100.max_usd_per_gpu_hour); aws/r1a" in text


def test_what_is_left_alone_for_a_moment_keeps_its_rank() -> None:
    """A cloud that asked for a pause still gets the order, which waits instead of going to a dearer offer."""
    until = NOW + timedelta(seconds=10)
    pause = Cooldown(CooldownKey("provider:aws"), until, "slow down", 0, CooldownCause.PAUSE)
    no = replace(pause, strikes=1, cause=CooldownCause.REFUSED)
    seen = snapshot(offers={"aws": Fresh(ALL, NOW)})
    for cooldown, count in ((pause, 1), (no, 0)):
        desired = Desired("lab", {"h100": POOL}, {"h100": Target("h100", 8)}, cooldowns={cooldown.key: cooldown})
        assert len(rents(plan(desired, [], seen, NOW))) == count
