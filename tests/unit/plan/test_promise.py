"""What a pool promises of each slot, and which machine holds it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshd.errors import JoinRefused
from meshd.model.desired import Pool, Promise, Target
from meshd.model.hardware import NodeShape
from meshd.plan.admission import check_facts
from meshd.plan.explanation import constraints
from meshd.plan.placement import misses
from meshd.plan.promise import Fixed, by_catalogue, least_of, settled, shortfall, suiting, words
from tests.unit.worlds import FACTS, OFFER

POOL = Pool("h100", "h100", 1, 8, ("aws", "lambda"))
SMALL = replace(OFFER, instance_type="g.small", vcpus=26, memory_mib=204_800, zone="r1b")
LARGE = replace(OFFER, instance_type="g.large", vcpus=52, memory_mib=250_000)
PROMISE = Promise(26, 194_560, 1)
NONE = Fixed()


def test_it_is_the_least_of_what_suits() -> None:
    found = by_catalogue([LARGE, SMALL], POOL, NONE, 0.95)
    assert found is not None
    assert (found.promise, found.cpus_of, found.memory_of) == (PROMISE, SMALL, SMALL)
    assert (found.offers, found.instance_types, found.far_below) == (2, 2, ())


def test_fewest_cpus_and_least_memory_may_be_of_two_offers() -> None:
    other = replace(LARGE, vcpus=8, instance_type="g.odd")
    found = by_catalogue([SMALL, other], POOL, NONE, 0.95)
    assert found is not None
    assert (found.promise.cpus, found.promise.memory_mib) == (8, 194_560)
    assert (found.cpus_of, found.memory_of) == (other, SMALL)


def test_settings_win() -> None:
    found = by_catalogue([LARGE, SMALL], replace(POOL, cpus_min=16), Fixed(16, None), 0.95)
    assert found is not None and found.promise == Promise(16, 194_560, 1)
    assert found.cpus_of is None
    found = by_catalogue([LARGE], POOL, Fixed(None, 250_000), 0.95)
    assert found is not None and found.promise == Promise(52, 250_000, 1), "it is what the user wrote, not a part of it"


@pytest.mark.parametrize(
    "other",
    [
        replace(SMALL, gpu="a100"), replace(SMALL, arch="arm64"), replace(SMALL, spot=True), replace(SMALL, gpus=2),
        replace(SMALL, provider="gce"), replace(SMALL, usd_per_hour=9.0), replace(SMALL, gpu_memory_gib=40),
    ],
)  # fmt: skip
def test_what_does_not_suit_does_not_count(other: object) -> None:
    pool = replace(POOL, max_usd_per_gpu_hour=5.0, gpu_memory_min_gib=80)
    found = by_catalogue([LARGE, other], pool, NONE, 0.95)  # type: ignore[list-item]
    assert found is not None and found.promise.cpus == 52
    assert by_catalogue([other], pool, NONE, 0.95) is None  # type: ignore[list-item]


def test_free_capacity_and_the_promise_itself_do_not_count() -> None:
    pool = replace(POOL, promise=Promise(999, 999_999, 1))
    assert suiting([replace(SMALL, available=False)], pool) == [replace(SMALL, available=False)]


def test_one_odd_offer_that_makes_it_small_is_found() -> None:
    tiny = replace(SMALL, vcpus=4, memory_mib=16_384, instance_type="g.tiny")
    found = by_catalogue([tiny, LARGE, SMALL], POOL, NONE, 0.95)
    assert found is not None and found.far_below == (tiny,)
    assert (found.usual_cpus, found.usual_memory_mib) == (26, 204_800)
    fixed = by_catalogue([tiny, LARGE, SMALL], POOL, Fixed(4, 16_000), 0.95)
    assert fixed is not None and not fixed.far_below, "the settings say so"


LESS, MORE = Promise(8, 65_536, 1), Promise(52, 237_500, 1)


@pytest.mark.parametrize(
    ("in_force", "found", "in_use", "may_rise", "then"),
    [
        (None, PROMISE, True, False, PROMISE),
        (None, None, False, True, None),
        (PROMISE, None, False, True, PROMISE),
        (PROMISE, LESS, True, True, PROMISE),
        (PROMISE, LESS, False, False, LESS),
        (PROMISE, MORE, False, False, PROMISE),
        (PROMISE, MORE, False, True, MORE),
        (PROMISE, MORE, True, True, PROMISE),
        (PROMISE, Promise(8, 237_500, 1), False, False, PROMISE),
    ],
)
def test_when_it_changes(
    in_force: Promise | None, found: Promise | None, in_use: bool, may_rise: bool, then: Promise | None
) -> None:
    assert settled(in_force, found, in_use=in_use, may_rise=may_rise) == then


def test_an_offer_that_does_not_hold_it_is_not_rented() -> None:
    pool, wanted = replace(POOL, promise=PROMISE), Target("h100", 1)
    assert list(misses(SMALL, pool, wanted)) == []
    few = list(misses(replace(SMALL, vcpus=25), pool, wanted))
    assert [(miss.cure, "26" in miss.text) for miss in few] == [("pools.h100.cpus_min", True)]
    little = list(misses(replace(SMALL, memory_mib=100_000), pool, wanted))
    assert [miss.cure for miss in little] == ["pools.h100.memory_min_mib"]
    assert [miss.cure for miss in misses(replace(SMALL, vcpus=1), replace(pool, cpus_min=2), wanted)] == [
        "pools.h100.cpus_min"
    ], "said once"


@pytest.mark.parametrize(
    ("vendor_mib", "seen_mib"),
    [
        (1024, 957),  # t2.micro
        (16_384, 15_780),  # c7i.2xlarge
        (1_916_928, 1_859_020),  # a3-highgpu-8g, by the formula of Google's Slurm scripts
        (2_097_152, 2_063_600),  # p5.48xlarge
    ],
)
def test_real_machines_hold_what_their_offer_promises(vendor_mib: int, seen_mib: int) -> None:
    found = by_catalogue([replace(OFFER, memory_mib=vendor_mib)], POOL, NONE, 0.95)
    assert found is not None
    shape = NodeShape(8, 1, 1, 4, 2, seen_mib)
    assert "MiB" not in shortfall(replace(FACTS, shape=shape), found.promise)


def test_a_machine_that_does_not_hold_it_may_not_join() -> None:
    cpu = replace(FACTS, shape=NodeShape(8, 1, 1, 8, 1, 65_536))

    def join(promise: Promise | None) -> None:
        check_facts(
            cpu, gpus_rented=0, gpu_model="", slurmctld_version="24.11.5", clock_skew_max_s=120.0, promise=promise
        )

    join(None)
    join(Promise(8, 65_536, 0))
    join(Promise(8, 72_000, 0))  # Slurm takes a CLOUD node with 90 % of its line
    for promise, word in ((Promise(9, 65_536, 0), "8 CPUs"), (Promise(8, 80_000, 0), "65536 MiB")):
        with pytest.raises(JoinRefused, match=word) as caught:
            join(promise)
        assert (caught.value.code, caught.value.fatal) == ("promise", True)


def test_a_first_promise_is_held_by_machines_that_are_nodes_already() -> None:
    assert least_of(PROMISE, [FACTS], 0.95) == Promise(8, 62_259, 1)
    assert least_of(PROMISE, [], 0.95) == PROMISE


def test_words() -> None:
    assert words(PROMISE) == "26 CPUs, 194560 MiB, 1 GPU"
    assert words(Promise(1, 1024, 0)) == "1 CPU, 1024 MiB"


def test_a_person_sees_what_a_machine_must_hold() -> None:
    lines = constraints(replace(POOL, promise=PROMISE), None)
    assert any("at least 26 CPUs and 194560 MiB" in line for line in lines)
    assert any("at least 1 CPUs and 1024 MiB" in line for line in constraints(POOL, None))
