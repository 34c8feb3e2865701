"""A tailnet without IPv4: one clear refusal, and nothing more is rented."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from meshd.codes import JoinCode
from meshd.daemon.nodes.admission import check_join
from meshd.errors import JoinRefused
from meshd.model.cooldown import CooldownKey
from meshd.model.desired import Desired, Policy, Pool, Target
from meshd.model.machine import FailureCause, Phase
from meshd.model.observed import Fresh, TailnetView
from meshd.model.plan import Move, RequestMachine
from meshd.plan.cooldowns import BootPolicy, tripped
from meshd.plan.devices import NO_IPV4, machines_without_ipv4
from meshd.plan.plan_input import LONG_AGO
from meshd.plan.planner import plan
from tests.unit.worlds import FACTS, NOW, around, machine, peer, snapshot, tailnet

WANTED = Desired(
    "lab", {"h100": Pool("h100", "h100", 1, 6, ("aws",))}, {"h100": Target("h100", 1)}, Policy(), {},
)  # fmt: skip


def test_nothing_is_rented_while_the_head_has_no_ipv4_address() -> None:
    view = replace(tailnet(), self_tailnet_ip="")
    made = plan(WANTED, [], snapshot(tailnet=Fresh(view, NOW)), NOW)
    assert not [step for step in made.steps if isinstance(step, RequestMachine)]
    (warning,) = made.warnings
    assert "IPv4" in warning.reason and "disable-ipv4" in warning.cure
    steps = plan(WANTED, [], snapshot(), NOW).steps
    assert [step for step in steps if isinstance(step, RequestMachine)]


def test_a_machine_without_an_address_is_given_back_at_once() -> None:
    m = machine(Phase.BOOTING, age_s=5)
    without = replace(peer(m), tailnet_ip="")
    steps = plan(WANTED, [m], around(m, tailnet=Fresh(tailnet(without), NOW)), NOW).steps
    (move,) = [step for step in steps if isinstance(step, Move)]
    assert (move.to, move.failure.startswith(NO_IPV4)) == (Phase.TERMINATING, True)


def test_one_such_machine_stops_its_pool() -> None:
    policy = BootPolicy(3, 600.0, 3600.0)
    m = replace(
        machine(Phase.TERMINATING),
        failure=f"{NO_IPV4} (...)",
        failure_cause=FailureCause.NO_IPV4,
        created_at=NOW - timedelta(seconds=30),
    )
    assert tripped(CooldownKey("pool:h100"), [m], LONG_AGO, None, NOW, policy) is not None
    other = replace(m, failure="it did not boot", failure_cause=FailureCause.TAILNET)
    assert tripped(CooldownKey("pool:h100"), [other], LONG_AGO, None, NOW, policy) is None


def test_the_join_is_refused_for_good() -> None:
    m = machine(Phase.JOINING)
    with pytest.raises(JoinRefused) as caught:
        check_join(m, replace(peer(m), tailnet_ip=""), FACTS)
    assert (caught.value.code, caught.value.fatal) == (JoinCode.NO_IPV4, True)
    check_join(m, peer(m), FACTS)


def test_which_machines_the_doctor_names() -> None:
    m = machine(Phase.READY)
    view: TailnetView = tailnet(
        replace(peer(m), tailnet_ip=""), replace(peer(m), id="x", hostname="laptop", tailnet_ip="")
    )
    assert machines_without_ipv4(view, frozenset({m.name})) == (m.name,)
    assert machines_without_ipv4(tailnet(peer(m)), frozenset({m.name})) == ()
