"""After an older journal was restored: machines that came since are adopted; none is ended or rented for nothing."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from meshd.model import plan as p
from meshd.model.desired import Desired, Pool, Target
from meshd.model.machine import Machine, Phase
from meshd.model.observed import AgentReport, Fresh
from meshd.plan.planner import plan
from meshd.provider_api import Instance, InstanceState
from tests.unit.worlds import GONE_DARK, NOW, OFFER, ago, instance, machine, node, peer, slurm, snapshot, tailnet

POOL = Pool("h100", "h100", 1, 6, ("aws",))
KEPT = machine(Phase.READY, index=1)
ENDED = machine(Phase.READY, index=2, heartbeat_at=ago(600))
"""It was READY in the backup, and has ended since."""
HEIR = machine(Phase.READY, index=2, name="lab-h100-2-zzzzzz", instance_id="i-22", tailnet_ip="100.64.0.22")
"""It has the slot of ENDED by now."""
NEW = machine(Phase.READY, index=4, instance_id="i-44", tailnet_ip="100.64.0.44")
"""It has a slot that was free in the backup."""
SILENT = {KEPT.name: AgentReport(at=NOW)}


def seen(*listed: Instance, heard: bool = True, **parts: Any) -> dict[str, Any]:
    peers = (peer(KEPT), replace(peer(ENDED), online=False), peer(HEIR), peer(NEW))
    whole = {
        "instances": {"aws": Fresh(listed, NOW)},
        "tailnet": Fresh(tailnet(*peers), NOW, ago(300 if heard else 1)),
        "slurm": Fresh(slurm(node(KEPT), node(ENDED, "DOWN")), NOW, ago(300)),
        "node_addrs": {m.slot: m.tailnet_ip for m in (KEPT, ENDED)},
        "reports": SILENT,
    }
    return {**whole, **parts}


def steps(
    machines: tuple[Machine, ...], found: dict[str, Any], *, gpus: int = 2, pool: Pool = POOL, **parts: Any
) -> list[p.Step]:
    desired = Desired("lab", {"h100": pool}, {"h100": Target("h100", gpus)})
    return list(plan(desired, machines, snapshot(**found), NOW, **parts).steps)


GONE = instance(ENDED, InstanceState.GONE)
LISTED = (instance(KEPT), GONE, instance(HEIR), instance(NEW))


def test_the_heir_of_a_machine_that_has_ended_gets_its_slot_at_once() -> None:
    (step,) = steps((KEPT, ENDED), seen(instance(KEPT), GONE, instance(HEIR)))
    assert isinstance(step, p.AdoptOrphan)
    assert (step.instance.token, step.slot, step.heir_of) == (HEIR.name, "h100-2", ENDED.name)
    young = replace(instance(HEIR), launched_at=ago(1))
    (step,) = steps((KEPT, ENDED), seen(instance(KEPT), GONE, young))
    assert isinstance(step, p.AdoptOrphan)


@pytest.mark.parametrize("phase", [Phase.READY, Phase.DRAINING, Phase.TESTING, Phase.BOOTING])
@pytest.mark.parametrize("listed", [(), (GONE,)])
def test_until_it_is_known_that_it_has_ended_the_heir_lives_and_nothing_is_rented(
    phase: Phase, listed: tuple[Instance, ...]
) -> None:
    before = replace(ENDED, phase=phase, phase_since=ago(900))
    for gpus in (1, 2, 3):
        found = steps((KEPT, before), seen(instance(KEPT), instance(HEIR), *listed, heard=False), gpus=gpus)
        undone = p.TerminateOrphan | p.RequestMachine | p.Leave | p.Remove | p.AdoptOrphan | p.Move
        assert not [s for s in found if isinstance(s, undone)], gpus


def test_its_slot_is_not_freed_under_its_heirs_job() -> None:
    """Slurm's own state was put back: it has the heir as the node."""
    at_work = slurm(node(KEPT), node(HEIR, "ALLOCATED", "CLOUD"), jobs={"h100-2": "7"})
    for before in (ENDED, replace(ENDED, phase=Phase.DRAINING)):
        found = steps((KEPT, before), seen(instance(KEPT), GONE, instance(HEIR), slurm=Fresh(at_work, NOW, ago(300))))
        (step,) = found
        assert isinstance(step, p.AdoptOrphan)
        assert (step.tailnet_ip, step.heir_of) == (HEIR.tailnet_ip, ENDED.name)


def test_one_more_for_a_slot_whose_machine_is_there_is_ended() -> None:
    spoke = {**SILENT, ENDED.name: AgentReport(at=NOW)}
    for listed, reports in (((instance(ENDED),), SILENT), ((), spoke)):
        there = replace(ENDED, heartbeat_at=ago(1)) if reports is spoke else ENDED
        found = steps((KEPT, there), seen(instance(KEPT), instance(HEIR), *listed, reports=reports))
        assert [s.instance.token for s in found if isinstance(s, p.TerminateOrphan)] == [HEIR.name]


def test_an_order_of_the_backup_that_was_never_sent_makes_room() -> None:
    order = machine(Phase.REQUESTED, index=2, created_at=ago(5))
    (step,) = steps((KEPT, order), seen(instance(KEPT), instance(HEIR)))
    assert isinstance(step, p.AdoptOrphan)
    assert step.heir_of == order.name
    assert steps((KEPT, order), seen(instance(KEPT), instance(HEIR)), busy={order.name}) == []


def test_an_order_of_the_backup_that_was_sent_since_is_not_sent_again() -> None:
    order = machine(Phase.REQUESTED, index=2, created_at=ago(5))
    (step,) = steps((KEPT, order), seen(instance(KEPT), instance(order)))
    assert isinstance(step, p.Move)
    assert step.to is Phase.LAUNCHING


def test_nothing_is_surplus_while_others_may_have_ended() -> None:
    """With those of the backup that have ended since, the adopted ones seem too many."""
    new = replace(NEW, phase=Phase.BOOTING, launch_attempts=0, heartbeat_at=None)
    for listed in ((GONE,), ()):
        found = seen(instance(KEPT), instance(NEW), *listed, heard=False)
        assert not [s for s in steps((KEPT, ENDED, new), found) if isinstance(s, p.Remove)]
    there = seen(instance(KEPT), instance(NEW), instance(ENDED))
    assert len([s for s in steps((KEPT, ENDED, new), there) if isinstance(s, p.Remove)]) == 1


def test_none_stays_of_a_pool_that_shall_have_none() -> None:
    found = steps((KEPT, ENDED), seen(heard=False, instances={"aws": GONE_DARK}), gpus=0)
    assert {s.subject for s in found if isinstance(s, p.Remove)} == {KEPT.name, ENDED.name}


def test_one_that_came_for_the_queue_displaces_none_of_the_target() -> None:
    """What it was rented for is not known."""
    pool = replace(POOL, from_queue=True)
    (step,) = steps((KEPT,), seen(instance(KEPT), instance(NEW)), gpus=1, pool=pool)
    assert isinstance(step, p.AdoptOrphan)
    assert step.by_queue
    new = replace(NEW, by_queue=True)
    for machines in permutations((KEPT, new)):
        found = steps(machines, seen(instance(KEPT), instance(NEW)), gpus=1, pool=pool)
        assert not [s for s in found if isinstance(s, p.Remove | p.Move)]


def test_nothing_is_rented_while_one_is_too_young_to_be_adopted() -> None:
    young = replace(instance(NEW), launched_at=None)
    assert steps((KEPT,), seen(instance(KEPT), young)) == []
    whole = seen(instance(KEPT), young)
    (step,) = steps((KEPT,), whole, first_seen={("aws", young.id): ago(301)})
    assert isinstance(step, p.AdoptOrphan)
    (other,) = steps((KEPT,), seen(instance(KEPT)))
    assert isinstance(other, p.RequestMachine)
    assert other.offer == OFFER
