"""What was looked at, and why it was not taken."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta

from meshd.model.desired import Block, Pool, Target
from meshd.plan.alternatives import GOOD_MAX, OTHERS_MAX, looked_at
from meshd.provider_api import Offer, ProviderName
from tests.unit.worlds import NOW, OFFER

POOL = Pool("h100", "h100", 1, 8, ("aws", "gce"), gpus_per_node_max=8, max_usd_per_gpu_hour=4)
TARGET = Target("h100", 4)


def offer(zone: str, usd: float, **changes: object) -> Offer:
    return replace(OFFER, zone=zone, region=zone[:-1], usd_per_hour=usd, **changes)  # type: ignore[arg-type]


def looked(offers: list[Offer], *chosen: Offer, target: Target = TARGET, blocks: dict[str, Block] | None = None,
           pool: Pool = POOL) -> dict[str, str]:  # fmt: skip
    keys = {one.key for one in chosen}
    return {o.zone: note for o, note in looked_at(offers, pool, target, blocks or {}, keys, NOW)}


def test_best_first_then_the_nearest_that_would_not_do() -> None:
    taken, dearer, dear = offer("r1a", 2), offer("r1b", 3), offer("r1c", 9)
    small, other = offer("r1d", 1, memory_mib=1), offer("r1e", 1, gpu="l4")
    assert looked([dear, other, small, dearer, taken], taken) == {
        "r1a": "", "r1b": "", "r1d": "has 1 MiB, less than 1024",
        "r1c": "costs 9.00 USD per GPU-hour, over the limit of 4.00",
    }  # fmt: skip
    assert list(looked([dear, small, dearer, taken], taken)) == ["r1a", "r1b", "r1d", "r1c"]


def test_why_something_cheaper_was_passed_over() -> None:
    taken = offer("r1a", 2)
    elsewhere, bigger = offer("r2a", 1), offer("r1b", 8, gpus=8)
    notes = looked([taken, elsewhere, bigger], taken)
    assert notes["r2a"] == "in aws r2: all machines of the target are in aws r1 (--spread lifts it)"
    assert notes["r1b"].startswith("the machines that are taken cost less together")
    spread = looked([taken, elsewhere], taken, target=replace(TARGET, spread=True))
    assert spread["r2a"].startswith("the machines that are taken")
    assert set(looked([taken, elsewhere]).values()) == {""}, "nothing is taken yet"


def test_what_cools_down_says_until_when() -> None:
    cold = offer("r1a", 2)
    block = Block(f"offer:{cold.key}", NOW + timedelta(minutes=5), "sold out")
    assert looked([cold], blocks={block.key: block}) == {"r1a": "cooling down until 12:05:00 UTC: sold out"}


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
    cold = {f"offer:{o.key}": Block(f"offer:{o.key}", NOW + timedelta(minutes=5), "sold out") for o in dear}
    fit = replace(POOL, max_usd_per_gpu_hour=None)
    assert list(looked(dear, blocks=cold, pool=fit)) == ["r1a", "r1b", "r1c"], "each cools down for itself"
