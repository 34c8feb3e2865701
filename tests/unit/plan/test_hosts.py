"""Owned machines in the plan: whose slot is whose, who is wanted, and what others may not do to them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshd.codes import DemandCode
from meshd.model import plan as p
from meshd.model.cooldown import Cooldown, CooldownKey
from meshd.model.desired import Desired, Policy, Pool, Target
from meshd.model.freeze import Freeze
from meshd.model.host import Host, HostOrder, HostState
from meshd.model.machine import FailureCause, Machine, Phase
from meshd.model.observed import Fresh, Snapshot, TailnetPeer
from meshd.plan.failure_rules import Scope, rule_of
from meshd.plan.hosts import as_machines, away, offer_of, order_of, unsuited
from meshd.plan.idle import give_back
from meshd.plan.lifecycle import next_step
from meshd.plan.plan_input import PlanInput
from meshd.plan.planner import plan
from meshd.plan.slots import SlotPool, slot_changes
from meshd.provider_api import InstanceState
from tests.unit.plan.queues import HERE, POOL, by_queue, decided, job, rents, requests, view
from tests.unit.worlds import NOW, OFFER, ago, around, host, instance, machine, node, peer, snapshot, tailnet

BY_HAND = Pool("h100", "h100", 1, 4, ("static", "aws"))
QUEUED = replace(POOL, providers=("static", "aws", "gce"))
SLOTS = SlotPool("h100", 8, "h100")


def mine(one: Host, phase: Phase = Phase.READY, **changes: Any) -> Machine:
    """The machine of a host."""
    offer = offer_of(one)
    assert offer is not None
    return machine(phase, index=int(one.slot[-1]), provider="static", offer=offer, **changes)


def by_hand(*hosts: Host, gpus: int = 0, machines: tuple[Machine, ...] = (), **target: Any) -> p.Plan:
    cooldowns = target.pop("cooldowns", {})
    pool = target.pop("pool", BY_HAND)
    targets = {"h100": Target("h100", gpus, **target)}
    desired = Desired("lab", {"h100": pool}, targets, Policy(), cooldowns=cooldowns, hosts=hosts)
    return plan(desired, list(machines), snapshot(), NOW)


# -- what a host is ---------------------------------------------------------------------------------------------------


def test_what_a_host_offers() -> None:
    offer = offer_of(host(1, usd_per_hour=0.1))
    assert offer is not None
    assert (offer.key, offer.gpu, offer.gpus, offer.gpu_memory_gib) == ("static/owned/pc-1", "h100-sxm", 1, 80)
    assert (offer.vcpus, offer.memory_mib, offer.usd_per_hour, offer.arch) == (8, 65536, 0.1, "x86_64")
    assert (offer.slot, offer.standing) == ("h100-1", True)
    assert offer_of(host(1, facts=None)) is None
    sleeps = offer_of(host(1, sleeps=True))
    assert sleeps is not None and not sleeps.standing


@pytest.mark.parametrize(
    ("one", "order"),
    [
        (host(1), HostOrder.FREE),
        (host(1, machine="m"), HostOrder.NODE),
        (host(1, machine="m", evict=True), HostOrder.NODE),
        (host(1, evict=True), HostOrder.EVICT),
        (host(1, evict=True, sleeping_since=NOW), HostOrder.EVICT),
        (host(1, sleeping_since=NOW), HostOrder.SLEEP),
        (host(1, sleeping_since=NOW, machine="m"), HostOrder.NODE),
    ],
)
def test_where_a_host_goes(one: Host, order: HostOrder) -> None:
    assert order_of(one) is order


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (host(1), ""),
        (host(1, seen_at=ago(59)), ""),
        (host(1, seen_at=ago(61)), "pc-1 is away since 2026-03-01 11:58 UTC"),
        (host(1, sleeps=True, there=False), ""),
        (host(1, sleeps=True, state=HostState.LEAVING), "pc-1 is leaving"),
        (host(1, state=HostState.LEAVING, problem="apt is busy"), "pc-1 is leaving: apt is busy"),
        (host(1, evict=True), "pc-1 is being evicted"),
        (host(1, enrolled_at=None), "pc-1 is invited until 2026-03-01 12:00 UTC"),
        (host(1, there=False, wake_mac="3c:ec:ef:00:12:34"), "pc-1 is away since meshd knows it"),
    ],
)
def test_when_a_host_can_be_had(one: Host, why: str) -> None:
    assert away(one, NOW) == why


def test_a_host_must_have_what_its_pool_wants() -> None:
    assert unsuited(host(1), BY_HAND) == ""
    assert unsuited(host(1), replace(BY_HAND, regions=("us-east-1",))) == "", "it is nowhere"
    assert "not a100" in unsuited(host(1), replace(BY_HAND, gpu="a100"))
    assert "pools.h100.cpus_min" in unsuited(host(1), replace(BY_HAND, cpus_min=9))
    assert "pools.h100.providers" in unsuited(host(1), replace(BY_HAND, providers=("aws",)))


def test_a_host_is_known_by_its_device_and_keeps_its_name() -> None:
    its, other = (TailnetPeer(id_, "laptop", ip, online=True) for id_, ip in (("n-pc-1", "100.64.0.9"), ("n-2", "")))
    seen = tailnet(its, other)
    assert as_machines(seen, [host(1)]) is seen
    named = as_machines(seen, [host(1, machine="lab-h100-1-abcdef"), host(2, machine="lab-h100-2-abcdef")])
    assert {one.id: one.hostname for one in named.peers.values()} == {"n-pc-1": "lab-h100-1-abcdef", "n-2": "laptop"}
    assert its.hostname == "laptop"


# -- who is wanted ----------------------------------------------------------------------------------------------------


def test_a_host_that_is_there_is_wanted_without_a_target() -> None:
    assert rents(by_hand(host(2))) == [("h100-2", "static/owned/pc-2")]
    desired = Desired("lab", {"h100": BY_HAND}, {}, Policy(), hosts=(host(2),))
    assert rents(plan(desired, [], snapshot(), NOW)) == [("h100-2", "static/owned/pc-2")]


def test_hosts_count_for_the_target_and_their_slots_are_theirs() -> None:
    found = rents(by_hand(host(1), host(3, there=False), gpus=3))
    assert found == [("h100-1", "static/owned/pc-1"), ("h100-2", OFFER.key), ("h100-4", OFFER.key)]


def test_sleeping_hosts_come_before_what_is_rented_the_cheapest_first() -> None:
    hosts = (host(1, sleeps=True, there=False, usd_per_hour=9.0), host(2, sleeps=True, usd_per_hour=0.2))
    assert rents(by_hand(*hosts)) == []
    assert rents(by_hand(*hosts, gpus=1)) == [("h100-2", "static/owned/pc-2")]
    assert [slot for slot, _ in rents(by_hand(*hosts, gpus=3))] == ["h100-2", "h100-1", "h100-3"]
    assert rents(by_hand(*hosts, gpus=1, provider="aws")) == [("h100-3", OFFER.key)], "an order for aws alone"


def test_a_host_with_a_machine_is_not_taken_twice() -> None:
    one = host(1, machine="m")
    for phase in (Phase.REQUESTED, Phase.BOOTING, Phase.READY, Phase.DRAINING, Phase.TERMINATING):
        assert not requests(by_hand(one, machines=(mine(one, phase),)))
        assert not requests(by_hand(replace(one, machine=""), machines=(mine(one, phase),))), "it is not gone yet"


def test_a_host_that_failed_lately_waits_as_any_offer() -> None:
    key = CooldownKey.of_offer(offer_of(host(1)))  # type: ignore[arg-type]
    cooling = {key: Cooldown(key, NOW.replace(hour=13), "it failed")}
    assert not requests(by_hand(host(1), cooldowns=cooling))


def test_a_host_that_does_not_suit_is_left_alone() -> None:
    assert not requests(by_hand(host(1), pool=replace(BY_HAND, cpus_min=9)))


def test_neither_a_target_nor_idle_time_nor_a_fault_ends_a_host() -> None:
    one = host(1, machine="m")
    ready = mine(one)
    assert not [step for step in by_hand(one, machines=(ready,)).steps if isinstance(step, p.Remove)]
    idle = replace(BY_HAND, idle_timeout_s=60.0)
    assert give_back(idle, None, [ready], {ready.name: ago(9999)}, NOW) is None
    sleeps = mine(host(1, sleeps=True, machine="m"))
    assert [s.subject for s in by_hand(one, machines=(sleeps,)).steps if isinstance(s, p.Remove)] == [sleeps.name]
    assert give_back(idle, None, [sleeps], {sleeps.name: ago(9999)}, NOW) is not None


# -- for jobs ---------------------------------------------------------------------------------------------------------


def test_a_job_may_have_hosts_and_rented_machines_together() -> None:
    hosts = (host(1, sleeps=True, there=False), host(2, machine="m"))
    there = mine(hosts[1], by_queue=False)
    found = decided(view(job(7, 1, 2, 3, 4), machines=[there]), there, pool=QUEUED, hosts=hosts)
    assert not found.refused
    assert sorted(rents(found)) == [("h100-1", "static/owned/pc-1"), ("h100-3", HERE.key), ("h100-4", HERE.key)]
    woken = next(step for step in requests(found) if step.subject == "h100-1")
    assert (woken.by_queue, woken.for_jobs, woken.gang) == (True, ("7",), "")


def test_a_job_whose_slot_is_that_of_a_host_that_is_away_goes_back() -> None:
    found = decided(view(job(7, 1, 3)), pool=QUEUED, hosts=(host(1, there=False),))
    assert not requests(found)
    assert [(one.jobs, one.slots, one.code) for one in found.refused] == [
        (("7",), ("h100-1", "h100-3"), DemandCode.NO_CAPACITY)
    ]
    assert found.refused[0].reason == "pc-1 is away since meshd knows it"


def test_while_meshd_is_frozen_no_host_is_taken_and_its_slot_says_why() -> None:
    freeze = Freeze(NOW, "ann", "the cloud lies")
    hosts = (host(1), host(2, sleeps=True))
    found = decided(view(job(7, 2, 3)), pool=QUEUED, hosts=hosts, freeze=freeze)
    assert not found.steps
    assert [(one.slots, one.code) for one in found.refused] == [(("h100-2", "h100-3"), DemandCode.FROZEN)]
    assert found.bound_slots == dict.fromkeys(("h100-1", "h100-2"), freeze.words)


def test_a_host_is_not_woken_for_a_job_that_cannot_have_the_rest() -> None:
    found = decided(view(job(7, 1, 3)), pool=QUEUED, offers=(), hosts=(host(1, sleeps=True),))
    assert not requests(found)
    assert found.refused[0].slots == ("h100-3",)


def test_a_host_does_not_hold_a_gang_where_it_is() -> None:
    one = host(1, machine="m")
    rented = by_queue(Phase.BOOTING, 2, 7)
    found = decided(view(job(7, 1, 2, 3), machines=[rented]), mine(one), rented, pool=QUEUED, hosts=(one,))
    assert rents(found) == [("h100-3", HERE.key)]


def test_the_slot_of_a_host_that_is_away_is_drained_with_the_reason() -> None:
    hosts = (host(1, there=False), host(2, sleeps=True, there=False))
    free = view()
    found = decided(free, pool=QUEUED, hosts=hosts)
    assert found.bound_slots == {"h100-1": "pc-1 is away since meshd knows it", "h100-2": ""}
    assert found.open_slots["h100"].count == 6, "six can be rented for; the sleeping one is open beside them"
    changes = slot_changes([SLOTS], [], free, found)
    assert changes.drain == {"meshd: pc-1 is away since meshd knows it": ("h100-1",)}
    nodes = dict(free.nodes)
    nodes["h100-1"] = replace(
        nodes["h100-1"], states=nodes["h100-1"].states | {"DRAIN"}, reason="meshd: pc-1 is away since meshd knows it"
    )
    drained = replace(free, nodes=nodes)
    assert slot_changes([SLOTS], [], drained, found).none, "once is enough"
    back = decided(drained, pool=QUEUED, hosts=(replace(hosts[0], seen_at=NOW), hosts[1]))
    assert slot_changes([SLOTS], [], drained, back).resume == ("h100-1",)


# -- away -------------------------------------------------------------------------------------------------------------


def step(m: Machine, seen: Snapshot, **policy: Any) -> p.Step | None:
    return next_step(m, PlanInput.of(seen, Policy(**policy), NOW, {}))


def test_a_host_that_goes_ends_its_machine_and_nothing_cools_down() -> None:
    m = mine(host(1, machine="m"), heartbeat_at=ago(500), region="owned")
    gone = instance(m, InstanceState.STOPPED, provider=m.provider, reason="pc-1 is away since 11:58")
    seen = around(m, "DOWN", "NOT_RESPONDING", instances={"static": Fresh((gone,), NOW)})
    found = step(m, seen)
    assert isinstance(found, p.Move) and found.to is Phase.DRAINING
    assert (found.cause, found.reason) == (FailureCause.AWAY, "static ended it: pc-1 is away since 11:58")
    assert rule_of(FailureCause.AWAY).scope is Scope.NOTHING


def test_a_host_whose_agent_speaks_is_there_whatever_the_listing_says() -> None:
    m = mine(host(1, machine="m"))
    gone = instance(m, InstanceState.STOPPED, provider=m.provider)
    assert step(m, around(m, instances={"static": Fresh((gone,), NOW)})) is None


def test_a_job_on_a_host_that_went_is_waited_for_until_slurm_has_taken_it_back() -> None:
    m = mine(host(1, machine="m"), Phase.DRAINING, heartbeat_at=ago(500), drained_at=ago(100))
    gone = instance(m, InstanceState.STOPPED, provider=m.provider)
    busy = node(m, "ALLOCATED", "DRAIN")
    listed = {"static": Fresh((gone,), NOW)}
    seen = around(m, "ALLOCATED", "DRAIN", jobs={m.slot: "7"}, instances=listed)
    assert busy.busy and step(m, seen) is None
    assert isinstance(step(m, around(m, "DOWN", "DRAIN", instances=listed)), p.Leave)


def test_the_device_of_a_host_is_never_deleted_with_its_machine() -> None:
    m = mine(host(1, machine="m"), Phase.GONE)
    seen = around(m, tailnet=Fresh(tailnet(peer(m)), NOW))
    assert step(m, seen, may_change_devices=True) is None
    assert isinstance(step(machine(Phase.GONE), around(machine(Phase.GONE)), may_change_devices=True), p.RemoveDevice)
