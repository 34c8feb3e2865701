"""Pods and virtual machines in one pool: what is rented is what the pool allows, and nothing cheaper would do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshd.model import plan as p
from meshd.model.cooldown import Cooldown, CooldownCause, CooldownKey
from meshd.model.desired import Desired, PodPolicy, Policy, Pool, Target
from meshd.model.observed import Fresh
from meshd.plan.alternatives import OfferRule, considered
from meshd.plan.cover import Need
from meshd.plan.gang import group_of
from meshd.plan.planner import plan
from meshd.provider_api import Offer
from tests.property.catalogues import PLACES, catalogues, every, gpus_of
from tests.tiers import bounded
from tests.unit.worlds import NOW, snapshot

POLICIES: Sequence[PodPolicy] = ("never", "allow", "only")
PODS = "a"
"""The provider of the catalogues that rents pods; "b" rents virtual machines."""


def desired_of(own: PodPolicy, target: Target, *cooldowns: CooldownKey) -> Desired:
    pool = Pool(
        "h100", "h100", 1, 4, tuple(PLACES), gpus_per_node_max=8, spot="prefer" if target.spot else "never",
        pods=own, pod_providers=frozenset({PODS}),
    )  # fmt: skip
    found = {key: Cooldown(key, NOW + timedelta(hours=1), "it failed", 1, CooldownCause.BOOTS) for key in cooldowns}
    return Desired("lab", {"h100": pool}, {"h100": target}, Policy(pod_limits={PODS: ""}), found)


def rented(desired: Desired, offers: Sequence[Offer]) -> list[Offer]:
    """What the planner rents for an empty pool."""
    seen = snapshot(offers={name: Fresh(tuple(o for o in offers if o.provider == name), NOW) for name in PLACES})
    return [step.offer for step in plan(desired, [], seen, NOW).steps if isinstance(step, p.RequestMachine)]


def allowed(offers: Sequence[Offer], policy: PodPolicy, *, spot: bool) -> list[Offer]:
    kinds = {"never": (False,), "allow": (False, True), "only": (True,)}[policy]
    return [o for o in offers if o.gpus and (o.provider == PODS) in kinds and (spot or not o.spot)]


Objective = tuple[int, float, int, int]


def objective(chosen: Sequence[Offer], *, prefer_spot: bool) -> Objective:
    on_demand = sum(one.gpus for one in chosen if not one.spot) if prefer_spot else 0
    return on_demand, sum(o.usd_per_hour for o in chosen), len(chosen), sum(PLACES[o.provider] for o in chosen)


@settings(max_examples=bounded(150, 10000), deadline=None)
@given(
    catalogues(),
    st.sampled_from(POLICIES),
    st.sampled_from(("", *POLICIES)),
    st.integers(1, 9),
    st.booleans(),
    st.booleans(),
)
def test_what_is_rented_is_allowed_and_nothing_allowed_is_better(
    offers: list[Offer], own: PodPolicy, said: PodPolicy, gpus: int, spread: bool, spot: bool
) -> None:
    target = Target("h100", gpus, pods=said, spread=spread, spot="prefer" if spot else "", at=NOW)
    found = rented(desired_of(own, target), offers)
    fit = allowed(offers, said or own, spot=spot)
    assert set(found) <= set(fit)
    if not spread:
        assert len({group_of(one) for one in found}) <= 1, "a gang is in one place, so it has pods alone, or none"
    need = Need(gpus, 4)
    together = [c for c in every(fit, need) if spread or len({group_of(one) for one in c}) <= 1]
    whole = [chosen for chosen in together if gpus_of(chosen) >= gpus]
    best = whole or [c for c in together if gpus_of(c) == max(map(gpus_of, together))]
    assert objective(found, prefer_spot=spot) == min(objective(chosen, prefer_spot=spot) for chosen in best)


@settings(max_examples=bounded(80, 4000), deadline=None)
@given(catalogues(), st.sampled_from(POLICIES), st.integers(1, 9), st.sampled_from(list(PLACES)))
def test_one_kind_that_fails_leaves_the_other_alone(
    offers: list[Offer], own: PodPolicy, gpus: int, failing: str
) -> None:
    """While a provider cools down, the pool rents as if that provider had no offers."""
    target = Target("h100", gpus, spread=True, at=NOW)
    without = rented(desired_of(own, target), [o for o in offers if o.provider != failing])
    assert rented(desired_of(own, target, CooldownKey.of_place("h100", failing)), offers) == without


@settings(max_examples=bounded(80, 4000), deadline=None)
@given(catalogues(), st.sampled_from(POLICIES))
def test_every_refused_offer_is_explained(offers: list[Offer], policy: PodPolicy) -> None:
    pool, target = desired_of(policy, Target("h100", 1)).pools["h100"], Target("h100", 1)
    fit = {o.key for o in allowed(offers, policy, spot=False)}
    rows = [row for row in considered(offers, pool, target, {}, set(), NOW) if row[0].gpus and not row[0].spot]
    for offer, rule, note in rows:
        assert (rule is OfferRule.MISFIT) is (offer.key not in fit)
        assert note.startswith(("is a pod", "is no pod")) is (offer.key not in fit)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_pod_and_a_machine_that_cost_the_same(policy: PodPolicy) -> None:
    """The order of the providers decides, as between any two clouds."""
    pod = Offer(PODS, "r1", "", "t", "h100", 1, 80, 8, 8192, 2.0)  # type: ignore[arg-type]
    vm = replace(pod, provider="b")  # type: ignore[arg-type]
    assert rented(desired_of(policy, Target("h100", 1)), [vm, pod]) == [vm if policy == "never" else pod]
