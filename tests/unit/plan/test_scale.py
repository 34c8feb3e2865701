"""Scaling up and down: never too many machines, the least useful goes first, and a person's order holds."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from meshd.codes import WarningCode
from meshd.model import plan as p
from meshd.model.cooldown import Cooldown, CooldownKey
from meshd.model.desired import Desired, Pool, Target
from meshd.model.machine import Machine, Phase, Removal
from meshd.model.observed import Fresh
from meshd.plan.placement import misses, price_limit, ranked, why_none
from meshd.plan.planner import plan
from tests.unit.worlds import GONE_DARK, NOW, OFFER, ago, instance, machine, node, slurm, snapshot

POOL = Pool("h100", "h100", 1, 4, ("aws", "gce"))


def desired(gpus: int | None, pool: Pool = POOL, **parts: Any) -> Desired:
    targets = {} if gpus is None else {"h100": Target("h100", gpus)}
    return Desired("lab", {"h100": pool}, targets, **parts)


def steps(gpus: int | None, *machines: Machine, kind: type[p.Step] = p.Step, **parts: Any) -> list[p.Step]:
    seen = parts.pop("seen", None) or snapshot(
        instances={"aws": Fresh(tuple(instance(m) for m in machines if m.instance_id), NOW)},
        slurm=Fresh(slurm(*(node(m) for m in machines if m.tailnet_ip)), NOW),
    )
    decided = plan(desired(gpus, **parts), machines, seen, NOW)
    return [step for step in (*decided.steps, *decided.warnings) if isinstance(step, kind)]


def subjects(found: list[p.Step]) -> list[str]:
    return [step.subject for step in found]


def test_no_target_holds_what_is_there() -> None:
    assert steps(None, machine(Phase.READY), kind=p.Remove | p.RequestMachine) == []  # type: ignore[arg-type]


def test_free_slots_are_filled_from_the_first() -> None:
    assert subjects(steps(3, machine(Phase.READY, index=2), kind=p.RequestMachine)) == ["h100-1", "h100-3"]


def test_the_pool_has_an_end() -> None:
    assert len(steps(9, kind=p.RequestMachine)) == 4
    (warning,) = steps(9, kind=p.Warn)
    assert isinstance(warning, p.Warn) and warning.code is WarningCode.SLOTS


def test_what_fails_is_replaced_once_and_its_slot_stays_taken() -> None:
    failing = [machine(Phase.DRAINING, index=i, failure="broken", heartbeat_at=ago(1)) for i in (1, 2)]
    assert subjects(steps(2, *failing, kind=p.RequestMachine)) == ["h100-3", "h100-4"]
    coming = [machine(Phase.BOOTING, index=i) for i in (3, 4)]
    assert steps(2, *failing, *coming, kind=p.RequestMachine) == []


def test_machines_that_do_not_die_hold_no_slot_and_are_no_supply() -> None:
    lost = machine(Phase.LOST, index=1)
    assert subjects(steps(1, lost, kind=p.RequestMachine)) == ["h100-1"]


def test_a_breaker_stops_the_pool() -> None:
    cooldown = Cooldown(CooldownKey("pool:h100"), NOW + timedelta(seconds=60), "3 failed")
    assert steps(1, kind=p.RequestMachine, cooldowns={CooldownKey("pool:h100"): cooldown}) == []
    over = replace(cooldown, until=NOW)
    assert len(steps(1, kind=p.RequestMachine, cooldowns={CooldownKey("pool:h100"): over})) == 1


def test_offers_that_cannot_be_read_are_told() -> None:
    (warning,) = steps(1, kind=p.Warn, seen=snapshot(offers={"aws": GONE_DARK}))
    assert isinstance(warning, p.Warn) and warning.code is WarningCode.NO_OFFER


def test_the_least_useful_goes_first() -> None:
    machines = [
        machine(Phase.READY, index=1), machine(Phase.READY, index=2, created_at=ago(60)),
        machine(Phase.BOOTING, index=3), machine(Phase.READY, index=4),
    ]  # fmt: skip
    jobs = {"h100-2": "7", "h100-4": "8"}
    seen = snapshot(
        instances={"aws": Fresh(tuple(instance(m) for m in machines), NOW)},
        slurm=Fresh(slurm(*(node(m) for m in machines if m.tailnet_ip), jobs=jobs), NOW),
    )
    order = ["h100-3", "h100-1", "h100-2", "h100-4"]
    for gpus in (3, 2, 1, 0):
        found = subjects(steps(gpus, *machines, kind=p.Remove, seen=seen))
        assert found == [f"lab-{slot}-abcde{slot[-1]}" for slot in order[: 4 - gpus]]


def test_who_is_idle_must_be_known_to_shrink() -> None:
    machines = [machine(Phase.READY, index=i) for i in (1, 2)]
    assert steps(1, *machines, kind=p.Remove, seen=snapshot(slurm=GONE_DARK)) == []
    old = snapshot(slurm=Fresh(slurm(*(node(m) for m in machines)), ago(1000)))
    assert steps(1, *machines, kind=p.Remove, seen=old) == []


def test_a_surplus_machine_is_kept_after_all() -> None:
    m = machine(Phase.DRAINING, removal=Removal.SCALE_DOWN)
    assert subjects(steps(1, m, kind=p.CancelRemoval)) == [m.name]
    assert steps(1, m, kind=p.RequestMachine) == []


def test_so_is_one_that_is_only_on_order() -> None:
    """Otherwise a target that goes down and up again would have its machines twice for a while."""
    for phase in (Phase.REQUESTED, Phase.LAUNCHING, Phase.BOOTING):
        m = machine(phase, removal=Removal.SCALE_DOWN, launch_called_at=ago(5))
        assert subjects(steps(1, m, kind=p.CancelRemoval)) == [m.name], phase
        assert steps(1, m, kind=p.RequestMachine) == []


def test_of_machines_that_are_alike_the_dearest_goes_first() -> None:
    cheap = machine(Phase.BOOTING, created_at=ago(10))
    dear = machine(Phase.BOOTING, index=2, created_at=ago(500), offer=replace(OFFER, usd_per_hour=3.0))
    assert subjects(steps(1, cheap, dear, kind=p.Remove)) == [dear.name]


def test_what_a_person_removed_is_not_kept() -> None:
    for removal in (Removal.BY_USER, Removal.FORCED):
        m = machine(Phase.DRAINING, removal=removal)
        full = replace(POOL, max_nodes=1)
        assert steps(1, m, kind=p.CancelRemoval, pool=full) == []
        assert len(steps(1, m, kind=p.RequestMachine)) == 1


def test_what_left_slurm_or_failed_is_not_kept() -> None:
    for changes in ({"left_slurm": True}, {"failure": "broken"}, {"slurmd_started": False}):
        m = machine(Phase.DRAINING, removal=Removal.SCALE_DOWN, **changes)
        assert steps(1, m, kind=p.CancelRemoval) == []


# -- offers -----------------------------------------------------------------------------------------------------------

TARGET = Target("h100", 4)


def test_each_reason_against_an_offer() -> None:
    cases: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({}, {}, ""),
        ({"gpu": "a100"}, {}, "has a100, not h100"),
        ({"gpus": 8}, {}, "8 GPUs, not 1"),
        ({"provider": "lambda"}, {}, "not among the pool's"),
        ({"vcpus": 0}, {}, "fewer than"),
        ({"memory_mib": 10}, {}, "less than"),
        ({"spot": True}, {}, "never takes spot"),
        ({}, {"spot": "only"}, "is not spot"),
        ({"usd_per_hour": 9.0}, {"max_usd_per_gpu_hour": 8.0}, "over the limit of 8.00"),
        ({"available": False}, {}, "no free capacity"),
    ]
    for offer, pool, words in cases:
        found = [miss.text for miss in misses(replace(OFFER, **offer), replace(POOL, **pool), TARGET)]
        assert words in found[0] if words else not found, (offer, pool, found)
    assert "only gce" in next(misses(OFFER, POOL, replace(TARGET, provider="gce"))).text


def test_the_lower_limit_holds() -> None:
    pool = replace(POOL, max_usd_per_gpu_hour=3.0)
    assert price_limit(pool, TARGET) == 3.0
    assert price_limit(pool, replace(TARGET, max_usd_per_gpu_hour=2.0)) == 2.0
    assert price_limit(pool, replace(TARGET, max_usd_per_gpu_hour=5.0)) == 3.0
    assert price_limit(POOL, TARGET) is None


def test_the_price_is_of_one_gpu() -> None:
    eight = replace(OFFER, gpus=8, usd_per_hour=16.0)
    pool = replace(POOL, gpus_per_node=8, max_usd_per_gpu_hour=2.0)
    assert not list(misses(eight, pool, TARGET))
    assert list(misses(replace(eight, usd_per_hour=16.1), pool, TARGET))


def test_best_first() -> None:
    cheap, dear = replace(OFFER, zone="b", usd_per_hour=1.0), replace(OFFER, zone="c", usd_per_hour=3.0)
    spot = replace(OFFER, zone="d", spot=True, usd_per_hour=2.5)
    assert [o.zone for o in ranked([dear, OFFER, cheap, spot], POOL, TARGET, {}, NOW)] == ["b", "r1a", "c"]
    prefer = replace(POOL, spot="prefer")
    assert [o.zone for o in ranked([dear, cheap, spot], prefer, TARGET, {}, NOW)] == ["d", "b", "c"]
    same = replace(OFFER, provider="gce")  # type: ignore[arg-type]
    second = replace(POOL, providers=("gce", "aws"))
    assert [o.provider for o in ranked([OFFER, same], second, TARGET, {}, NOW)] == ["gce", "aws"]


def test_what_is_left_alone_is_not_taken_and_why_is_told() -> None:
    cooldown = Cooldown(CooldownKey.of_offer(OFFER), NOW + timedelta(seconds=60), "sold out")
    cooldowns = {cooldown.key: cooldown}
    assert ranked([OFFER], POOL, TARGET, cooldowns, NOW) == []
    assert "sold out" in why_none([OFFER], POOL, TARGET, cooldowns, NOW)
    assert ranked([OFFER], POOL, TARGET, cooldowns, cooldown.until) == [OFFER]
    whole = {CooldownKey("provider:aws"): Cooldown(CooldownKey("provider:aws"), cooldown.until, "key refused")}
    assert "key refused" in why_none([OFFER], POOL, TARGET, whole, NOW)


def test_why_none_names_the_nearest() -> None:
    assert "no provider offers" in why_none([], POOL, TARGET, {}, NOW)
    assert "there is 1x a100" in why_none([replace(OFFER, gpu="a100")], POOL, TARGET, {}, NOW)
    cpu = replace(POOL, gpu="", gpus_per_node=0)
    assert "offers machines without GPUs: name such types" in why_none([OFFER], cpu, TARGET, {}, NOW)
    there = [replace(OFFER, region="us-east-1", zone="us-east-1a")]
    mistyped = replace(TARGET, regions=("us-esat-1",))
    assert "anything in us-esat-1 now; near that name: us-east-1," in why_none(there, POOL, mistyped, {}, NOW)
    assert "was asked for" not in why_none(there, POOL, replace(TARGET, regions=("mars",)), {}, NOW)
    tight = replace(POOL, max_usd_per_gpu_hour=1.0)
    assert "over the limit of 1.00" in why_none([OFFER], tight, TARGET, {}, NOW)
