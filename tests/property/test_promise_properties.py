"""Properties of promises: every offer that is rented holds the pool's, and their order does not matter."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from meshd.model.desired import Pool, Promise, Target
from meshd.plan.placement import usable
from meshd.plan.promise import Fixed, by_catalogue, settled
from meshd.provider_api import Offer
from tests.unit.worlds import NOW, OFFER

POOL = Pool("h100", "h100", 1, 8, ("aws", "lambda"), gpus_per_node_max=8)
SHAPES = st.tuples(st.integers(1, 256), st.integers(512, 1 << 21), st.sampled_from(["aws", "lambda", "gce"]))


def _offers(shapes: list[tuple[int, int, str]]) -> list[Offer]:
    return [
        replace(OFFER, instance_type=f"g.{i}", vcpus=cpus, memory_mib=memory, provider=who)
        for i, (cpus, memory, who) in enumerate(shapes)
    ]


FIXED = st.builds(Fixed, st.none() | st.integers(1, 300), st.none() | st.integers(512, 1 << 21))


@given(st.lists(SHAPES, max_size=12), FIXED, st.floats(0.51, 1.0), st.randoms())
def test_every_offer_that_is_rented_holds_it_in_any_order(
    shapes: list[tuple[int, int, str]], fixed: Fixed, fraction: float, rng: object
) -> None:
    pool = replace(POOL, cpus_min=fixed.cpus or 1, memory_min_mib=fixed.memory_mib or 1024)
    offers = _offers(shapes)
    found = by_catalogue(offers, pool, fixed, fraction)
    shuffled = offers[:]
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    assert by_catalogue(shuffled, pool, fixed, fraction) == found
    promise = found.promise if found else None
    rented = usable(offers, replace(pool, promise=promise), Target("h100", 1), {}, NOW)
    assert len(rented) == (found.offers if found else 0), "nothing that suits is lost by its own promise"
    for offer in rented:
        assert promise is not None
        assert (offer.vcpus >= promise.cpus, offer.memory_mib >= promise.memory_mib) == (True, True)
        assert offer.gpus >= promise.gpus


PROMISES = st.builds(Promise, st.integers(1, 4), st.integers(1, 4), st.integers(0, 2))


@given(PROMISES | st.none(), PROMISES | st.none(), st.booleans(), st.booleans())
def test_a_promise_never_changes_in_use_nor_is_lost(
    in_force: Promise | None, found: Promise | None, in_use: bool, may_rise: bool
) -> None:
    then = settled(in_force, found, in_use=in_use, may_rise=may_rise)
    assert then in (in_force, found)
    if in_force is not None:
        assert then is not None
        assert then == in_force or not in_use
        assert settled(then, found, in_use=in_use, may_rise=may_rise) == then, "it settles at once"
