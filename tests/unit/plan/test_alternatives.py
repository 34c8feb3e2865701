"""The offers that a pool considered, and why each was not chosen."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

from meshd.codes import WarningCode
from meshd.daemon.head_api.plan_views import alternatives
from meshd.model.cooldown import Cooldown, CooldownKey
from meshd.model.desired import Desired, Pool, Target
from meshd.model.machine import Phase
from meshd.model.observed import Fresh
from meshd.model.plan import RequestMachine
from meshd.plan.alternatives import GOOD_MAX, OTHERS_MAX, OfferRule, considered
from meshd.plan.planner import plan
from meshd.provider_api import Offer, ProviderName
from tests.unit.worlds import NOW, OFFER, instance, machine, snapshot

POOL = Pool("h100", "h100", 1, 8, ("aws", "gce"), gpus_per_node_max=8, max_usd_per_gpu_hour=4)
TARGET = Target("h100", 4)


def offer(zone: str, usd: float, **changes: object) -> Offer:
    return replace(OFFER, zone=zone, region=zone[:-1], usd_per_hour=usd, **changes)  # type: ignore[arg-type]


def looked(
    offers: list[Offer],
    *chosen: Offer,
    target: Target = TARGET,
    cooldowns: dict[CooldownKey, Cooldown] | None = None,
    pool: Pool = POOL,
) -> dict[str, str]:
    keys = {one.key for one in chosen}
    return {o.zone: note for o, _, note in considered(offers, pool, target, cooldowns or {}, keys, NOW)}


def test_best_first_then_the_nearest_that_would_not_do() -> None:
    taken, dearer, dear = offer("r1a", 2), offer("r1b", 3), offer("r1c", 9)
    small, other = offer("r1d", 1, memory_mib=1), offer("r1e", 1, gpu="l4")
    assert looked([dear, other, small, dearer, taken], taken) == {
        "r1a": "", "r1b": "", "r1d": "has 1 MiB, less than 1024",
        "r1c": "costs 9.00 USD per GPU-hour, over the limit of 4.00",
    }  # fmt: skip
    assert list(looked([dear, small, dearer, taken], taken)) == ["r1a", "r1b", "r1d", "r1c"]


def test_what_cools_down_says_until_when() -> None:
    cold = offer("r1a", 2)
    cooldown = Cooldown(CooldownKey.of_offer(cold), NOW + timedelta(minutes=5), "sold out")
    assert looked([cold], cooldowns={cooldown.key: cooldown}) == {"r1a": "cooling down until 12:05:00 UTC: sold out"}


def test_machines_without_gpus_are_compared_with_their_like() -> None:
    pool = Pool("cpu", "", 0, 8, ("aws",), cpus_min=16)
    bare = offer("r1a", 0.5, gpu="", gpus=0)
    assert looked([bare, offer("r1b", 2)], target=Target("cpu", 1), pool=pool) == {"r1a": "has 8 CPUs, fewer than 16"}


def test_all_that_is_taken_is_shown_and_not_too_much_else() -> None:
    many = [offer(f"r{i}a", 1 + i / 1000, provider=ProviderName("gce")) for i in range(3000)]
    many += [offer(f"x{i}a", 50 + i, instance_type=f"t{i}") for i in range(2000)]
    began = time.process_time()
    notes = looked(many, many[40], many[2000], target=replace(TARGET, spread=True))
    assert time.process_time() - began < 2.0  # some 50 ms of CPU
    assert len(notes) == 2 + GOOD_MAX + OTHERS_MAX
    assert notes["r40a"] == notes["r2000a"] == ""


def test_one_that_will_not_do_is_shown_for_one_zone_only() -> None:
    dear, other = [offer(zone, 9) for zone in ("r1a", "r1b", "r1c")], offer("r1d", 2, memory_mib=1)
    assert list(looked([*dear, other])) == ["r1d", "r1a"]
    cold = {
        CooldownKey.of_offer(o): Cooldown(CooldownKey.of_offer(o), NOW + timedelta(minutes=5), "sold out") for o in dear
    }
    fit = replace(POOL, max_usd_per_gpu_hour=None)
    assert list(looked(dear, cooldowns=cold, pool=fit)) == ["r1a", "r1b", "r1c"], "each cools down for itself"


# -- the rule that decided --------------------------------------------------------------------------------------------


def rules(
    offers: list[Offer], gpus: int = 1, *, spent: tuple[Offer, ...] = (), pool: Pool = POOL, **asked: Any
) -> dict[str, str]:
    """What `meshctl plan` shows of each offer, through the planner and the view."""
    machines = [machine(Phase.READY, index=i + 1, offer=one) for i, one in enumerate(spent)]
    target = Target("h100", gpus, **asked)
    desired = Desired("lab", {"h100": pool}, {"h100": target})
    seen = snapshot(instances={"aws": Fresh(tuple(instance(m) for m in machines), NOW)},
                    offers={"aws": Fresh(tuple(offers), NOW)})  # fmt: skip
    found = plan(desired, machines, seen, NOW)
    chosen = {step.offer.key for step in found.steps if isinstance(step, RequestMachine)}
    return {row.offer: row.rule for row in alternatives(["h100"], chosen, seen, desired, NOW, machines)}


CHEAP, SPOT = offer("r1a", 2), offer("r1b", 3, spot=True)


def test_spot_that_is_preferred_is_not_called_cheaper() -> None:
    assert rules([CHEAP, SPOT], spot="prefer") == {CHEAP.key: OfferRule.SPOT, SPOT.key: OfferRule.TAKEN}


def test_spot_by_price_alone_is_dearer_or_cheaper_like_any_other() -> None:
    assert rules([CHEAP, SPOT], spot="if_cheaper") == {CHEAP.key: OfferRule.TAKEN, SPOT.key: OfferRule.PRICE}
    low = replace(SPOT, usd_per_hour=1.0)
    assert rules([CHEAP, low], spot="if_cheaper") == {CHEAP.key: OfferRule.PRICE, low.key: OfferRule.TAKEN}
    equal = replace(SPOT, usd_per_hour=CHEAP.usd_per_hour)
    assert rules([CHEAP, equal], spot="if_cheaper")[CHEAP.key] == OfferRule.TAKEN, "no risk for nothing"


def test_price_fewest_machines_and_order() -> None:
    four, dear = offer("r1c", 7, gpus=4, instance_type="g.4"), offer("r1d", 8.5, gpus=4, instance_type="g.4b")
    assert rules([CHEAP, four, dear], 4) == {
        CHEAP.key: OfferRule.PRICE,
        four.key: OfferRule.TAKEN,
        dear.key: OfferRule.PRICE,
    }
    eight = replace(four, usd_per_hour=8.0)
    assert rules([CHEAP, eight], 4) == {CHEAP.key: OfferRule.FEWEST, eight.key: OfferRule.TAKEN}
    other = replace(CHEAP, provider=ProviderName("gce"))
    assert rules([CHEAP, other], spread=True) == {CHEAP.key: OfferRule.TAKEN, other.key: OfferRule.ORDER}
    twin = offer("r1z", 2)
    assert rules([CHEAP, twin]) == {CHEAP.key: OfferRule.TAKEN, twin.key: OfferRule.NAME}


def test_limits_are_told_where_they_decide() -> None:
    assert rules([CHEAP, SPOT], 2, max_usd_per_hour=3.0, spot="never")[CHEAP.key] == OfferRule.TAKEN
    assert rules([CHEAP], 4, spent=(CHEAP, CHEAP), max_usd_per_hour=3.5) == {CHEAP.key: OfferRule.LIMIT}
    eight = offer("r1c", 9, gpus=8, instance_type="g.8")
    assert rules([CHEAP, eight], 2, overshoot_max_gpus=1)[eight.key] == OfferRule.OVERSHOOT
    assert rules([CHEAP, eight], 8, pool=replace(POOL, max_nodes=1))[CHEAP.key] == OfferRule.SLOTS
    assert rules([CHEAP, offer("r2a", 1)], 2, spent=(CHEAP,))[offer("r2a", 1).key] == OfferRule.PLACE


def test_money_that_is_spent_already_is_not_called_to_be_had() -> None:
    there = machine(Phase.READY, offer=replace(CHEAP, usd_per_hour=9.3, gpus=2))
    desired = Desired("lab", {"h100": POOL}, {"h100": Target("h100", 4, max_usd_per_hour=5.0)})
    seen = snapshot(instances={"aws": Fresh((instance(there),), NOW)}, offers={"aws": Fresh((CHEAP,), NOW)})
    found = plan(desired, [there], seen, NOW)
    (warning,) = found.warnings
    assert not [step for step in found.steps if isinstance(step, RequestMachine)]
    assert warning.code is WarningCode.OVER_LIMIT
    assert "9.30" in warning.reason and "5.00" in warning.reason
