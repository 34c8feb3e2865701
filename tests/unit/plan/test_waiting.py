"""What is said of the jobs that wait for machines."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshd.codes import DemandCode
from meshd.model.cooldown import Cooldown, CooldownCause, CooldownKey
from meshd.model.desired import Desired, Pool
from meshd.model.machine import Machine, Phase, Removal
from meshd.model.observed import SlurmJob, SlurmView
from meshd.model.plan import OpenSlots, Plan, RefusedDemand
from meshd.plan.waiting import (
    COMMENT,
    POD_S,
    SENT_BACK,
    VM_S,
    WORDS_MAX,
    BootTime,
    BootTimes,
    Wait,
    WaitingJob,
    capacity_words,
    comments,
    moment,
    waiting_jobs,
)
from meshd.provider_api import Offer, ProviderName
from tests.unit.worlds import NOW, OFFER, ago, machine

LAMBDA = ProviderName("lambda")
POOL = Pool("h100", "h100", 1, 8, ("aws", "lambda"), from_queue=True)
DESIRED = Desired("lab", {"h100": POOL}, {})
JOB = SlurmJob("12", "ann", "gpu", "CONFIGURING", ("h100-1", "h100-2"), node_count=2)
TIMES = BootTimes((BootTime("aws", "g.1", 90.0),))


def waits(
    *machines: Machine,
    job: SlurmJob = JOB,
    plan: Plan | None = None,
    desired: Desired = DESIRED,
    offers: tuple[Offer, ...] = (),
    now: datetime = NOW,
) -> tuple[WaitingJob, ...]:
    slurm = SlurmView("24.11.5", {}, (job,))
    return waiting_jobs(desired, {"h100": "gpu"}, machines, slurm, plan or Plan(), offers, TIMES, now)


def on_its_way(index: int, phase: Phase = Phase.BOOTING, called_s: float = 30.0, **changes: Any) -> Machine:
    return machine(phase, index=index, launch_called_at=ago(called_s), by_queue=True, **changes)


def test_machines_that_boot_and_until_when() -> None:
    (one,) = waits(on_its_way(1), on_its_way(2, called_s=10.0))
    assert (one.wait, one.nodes, one.ready, one.until) == (Wait.BOOT, 2, 0, NOW + timedelta(seconds=80))
    assert one.text == "2 machines boot at aws r1, ready about 12:01 UTC (90 s)"
    (one,) = waits(machine(Phase.READY, index=1), on_its_way(2))
    assert (one.ready, one.text.startswith("1 of 2 machines boots at aws r1")) == (1, True)
    assert one.comment == COMMENT + one.text


def test_the_sentence_stays_the_same_while_nothing_changes() -> None:
    def text(later_s: float) -> str:
        return waits(on_its_way(1), on_its_way(2), now=NOW + timedelta(seconds=later_s))[0].text

    assert len({text(s) for s in (0, 10, 30, 59)}) == 1
    assert "longer than the usual 90 s" in text(61)
    assert text(61) == text(600)


def test_machines_that_are_ordered_or_about_to_be() -> None:
    (one,) = waits(on_its_way(1, Phase.LAUNCHING), on_its_way(2, Phase.REQUESTED))
    assert (one.wait, "are ordered at aws r1" in one.text) == (Wait.BOOT, True)
    (one,) = waits()
    assert (one.wait, one.until) == (Wait.ORDER, None)
    gone = machine(Phase.TERMINATING, index=1)
    leaves = machine(Phase.BOOTING, index=2, removal=Removal.GANG_MOVED)
    assert waits(gone, leaves)[0].wait is Wait.ORDER
    assert waits(machine(Phase.READY, index=1), machine(Phase.READY, index=2))[0].wait is Wait.START


def test_other_places_are_counted() -> None:
    other = on_its_way(2, offer=replace(OFFER, region="r2"))
    assert "at aws r1 and 1 other place" in waits(on_its_way(1), other)[0].text


@pytest.mark.parametrize(
    "job",
    [
        replace(JOB, state="RUNNING"),
        replace(JOB, nodes=("cpu-1",)),
        replace(JOB, state="PENDING", nodes=(), state_reason="Dependency"),
        replace(JOB, state="PENDING", nodes=(), state_reason="Resources"),
    ],
)
def test_jobs_that_do_not_wait_for_machines(job: SlurmJob) -> None:
    assert waits(job=job) == ()


def test_pools_that_people_scale_are_left_out() -> None:
    assert waits(desired=Desired("lab", {"h100": replace(POOL, from_queue=False)}, {})) == ()


UNTIL = NOW + timedelta(minutes=30)
CLOSED = OpenSlots(0, DemandCode.LIMIT_IN_ALL, "it would cost too much", UNTIL)


@pytest.mark.parametrize(
    ("reason", "comment", "partition", "nodes", "count", "told"),
    [
        ("Resources", "", "gpu", 1, 0, True),
        ("Nodes required for job are DOWN, DRAINED or reserved", "", "a,gpu", 1, 0, True),
        ("BeginTime", f"{SENT_BACK}no h100", "gpu", 1, 0, True),
        ("BeginTime", "", "gpu", 1, 0, False),
        ("Dependency", "", "gpu", 1, 0, False),
        ("Priority", "", "gpu", 1, 0, False),
        ("Resources", "", "cpu", 1, 0, False),
        ("Resources", "", "gpu", 2, 2, False),
        ("Resources", "", "gpu", 3, 2, True),
    ],
)
def test_pending_jobs_for_which_there_are_no_slots(
    reason: str, comment: str, partition: str, nodes: int, count: int, told: bool
) -> None:
    job = SlurmJob("7", "u", partition, "PENDING", (), reason, admin_comment=comment, node_count=nodes)
    found = waits(job=job, plan=Plan(open_slots={"h100": replace(CLOSED, count=count)}))
    assert [(one.wait, one.until, one.nodes) for one in found] == ([(Wait.REFUSED, UNTIL, nodes)] if told else [])
    if told:
        assert found[0].text == "no h100 can be had before 12:30 UTC: it would cost too much"


def refusal(code: DemandCode, reason: str, until: datetime = UNTIL) -> Plan:
    return Plan(refused=(RefusedDemand("h100", ("12",), ("h100-1",), code, reason, until),))


def test_a_refused_job_is_told_why_in_short() -> None:
    zones = tuple(replace(OFFER, zone=f"r1{z}") for z in "abc")
    offers = (*zones, replace(OFFER, provider=LAMBDA, zone="", usd_per_hour=9.0))
    keys = [CooldownKey.of_offer(one) for one in zones]
    cooldowns = {key: Cooldown(key, UNTIL, "InsufficientInstanceCapacity: a long text") for key in keys}
    desired = Desired("lab", {"h100": replace(POOL, max_usd_per_gpu_hour=3.0)}, {}, cooldowns=cooldowns)
    (one,) = waits(plan=refusal(DemandCode.NO_CAPACITY, "a long reason"), desired=desired, offers=offers)
    assert one.wait is Wait.REFUSED
    assert one.text == "no h100 can be had before 12:30 UTC: aws has none in 3 zones, limit 3 USD per GPU-hour"
    (one,) = waits(plan=refusal(DemandCode.NO_CAPACITY, "in other words"))
    assert one.text.endswith("in other words"), "nothing cools down: the plan knows why"


def test_who_refused_and_who_failed() -> None:
    far = replace(OFFER, provider=LAMBDA, region="r9", zone="")
    boots = CooldownKey.of_place("h100", "lambda", "r9")
    provider = CooldownKey.of_provider("aws")
    cooldowns = {
        boots: Cooldown(boots, UNTIL, "3 machines failed", cause=CooldownCause.BOOTS),
        provider: Cooldown(provider, UNTIL, "the key is refused"),
    }
    desired = Desired("lab", {"h100": POOL}, {}, cooldowns=cooldowns)
    words = capacity_words(desired, POOL, [OFFER, far], NOW)
    assert words == "aws is not asked before 12:30 UTC, machines of lambda failed in r9"
    assert capacity_words(DESIRED, POOL, [OFFER, far], NOW) == ""
    assert capacity_words(DESIRED, POOL, [replace(OFFER, available=False)], NOW) == "aws has none in r1a"


def test_boot_times_are_of_the_type_then_of_the_provider_then_usual() -> None:
    taken = (BootTime("aws", "g.1", 100.0), BootTime("aws", "g.1", 80.0), BootTime("aws", "g.9", 300.0))
    times = BootTimes(taken, frozenset({"runpod"}))
    assert times.expected_s(OFFER) == 90.0
    assert times.expected_s(replace(OFFER, instance_type="g.2")) == 100.0
    assert times.expected_s(replace(OFFER, provider=ProviderName("gce"))) == VM_S
    assert times.expected_s(replace(OFFER, provider=ProviderName("runpod"))) == POD_S


def test_another_day_is_named() -> None:
    assert moment(NOW + timedelta(days=1), NOW) == "2026-03-02 12:00 UTC"


@given(st.text(max_size=3000), st.integers(0, 30 * 86400))
def test_it_is_one_line_of_bounded_length(reason: str, until_s: int) -> None:
    (one,) = waits(plan=refusal(DemandCode.BUDGET, reason, NOW + timedelta(seconds=until_s)))
    assert len(one.comment) <= WORDS_MAX
    assert not any(char in one.comment for char in "\n\r\x1b")


@pytest.mark.parametrize(
    ("state", "comment", "written"),
    [
        ("CONFIGURING", "", True),
        ("CONFIGURING", "meshd: 2 machines are about to be ordered", True),
        ("CONFIGURING", "ask ann before you cancel it", False),
        ("RUNNING", "meshd: 2 machines boot at aws r1", True),
        ("RUNNING", "", False),
        ("RUNNING", "for the paper", False),
        ("PENDING", "meshd: no h100 can be had before 12:30 UTC: aws has none", False),
    ],
)
def test_which_comments_are_written(state: str, comment: str, written: bool) -> None:
    job = replace(JOB, state=state, admin_comment=comment)
    waiting = waits(on_its_way(1), on_its_way(2), job=job)
    found = comments(waiting, SlurmView("24.11.5", {}, (job,)))
    assert found == ({"12": waiting[0].comment if waiting else ""} if written else {})
    if written:
        after = replace(job, admin_comment=found["12"])
        assert comments(waiting, SlurmView("24.11.5", {}, (after,))) == {}, "once is enough"


@pytest.mark.parametrize(
    ("reason", "comment", "written"),
    [
        ("ReqNodeNotAvail", "", True),
        ("Nodes required for job are DOWN", "meshd: 1 machine boots at aws r1", True),
        ("Nodes required for job are DOWN", "for the paper", False),
        ("BeginTime", f"{SENT_BACK}no h100", False),
    ],
)
def test_a_job_that_came_while_no_slot_was_open_is_told_as_well(reason: str, comment: str, written: bool) -> None:
    job = SlurmJob("7", "u", "gpu", "PENDING", (), reason, admin_comment=comment, node_count=1)
    waiting = waits(job=job, plan=Plan(open_slots={"h100": CLOSED}))
    assert [one.wait for one in waiting] == [Wait.REFUSED]
    view = SlurmView("24.11.5", {}, (job,))
    assert comments(waiting, view) == ({"7": waiting[0].comment} if written else {})


@pytest.mark.parametrize(
    ("reason", "over"), [("Resources", True), ("Priority", True), ("BeginTime", False), ("None", False)]
)
def test_it_is_taken_back_when_the_job_waits_for_a_turn(reason: str, over: bool) -> None:
    job = SlurmJob("7", "u", "gpu", "PENDING", (), reason, admin_comment="meshd: no h100 can be had", node_count=1)
    assert comments((), SlurmView("24.11.5", {}, (job,))) == ({"7": ""} if over else {})


def test_a_job_that_is_about_to_be_put_back_gets_its_comment_then() -> None:
    """The view may be older than its new comment, by which it starts again early."""
    waiting = waits(plan=refusal(DemandCode.NO_CAPACITY, "aws has none"))
    assert [one.wait for one in waiting] == [Wait.REFUSED]
    assert comments(waiting, SlurmView("24.11.5", {}, (JOB,))) == {}


def test_those_whose_machines_come_are_written_first() -> None:
    refused = SlurmJob("7", "u", "gpu", "PENDING", (), "ReqNodeNotAvail", node_count=2)
    coming = replace(JOB, state="CONFIGURING")
    desired = waits(job=refused, plan=Plan(open_slots={"h100": CLOSED})) + waits(on_its_way(1), on_its_way(2))
    assert list(comments(desired, SlurmView("24.11.5", {}, (refused, coming)))) == ["12", "7"]
