"""Which sections a node is given, when they are sent, what a machine waits for, and what a fault of theirs causes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshd.model import plan as p
from meshd.model.desired import Desired, Policy, Pool, Target
from meshd.model.machine import FailureCause, Phase, UnfitReason
from meshd.model.node_settings import NodeFault, ReportedSection, SectionState, WantedSection
from meshd.model.observed import AgentReport, Fresh, Snapshot
from meshd.plan.accounts import Accounts, User
from meshd.plan.arriving import configuring
from meshd.plan.fitness import unfit
from meshd.plan.node_settings import (
    BUILT_IN_ENV,
    SECTIONS,
    ClusterGiven,
    NodeKind,
    PoolGiven,
    digest,
    sections,
    to_send,
    unapplied,
)
from meshd.plan.plan_input import PlanInput
from meshd.plan.repair import repair
from meshd.plan.replace import replacement
from meshd.plan.shares import Share
from tests.unit.worlds import NOW, ago, around, cluster_view, machine, node, peer, slurm, tailnet

GIVEN = ClusterGiven({"h100": PoolGiven(env={"HF_HOME": "/data/hf", "GLOO_SOCKET_IFNAME": "eth0"})})
VM = NodeKind("h100", pod=False)
A, B = "a" * 16, "b" * 16
WORKING, APPLIED, FAILED = SectionState


def said(state: SectionState = APPLIED, of: str = A, detail: str = "", *, final: bool = False) -> ReportedSection:
    return ReportedSection(of, state, NOW, detail, final)


def report(**found: ReportedSection) -> AgentReport:
    return AgentReport(NOW, sections=found)


def test_a_pools_variables_come_after_the_built_in_ones_and_win() -> None:
    assert sections(GIVEN, VM)["job_env"].value == {
        "env": {**BUILT_IN_ENV, "GLOO_SOCKET_IFNAME": "eth0", "HF_HOME": "/data/hf"}
    }
    assert sections(GIVEN, NodeKind("other", pod=True))["job_env"].value == {"env": BUILT_IN_ENV}
    assert list(sections(GIVEN, VM)) == [name for name in SECTIONS if name in sections(GIVEN, VM)]


def test_the_heads_users_go_to_every_node() -> None:
    assert "accounts" not in sections(GIVEN, VM), "they are not known: nodes keep what they have"
    users = (User("anna", 1001, 1001, "", "/home/anna", "/bin/sh"),)
    share = Share("home", "/home", "", "", ())
    given = replace(GIVEN, accounts=Accounts(users), shares=(share,), move_image_accounts=False)
    value = sections(given, VM)["accounts"].value
    assert [one["name"] for one in value["users"]] == ["anna"]
    assert (value["image_accounts"], value["shares"]) == ("keep", ["/home"])
    assert sections(given, NodeKind("h100", pod=True))["accounts"].value["shares"] == [], "a pod mounts none"
    assert list(sections(given, VM))[:2] == ["accounts", "shares"]


def test_the_digest_follows_the_value_and_not_its_order() -> None:
    assert digest({"a": 1, "b": [1, 2]}) == digest({"b": [1, 2], "a": 1}) != digest({"a": 1, "b": [2, 1]})


def test_what_an_agent_does_not_hold_is_sent() -> None:
    wanted = {"one": WantedSection(A), "two": WantedSection(A)}
    assert to_send(wanted, {}) == ("one", "two")
    assert to_send(wanted, {"one": said(FAILED), "two": said(WORKING)}) == (), "the agent tries again by itself"
    assert to_send(wanted, {"one": said(), "two": said(of=B)}) == ("two",)


@pytest.mark.parametrize(("state", "sent"), [(APPLIED, ()), (FAILED, ("setup",)), (WORKING, ("setup",))])
def test_what_is_done_once_is_not_sent_again_to_a_machine_that_has_it(state: SectionState, sent: Any) -> None:
    assert to_send({"setup": WantedSection(A, once=True)}, {"setup": said(state, B)}) == sent


def test_what_a_machine_waits_for() -> None:
    wanted = {"one": WantedSection(A), "two": WantedSection(A)}
    assert unapplied({}, None) is None, "there is nothing to have"
    assert unapplied(wanted, AgentReport(NOW)) is None, "its agent is older than sections"
    assert unapplied(wanted, report(one=said(), two=said())) is None
    for waits in (None, report(), report(one=said(of=B), two=said()), report(one=said(WORKING), two=said())):
        assert unapplied(wanted, waits).name == "one"
    failed = unapplied(wanted, report(one=said(WORKING), two=said(FAILED, detail="no disk")))
    assert (failed.name, failed.words, failed.final) == ("two", "no disk", False)
    assert unapplied(wanted, report(one=said(FAILED), two=said(FAILED, final=True))).name == "two"
    assert unapplied({"one": WantedSection(A, once=True)}, report(one=said(of=B))) is None


NEW = machine(Phase.CONFIGURING, munge_ok=True, line_published=True)


def step(told: AgentReport | None, wanted: dict[str, WantedSection], age_s: float = 10.0) -> p.Step | None:
    m = replace(NEW, phase_since=ago(age_s))
    reports = {m.name: told} if told else {}
    seen: Snapshot = around(m, "DOWN", reports=reports, sections={m.name: wanted})
    return configuring(m, PlanInput.of(seen, Policy(), NOW, {}))


def test_slurmd_starts_when_all_sections_are_applied() -> None:
    wanted = {"one": WantedSection(A)}
    for told in (None, report(), report(one=said(WORKING)), report(one=said(FAILED)), report(one=said(of=B))):
        assert step(told, wanted) is None
    for told in (AgentReport(NOW), report(one=said())):
        assert isinstance(step(told, wanted), p.StartSlurmd)
    assert isinstance(step(None, {}), p.StartSlurmd)


def test_a_machine_whose_settings_fail_is_given_back_with_the_words_of_the_failure() -> None:
    wanted = {"one": WantedSection(A), "setup": WantedSection(A, once=True, within_s=600.0)}
    told = report(one=said(), setup=said(FAILED, detail="exit code 3"))
    assert step(told, wanted, 800.0) is None, "it has its own time"
    given_up = step(told, wanted, 1000.0)
    assert isinstance(given_up, p.Move)
    assert (given_up.cause, "setup: exit code 3" in given_up.failure) == (FailureCause.SETTINGS, True)
    at_once = step(report(one=said(), setup=said(FAILED, detail="exit code 3", final=True)), wanted)
    assert isinstance(at_once, p.Move)
    assert "setup: exit code 3" in at_once.failure


READY = machine(Phase.READY, age_s=1000.0, ready_at=ago(1000))


def fault(since_s: float, code: str = "share_lost") -> AgentReport:
    return AgentReport(ago(1), sections={}, faults=(NodeFault("shares", code, "/data", ago(since_s)),))


def given(told: AgentReport, *states: str, **parts: Any) -> PlanInput:
    seen = around(READY, *states, reports={READY.name: told})
    held = slurm(node(READY, *states, **parts))
    return PlanInput.of(replace(seen, slurm=Fresh(held, NOW)), Policy(), NOW, {})


@pytest.mark.parametrize(
    ("code", "why"), [("share_lost", UnfitReason.SHARE_LOST), ("account_clash", UnfitReason.ACCOUNT_CLASH)]
)
def test_a_fault_of_a_section_makes_the_node_unfit_after_the_grace(code: str, why: UnfitReason) -> None:
    def look(told: AgentReport) -> Any:
        heard = Fresh(tailnet(peer(READY)), NOW)
        view = cluster_view(slurm=Fresh(slurm(node(READY)), NOW), tailnet=heard, reports={READY.name: told})
        return unfit(READY, view)

    assert look(fault(60, code)).why is why
    assert look(fault(5, code)) is None
    assert look(fault(60, "unknown_to_this_head")) is None
    dead = replace(fault(60, code), slurmd_dead_since=ago(60))
    assert look(dead).why is why, "after a reboot slurmd waits for it: another machine would wait as well"


def test_its_node_is_drained_and_opened_again_and_never_replaced() -> None:
    sick = replace(READY, unfit_reason=UnfitReason.SHARE_LOST, unfit_since=ago(5000))
    drain = repair(sick, given(fault(5000)))
    assert isinstance(drain, p.Drain)
    drained = ("IDLE", "DRAIN")
    assert repair(sick, given(fault(5000), *drained, reason="meshd: shares: /data")) is None
    pool = Pool("h100", "h100", 1, 4, ("aws",))
    desired = Desired("lab", {"h100": pool}, {"h100": Target("h100", 1)})
    assert replacement(desired, pool, [sick], given(fault(5000), *drained, reason="meshd: shares: /data")) is None
    over = AgentReport(ago(1), sections={})
    held = replace(sick, unfit_reason=UnfitReason.BY_MESHD, unfit_since=ago(60))
    assert isinstance(repair(held, given(over, *drained, reason="meshd: shares: /data")), p.Undrain)
    persons = given(over, *drained, reason="drained by alice: x", reason_by="alice")
    assert not isinstance(repair(held, persons), p.Undrain)
