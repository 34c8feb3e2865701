"""The machines for demand: the place, the next offer, the move of a gang, and what cannot be had."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from meshd.codes import DemandCode, WarningCode
from meshd.model import plan as p
from meshd.model.budget import Budget, BudgetLimits
from meshd.model.cooldown import Cooldown, CooldownCause, CooldownKey
from meshd.model.desired import Promise
from meshd.model.machine import Machine, Phase, Removal
from meshd.model.observed import Unavailable
from meshd.plan.demand_growth import AGAIN_S, MOVES_S, UNREAD_PATIENCE_S, again_at
from meshd.provider_api import Offer
from tests.unit.plan.queues import (
    HERE,
    NEXT,
    POOL,
    THERE,
    by_queue,
    cooling,
    decided,
    job,
    removed,
    rents,
    requests,
    view,
)
from tests.unit.worlds import NOW, ago, machine


def keys(found: p.Plan) -> set[str]:
    return {key for _, key in rents(found)}


def code_of(found: p.Plan) -> DemandCode | None:
    return found.refused[0].code if found.refused else None


# -- the place and the offer ------------------------------------------------------------------------------------------


def test_the_cheapest_place_gets_the_whole_gang() -> None:
    assert rents(decided(view(job(7, 1, 2, 3)))) == [(f"h100-{i}", HERE.key) for i in (1, 2, 3)]


def test_a_refused_offer_is_followed_by_the_next_one_of_the_same_place_in_the_same_slot() -> None:
    coming = by_queue(Phase.BOOTING, 1, 7)
    found = decided(view(job(7, 1, 2), machines=[coming]), coming, cooldowns=cooling(HERE))
    assert rents(found) == [("h100-2", NEXT.key)]


def test_the_way_of_one_gang_does_not_depend_on_that_of_another() -> None:
    elsewhere = by_queue(Phase.BOOTING, 1, 7, offer=THERE)
    found = decided(view(job(7, 1, 2), job(8, 3, 4), machines=[elsewhere]), elsewhere)
    assert rents(found) == [("h100-2", THERE.key), ("h100-3", HERE.key), ("h100-4", HERE.key)]


def test_an_offer_that_does_not_hold_the_promise_is_not_taken() -> None:
    assert keys(decided(view(job(7, 1)), pool=replace(POOL, promise=Promise(8, 70000, 1)))) == set()
    small = replace(HERE, vcpus=4, usd_per_hour=1.0)
    assert keys(decided(view(job(7, 1)), offers=(small, NEXT))) == {NEXT.key}


def test_a_larger_machine_is_taken_only_if_it_costs_less() -> None:
    pool = replace(POOL, gpus_per_node_max=2)
    large = replace(HERE, instance_type="g.2", gpus=2, usd_per_hour=1.5)
    assert keys(decided(view(job(7, 1)), offers=(HERE, large), pool=pool)) == {large.key}
    same = replace(large, usd_per_hour=HERE.usd_per_hour)
    assert keys(decided(view(job(7, 1)), offers=(same, HERE), pool=pool)) == {HERE.key}


def test_spot_is_preferred_where_the_pool_says_so() -> None:
    spot = replace(THERE, spot=True)
    pool = replace(POOL, spot="prefer")
    assert keys(decided(view(job(7, 1, 2)), offers=(HERE, spot), pool=pool)) == {spot.key}
    assert keys(decided(view(job(7, 1, 2)), offers=(HERE, spot), pool=replace(pool, spot="if_cheaper"))) == {HERE.key}


def test_a_pool_that_spreads_takes_the_cheapest_anywhere() -> None:
    elsewhere = by_queue(Phase.BOOTING, 1, 7, offer=THERE)
    found = decided(view(job(7, 1, 2), machines=[elsewhere]), elsewhere, pool=replace(POOL, spread=True))
    assert rents(found) == [("h100-2", HERE.key)]


def test_only_a_gang_that_must_be_in_one_place_is_ordered_as_one() -> None:
    together = [step.gang for step in requests(decided(view(job(7, 1, 2, 3))))]
    assert together[0] and len(set(together)) == 1
    apart = requests(decided(view(job(7, 1, 2, 3)), pool=replace(POOL, spread=True)))
    assert [step.gang for step in apart] == [""] * 3, "a cloud with room for one gives that one"


# -- the gang moves ---------------------------------------------------------------------------------------------------


def test_the_whole_gang_moves_when_its_place_cannot_give_the_rest() -> None:
    coming = [by_queue(Phase.BOOTING, i, 7) for i in (1, 2)]
    found = decided(view(job(7, 1, 2, 3), machines=coming), *coming, cooldowns=cooling(HERE, NEXT))
    assert removed(found) == {m.name for m in coming}
    assert {step.removal for step in found.steps if isinstance(step, p.Remove)} == {Removal.GANG_MOVED}
    assert not found.refused
    leaving = [replace(m, removal=Removal.GANG_MOVED) for m in coming]
    found = decided(view(job(7, 1, 2, 3), machines=leaving), *leaving, cooldowns=cooling(HERE, NEXT))
    assert rents(found) == [("h100-3", THERE.key)], "the others' slots are not free yet"
    gone = [replace(m, phase=Phase.TERMINATING) for m in leaving]
    there = by_queue(Phase.REQUESTED, 3, 7, offer=THERE)
    found = decided(view(job(7, 1, 2, 3), machines=[there]), *gone, there, cooldowns=cooling(HERE, NEXT))
    assert rents(found) == [("h100-1", THERE.key), ("h100-2", THERE.key)]


def test_it_waits_while_a_create_call_is_not_settled() -> None:
    coming = [by_queue(Phase.BOOTING, 1, 7), by_queue(Phase.LAUNCHING, 2, 7)]
    found = decided(view(job(7, 1, 2, 3), machines=coming), *coming, cooldowns=cooling(HERE, NEXT))
    assert (removed(found), rents(found), found.refused) == (set(), [], ())


def test_a_job_lets_go_of_a_node_in_a_place_that_cannot_give_the_rest() -> None:
    """It would get the same node again and again. The node leaves, and the job gets all slots elsewhere."""
    ready = by_queue(Phase.READY, 1, 5)
    found = decided(view(job(7, 1, 2), machines=[ready]), ready, cooldowns=cooling(HERE, NEXT))
    assert (removed(found), rents(found), code_of(found)) == ({ready.name}, [], DemandCode.PLACE)
    assert found.refused[0].until == NOW + timedelta(seconds=MOVES_S)
    leaving = replace(ready, phase=Phase.DRAINING, removal=Removal.GANG_MOVED)
    found = decided(view(job(7, 1, 2), machines=[leaving]), leaving, cooldowns=cooling(HERE, NEXT))
    assert (rents(found), code_of(found)) == ([], DemandCode.PLACE), "nothing is rented beside a node that leaves"
    found = decided(view(machines=[leaving]), leaving, cooldowns=cooling(HERE, NEXT))
    assert (rents(found), found.refused, found.open_slots["h100"].count) == ([], (), 7)


def test_a_job_lets_go_of_a_node_that_its_cloud_takes_back() -> None:
    ready = by_queue(Phase.READY, 1, 5, preempted_at=NOW + timedelta(seconds=120))
    found = decided(view(job(7, 1, 2), machines=[ready]), ready)
    assert (rents(found), code_of(found)) == ([], DemandCode.PLACE)
    booting = by_queue(Phase.BOOTING, 1, 7, preempted_at=NOW + timedelta(seconds=120))
    found = decided(view(job(7, 1, 2), machines=[booting]), booting)
    assert (rents(found), found.refused) == ([("h100-2", HERE.key)], ()), "the slot is free once it is gone"


def test_a_node_stays_that_others_need_or_where_no_other_place_has_all() -> None:
    ready = by_queue(Phase.READY, 1, 5)
    seen = view(job(7, 1, 2), job(5, 1, state="RUNNING"), machines=[ready])
    for found in (
        decided(seen, ready, cooldowns=cooling(HERE, NEXT)),
        decided(view(job(7, 1, 2), machines=[ready]), ready, cooldowns=cooling(HERE, NEXT, THERE)),
    ):
        assert (removed(found), rents(found)) == (set(), [])
        assert found.refused[0].code in {DemandCode.PLACE, DemandCode.NO_CAPACITY}
        assert found.refused[0].until > NOW + timedelta(seconds=MOVES_S)
    assert decided(seen, ready, cooldowns=cooling(HERE, NEXT)).open_slots["h100"].count == 6, "others can have them"


# -- what cannot be had -----------------------------------------------------------------------------------------------


def test_demand_is_refused_once_every_offer_cools_down() -> None:
    both = {**cooling(HERE, NEXT, s=90), **cooling(THERE, s=40)}
    (refused,) = (found := decided(view(job(7, 1, 2)), cooldowns=both)).refused
    assert (refused.pool, refused.jobs, refused.slots) == ("h100", ("7",), ("h100-1", "h100-2"))
    assert refused.code is DemandCode.NO_CAPACITY
    assert refused.until == NOW + timedelta(seconds=40), "the first that could help"
    left = found.open_slots["h100"]
    assert (left.count, left.code, left.until) == (0, DemandCode.NO_CAPACITY, refused.until)


def test_it_is_tried_when_the_time_has_come() -> None:
    over = {key: replace(c, until=NOW) for key, c in cooling(HERE, NEXT, THERE).items()}
    found = decided(view(job(7, 1, 2)), cooldowns=over)
    assert keys(found) == {HERE.key}
    assert (found.refused, found.open_slots["h100"]) == ((), p.OpenSlots(6))


def test_a_gang_of_which_the_rest_cannot_be_had_is_refused_although_a_part_boots() -> None:
    coming = by_queue(Phase.BOOTING, 1, 7)
    found = decided(view(job(7, 1, 2), machines=[coming]), coming, cooldowns=cooling(HERE, NEXT, THERE))
    (refused,) = found.refused
    assert (refused.slots, removed(found)) == (("h100-2",), set())


def test_a_job_whose_machines_are_all_on_their_way_is_not_refused() -> None:
    coming = by_queue(Phase.BOOTING, 1, 7)
    assert not decided(view(job(7, 1), machines=[coming]), coming, cooldowns=cooling(HERE, NEXT, THERE)).refused


@pytest.mark.parametrize(("unread_s", "refused"), [(5.0, False), (UNREAD_PATIENCE_S + 1, True)])
def test_offers_that_are_not_read_yet_are_not_refused(unread_s: float, refused: bool) -> None:
    unread = {"gce": Unavailable("not read yet", ago(unread_s))}
    found = decided(view(job(7, 1)), cooldowns=cooling(HERE), offers=(HERE,), unread=unread)
    assert bool(found.refused) is refused
    assert ("h100" in found.open_slots) is refused


def cooled_pool(cause: CooldownCause) -> dict[CooldownKey, Cooldown]:
    key = CooldownKey.of_pool("h100")
    return {key: Cooldown(key, NOW + timedelta(seconds=50), "machines failed", cause=cause)}


@pytest.mark.parametrize(
    ("parts", "code", "until_s"),
    [
        ({"dead_key": "the key is revoked"}, DemandCode.AUTH_KEY_DEAD, None),
        ({"cooldowns": cooled_pool(CooldownCause.BOOTS)}, DemandCode.POOL_COOLING, 50),
        ({"cooldowns": cooled_pool(CooldownCause.PAUSE)}, None, None),
        ({"offers": ()}, DemandCode.NO_OFFER, None),
        ({"pool": replace(POOL, max_usd_per_gpu_hour=1.0)}, DemandCode.NO_OFFER, None),
        ({"pool": replace(POOL, max_usd_per_hour=3.0)}, DemandCode.LIMIT_IN_ALL, None),
    ],
)
def test_what_forbids_it(parts: dict[str, Any], code: DemandCode | None, until_s: float | None) -> None:
    found = decided(view(job(7, 1, 2)), **parts)
    assert rents(found) == []
    assert code_of(found) is code
    if found.refused:
        until = again_at(NOW) if until_s is None else NOW + timedelta(seconds=until_s)
        assert found.refused[0].until == until
        assert found.refused[0].reason


def test_the_next_try_stays_the_same_for_minutes_and_is_never_near() -> None:
    times = {again_at(NOW + timedelta(seconds=s)) for s in range(AGAIN_S)}
    assert len(times) == 1
    assert all((again_at(NOW + timedelta(seconds=s)) - NOW).total_seconds() - s > AGAIN_S for s in range(AGAIN_S - 1))


def test_a_person_who_powered_a_slot_up_is_told_too() -> None:
    seen = view(states={3: {"IDLE", "POWERING_UP"}})
    (refused,) = decided(seen, by_person=frozenset({"h100-3"}), cooldowns=cooling(HERE, NEXT, THERE)).refused
    assert (refused.jobs, refused.slots) == ((), ("h100-3",))


# -- money ------------------------------------------------------------------------------------------------------------


def test_half_a_gang_is_never_paid_for() -> None:
    found = decided(view(job(7, 1, 2, 3), job(8, 4)), pool=replace(POOL, max_usd_per_hour=5.0))
    assert rents(found) == [("h100-4", HERE.key)]
    assert [one.jobs for one in found.refused] == [("7",)]
    assert found.open_slots["h100"].count == 1


def test_money_that_is_about_to_be_free_is_waited_for() -> None:
    leaving = machine(Phase.TERMINATING, index=8)
    pool = replace(POOL, max_usd_per_hour=4.5)
    found = decided(view(job(7, 1, 2)), leaving, pool=pool, offers=(HERE,))
    assert (rents(found), found.refused) == ([], ())


def test_a_budget_over_all_pools_holds_too() -> None:
    found = decided(view(job(7, 1, 2)), budget=Budget({"": BudgetLimits(usd_per_hour=3.0)}, {}, NOW))
    assert (rents(found), code_of(found)) == ([], DemandCode.BUDGET)
    found = decided(view(job(7, 1), job(8, 2)), budget=Budget({"": BudgetLimits(usd_per_hour=3.0)}, {}, NOW))
    assert rents(found) == [("h100-1", HERE.key)]


DEAR = replace(HERE, usd_per_hour=3.5)


def idle_nodes(*offers: Offer, **changes: Any) -> list[Machine]:
    return [machine(Phase.READY, index=i, offer=one, **changes) for i, one in enumerate(offers, 1)]


@pytest.mark.parametrize(
    ("nodes", "parts", "count"),
    [
        (idle_nodes(DEAR, DEAR, DEAR), {}, 1),
        (idle_nodes(DEAR, DEAR, DEAR), {"offers": (DEAR,)}, 0),
        (idle_nodes(DEAR, DEAR, DEAR), {"target": {"regions": ("r1",)}}, 0),
        (idle_nodes(DEAR, DEAR, DEAR), {"pool": replace(POOL, max_usd_per_hour=11.0, spread=True)}, 0),
        (idle_nodes(DEAR, DEAR, DEAR, unreadable_since=NOW), {}, 0),
        (idle_nodes(DEAR, DEAR, replace(THERE, usd_per_hour=3.5)), {}, 0),
    ],
)
def test_slots_are_open_to_a_job_that_can_move_with_all_idle_nodes(
    nodes: list[Machine], parts: dict[str, Any], count: int
) -> None:
    """Three for 10.50 USD per hour leave too little for one more under a limit of 12.5; four elsewhere are 12."""
    whole = {"pool": replace(POOL, max_usd_per_hour=12.5), "gpus": 3, "offers": (DEAR, THERE)} | parts
    opened = decided(view(machines=nodes), *nodes, **whole).open_slots["h100"]
    assert (opened.count, opened.code) == (count, DemandCode.LIMIT_IN_ALL)


def test_a_job_moves_with_nodes_that_leave_no_money_for_the_rest_and_slots_stay_open() -> None:
    nodes = idle_nodes(DEAR, DEAR, DEAR)
    whole: dict[str, Any] = {"pool": replace(POOL, max_usd_per_hour=12.5), "gpus": 3, "offers": (DEAR, THERE)}
    seen = view(job(7, 1, 2, 3, 4), machines=nodes)
    found = decided(seen, *nodes, **whole)
    assert (removed(found), code_of(found)) == ({m.name for m in nodes}, DemandCode.PLACE)
    assert found.open_slots["h100"].count == 4
    leaving = [replace(m, removal=Removal.GANG_MOVED) for m in nodes]
    assert decided(seen, *leaving, **whole).open_slots["h100"].count == 4


# -- one is tried alone -----------------------------------------------------------------------------------------------


def expired(key: CooldownKey) -> dict[CooldownKey, Cooldown]:
    return {key: Cooldown(key, ago(5), "machines failed", cause=CooldownCause.BOOTS)}


def test_after_the_pools_cooldown_one_machine_goes_first() -> None:
    found = decided(view(job(7, 1, 2), job(8, 3)), expired=expired(CooldownKey.of_pool("h100")))
    assert rents(found) == [("h100-1", HERE.key)]
    assert not found.refused
    first = by_queue(Phase.BOOTING, 1, 7, created_at=ago(1))
    found = decided(
        view(job(7, 1, 2), job(8, 3), machines=[first]), first, expired=expired(CooldownKey.of_pool("h100"))
    )
    assert (rents(found), found.refused) == ([], ())
    assert [w.code for w in found.warnings] == [WarningCode.TRIED_ALONE]
    assert found.open_slots["h100"].count == 5


def test_after_a_places_cooldown_one_machine_goes_there_first() -> None:
    key = CooldownKey.of_place("h100", "aws", "r1")
    found = decided(view(job(7, 1, 2), job(8, 3)), expired=expired(key), offers=(HERE,))
    assert rents(found) == [("h100-1", HERE.key)]
    assert [w.code for w in found.warnings] == [WarningCode.TRIED_ALONE]


# -- beside a target --------------------------------------------------------------------------------------------------


def test_a_target_is_a_floor_for_all_machines() -> None:
    found = decided(view(job(7, 1, 2)), gpus=3)
    assert [(s.subject, s.by_queue) for s in requests(found)] == [("h100-1", True), ("h100-2", True), ("h100-3", False)]
    assert len(requests(decided(view(job(7, 1, 2)), gpus=2))) == 2
    assert len(requests(decided(view(job(7, 1, 2)), gpus=0))) == 2


def test_a_targets_machines_do_not_take_the_slots_of_jobs() -> None:
    found = decided(view(job(7, 1, 2)), gpus=3, cooldowns=cooling(HERE, NEXT, THERE))
    assert rents(found) == []
    found = decided(view(job(7, 1, 2)), gpus=1, offers=(HERE,), pool=replace(POOL, max_usd_per_hour=3.0))
    assert rents(found) == [("h100-3", HERE.key)]


@pytest.mark.parametrize(("age_s", "goes"), [(100, True), (10, False)])
def test_scaling_down_gives_back_the_queues_idle_machines_that_were_there(age_s: float, goes: bool) -> None:
    idle, busy = by_queue(Phase.READY, 1, 5, created_at=ago(age_s)), by_queue(Phase.READY, 2, 6, created_at=ago(age_s))
    seen = view(job(6, 2, state="RUNNING"), machines=[idle, busy])
    assert removed(decided(seen, idle, busy, gpus=0, target={"at": ago(50)})) == ({idle.name} if goes else set())


def test_the_targets_machines_stay_beside_those_of_the_queue() -> None:
    ours = machine(Phase.READY, index=1)
    theirs = [by_queue(Phase.READY, i, 6, created_at=ago(10)) for i in (2, 3)]
    seen = view(job(6, 2, 3, state="RUNNING"), machines=[ours, *theirs])
    assert removed(decided(seen, ours, *theirs, gpus=1, target={"at": ago(50)})) == set()
    assert removed(decided(seen, ours, *theirs, gpus=0, target={"at": ago(50)})) == {ours.name}


def test_a_machine_on_its_way_that_a_job_waits_for_is_not_given_back() -> None:
    ours = machine(Phase.BOOTING, index=1)
    assert removed(decided(view(job(7, 1), machines=[ours]), ours, gpus=0, target={"at": ago(50)})) == set()


def test_the_queues_machines_are_no_place_for_a_targets() -> None:
    theirs = by_queue(Phase.READY, 1, 6, offer=THERE)
    found = decided(view(job(6, 1, state="RUNNING"), machines=[theirs]), theirs, gpus=2)
    assert rents(found) == [("h100-2", HERE.key)]


def test_a_slot_that_a_person_drained_is_not_for_a_target() -> None:
    seen = view(states={1: {"IDLE", "POWERED_DOWN", "DRAIN"}})
    found = decided(seen, gpus=1)
    assert rents(found) == [("h100-2", HERE.key)]
    assert found.open_slots["h100"].count == 7
