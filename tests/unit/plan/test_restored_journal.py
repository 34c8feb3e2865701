"""After an older journal was restored: machines that came since are adopted; none is ended or rented for nothing."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from meshd.codes import DemandCode, WarningCode
from meshd.model import plan as p
from meshd.model.desired import Desired, Pool, Promise, Target
from meshd.model.machine import Machine, Phase, Removal
from meshd.model.observed import AgentReport, Fresh, SlurmJob
from meshd.model.restored import Restored
from meshd.plan.planner import plan
from meshd.plan.restored import unheld
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


RESTORED = Restored(ago(4000), frozenset({"aws"}), frozenset({"h100"}))
DARK: dict[str, Any] = {"instances": {"aws": GONE_DARK}}


def waiting(machines: tuple[Machine, ...], found: dict[str, Any], pool: Pool = POOL, **parts: Any) -> p.Plan:
    desired = Desired("lab", {"h100": pool}, {"h100": Target("h100", 4)}, restored=RESTORED)
    return plan(replace(desired, **parts), machines, snapshot(**found), NOW)


def test_nothing_is_rented_elsewhere_while_a_cloud_of_the_pool_was_not_listed() -> None:
    other = replace(OFFER, provider="gce")
    pool = replace(POOL, providers=("aws", "gce"))
    offers = {"gce": Fresh((other,), NOW), "aws": GONE_DARK}
    both = seen(instances={"aws": GONE_DARK, "gce": Fresh((), NOW)}, offers=offers)
    free = waiting((), both, pool, restored=None)
    assert {s.offer.provider for s in free.steps if isinstance(s, p.RequestMachine)} == {"gce"}
    found = waiting((), both, pool)
    assert not [s for s in found.steps if isinstance(s, p.RequestMachine)]
    (warning,) = [one for one in found.warnings if one.code is WarningCode.RESTORED_UNLISTED]
    assert (warning.subject, warning.holds_back) == ("h100", True) and "aws" in warning.reason
    # A pool that cannot have machines there is not concerned.
    apart = replace(RESTORED, pools=frozenset({"other"}))
    assert waiting((), both, replace(pool, providers=("gce",)), restored=apart).steps


def test_a_known_host_may_come_all_the_same() -> None:
    host = replace(OFFER, provider="static", slot="h100-3")
    request = p.RequestMachine("h100-3", "it is there", "h100", host)
    assert unheld(Desired("lab", {}, {}, restored=RESTORED), {}, [request]) == [request]
    assert unheld(Desired("lab", {}, {}, restored=RESTORED), {}, [replace(request, offer=OFFER)]) == []


def test_an_order_of_the_backup_waits_too_and_is_not_taken_back() -> None:
    """It may have been sent since."""
    order = machine(Phase.REQUESTED, index=2, created_at=ago(5))
    for gpus in (0, 4):
        found = waiting((KEPT, order), seen(**DARK), targets={"h100": Target("h100", gpus)})
        assert not [s for s in found.steps if s.subject == order.name]
    gone = replace(order, removal=Removal.BY_USER)
    assert not [s for s in waiting((KEPT, gone), seen(**DARK)).steps if s.subject == order.name]


@pytest.mark.parametrize(("age_s", "refused"), [(10, False), (299, False), (301, True)])
def test_a_job_goes_back_to_the_queue_when_the_listing_does_not_come_soon(age_s: int, refused: bool) -> None:
    pool = replace(POOL, from_queue=True, promise=Promise(8, 65536, 1))
    line = replace(node(NEW, "ALLOCATED", "CLOUD", "POWERING_UP"), node_addr="192.0.2.1")
    view = replace(slurm(node(KEPT), line), power_saving=True)
    view = replace(view, jobs=(SlurmJob("7", "u", "h100", "CONFIGURING", (NEW.slot,)),))
    restored = replace(RESTORED, at=ago(age_s))
    found = waiting((KEPT,), seen(slurm=Fresh(view, NOW, ago(300)), **DARK), pool, restored=restored, targets={})
    assert not [s for s in found.steps if isinstance(s, p.RequestMachine)]
    assert [(one.jobs, one.code) for one in found.refused] == (
        [(("7",), DemandCode.RESTORED_UNLISTED)] if refused else []
    )
    assert (found.open_slots["h100"].code is DemandCode.RESTORED_UNLISTED) == refused
    assert found.open_slots["h100"].until is None
