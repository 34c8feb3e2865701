"""Which pool is meant, and what a pool allows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshd.api import schema as s
from meshd.api.faults import BadRequest
from meshd.codes import RefusalCode
from meshd.daemon.head_api.scale import asked_target, chosen_pool, next_target
from meshd.model.desired import OPTIONS, Desired, Pool, Target, options_of
from tests.codes import refused
from tests.unit.worlds import NOW, OFFER

H100 = Pool("big", "h100", 1, 4, ("aws", "gce"), gpus_per_node_max=8, regions=("r1", "r2b"))
POOLS = {pool.name: pool for pool in (H100, Pool("ada", "l40s", 1, 4, ("aws",)), Pool("cpu", "", 0, 4, ("aws",)))}
OFFERS = (OFFER, replace(OFFER, region="r2", zone="r2b"), replace(OFFER, region="r3", zone="r3a"))


def chosen(pools: dict[str, Pool] = POOLS, **asked: Any) -> str:
    return chosen_pool(Desired("lab", pools, {}), s.ScaleRequest(gpus=1, **asked)).name


def target(pool: Pool = H100, gpus: int = 1, **asked: Any) -> Target:
    return asked_target(pool, s.ScaleRequest(gpus=gpus, **asked), OFFERS, by="root", at=NOW)


def test_the_gpu_chooses_the_pool() -> None:
    assert chosen(gpu="H100") == "big"
    assert chosen(gpu="NVIDIA H100 80GB HBM3") == "big", "a narrower one"
    assert chosen(pools={"sxm": replace(H100, name="sxm", gpu="h100-sxm")}, gpu="h100") == "sxm", "or a wider one"
    assert chosen(pool="ada", gpu="h100") == "ada", "a name wins; the GPU is checked then"
    exact = {**POOLS, "sxm": replace(H100, name="sxm", gpu="h100-sxm")}
    assert chosen(exact, gpu="h100-sxm") == "sxm"


def test_without_a_choice_the_pools_are_told() -> None:
    with refused(RefusalCode.NO_POOL_HAS_GPU) as none:
        chosen(gpu="a100")
    assert all(name in none.value.cure for name in POOLS)
    with refused(RefusalCode.POOL_NEEDED):
        chosen()
    with refused(RefusalCode.NO_SUCH_POOL):
        chosen(pool="a100")
    with refused(RefusalCode.POOL_NEEDED):
        chosen({}, gpu=None)
    assert chosen({"ada": POOLS["ada"]}) == "ada"


def test_two_pools_that_fit_are_told() -> None:
    pools = {name: replace(H100, name=name, gpu=gpu) for name, gpu in (("a", "h100-sxm"), ("b", "h100-pcie"))}
    with refused(RefusalCode.POOL_NEEDED) as error:
        chosen(pools, gpu="h100")
    assert "a, b" in error.value.cure


def test_everything_asked_for_is_in_the_target() -> None:
    found = target(
        gpus=8, provider="gce", gpu="h100-sxm", gpus_per_node=4, regions=("r1", "r2"), spot="prefer",
        pods="only", spread=True, max_usd_per_gpu_hour=3.0, max_usd_per_hour=30.0, overshoot_max_gpus=2,
    )  # fmt: skip
    assert found == Target(
        "big", 8, "gce", 3.0, NOW, "root", max_usd_per_hour=30.0, gpu="h100-sxm", gpus_per_node=4,
        regions=("r1", "r2"), spot="prefer", pods="only", spread=True, overshoot_max_gpus=2,
    )  # fmt: skip
    assert target(gpu="h100").gpu == ""
    assert target(replace(H100, gpu="h100-sxm"), gpu="h100").gpu == "", "the pool's is narrower already"


@pytest.mark.parametrize(
    ("asked", "allowed"),
    [
        ({"gpu": "a100"}, "pools.big.gpu"),
        ({"provider": "lambda"}, "aws, gce"),
        ({"gpus_per_node": 16}, "pools.big.gpus_per_node"),
        ({"regions": ("r3",)}, "r1, r2b"),
        ({"regions": ("r1", "nowhere")}, "r1, r2b"),
    ],
)
def test_what_the_pool_does_not_allow_is_refused_with_what_it_does(asked: dict[str, Any], allowed: str) -> None:
    with pytest.raises(BadRequest) as error:
        target(**asked)
    assert allowed in error.value.cure


def test_a_zone_of_the_pools_region_and_the_region_of_its_zone_are_allowed() -> None:
    for place in ("r1a", "r2", "r2b"):
        assert target(regions=(place,)).regions == (place,)
    assert target(replace(H100, regions=()), regions=("anywhere",)).regions == ("anywhere",)


def test_room() -> None:
    assert target(gpus=32).gpus == 32
    with refused(RefusalCode.NO_ROOM):
        target(gpus=33)
    with refused(RefusalCode.NO_ROOM):
        target(gpus=9, gpus_per_node=2)
    with refused(RefusalCode.NO_ROOM):
        target(POOLS["cpu"], gpus=5)


BEFORE = Target(
    "big", 4, provider="gce", max_usd_per_gpu_hour=2.5, max_usd_per_hour=40.0, gpu="h100-sxm", gpus_per_node=4,
    regions=("r1",), spot="prefer", pods="never", spread=True, overshoot_max_gpus=2,
)  # fmt: skip


def later(before: Target | None = BEFORE, pool: Pool = H100, **asked: Any) -> tuple[Target, list[str]]:
    request = s.ScaleRequest.model_validate({"gpus": 5, **asked})
    return next_target(pool, request, before, OFFERS, by="root", at=NOW)


def test_options_that_are_not_named_hold_on() -> None:
    found, told = later()
    assert found == replace(BEFORE, gpus=5, by="root", at=NOW) and told == []
    assert later(None)[0] == Target("big", 5, by="root", at=NOW)
    found, _ = later(max_usd_per_gpu_hour=3.0, regions=("r2",))
    assert (found.max_usd_per_gpu_hour, found.regions, found.spread, found.spot) == (3.0, ("r2",), True, "prefer")


def test_options_are_taken_out_when_that_is_said() -> None:
    found, _ = later(provider=None, spread=False, max_usd_per_hour=None)
    assert (found.provider, found.spread, found.max_usd_per_hour) == ("", False, None)
    assert found.spot == "prefer", "the others stay"
    found, _ = later(reset=True, spot="only")
    assert options_of(found) == ("--spot only",)


def test_an_option_that_the_pool_does_not_allow_any_more_is_dropped_and_told() -> None:
    found, told = later(pool=replace(H100, providers=("aws",), regions=("r2b",)))
    assert (found.provider, found.regions, found.spread) == ("", (), True)
    assert len(told) == 2 and told[0].startswith("--provider ") and told[1].startswith("--region ")
    with pytest.raises(BadRequest):
        later(pool=replace(H100, providers=("aws",)), provider="gce")


def test_options_as_they_are_written() -> None:
    assert options_of(BEFORE) == (
        "--provider gce", "--gpu h100-sxm", "--gpus-per-node 4", "--region r1", "--spot prefer",
        "--pods never", "--spread", "--max-price 2.5", "--max-total 40", "--max-overshoot 2",
    )  # fmt: skip
    assert options_of(Target("big", 3)) == () and len(OPTIONS) == 10
