"""Steps look again right before they act, and leave the journal saying what is known."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from meshd.errors import (
    AuthFailed,
    InvalidRequest,
    NoCapacity,
    NotFound,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    Transient,
    Uncertain,
)
from meshd.model import plan as p
from meshd.model.cooldown import Cooldown, CooldownCause, CooldownKey
from meshd.model.desired import Target
from meshd.model.machine import Machine, Phase, Removal
from meshd.model.observed import Fresh
from meshd.plan.ledger import billed_since
from meshd.provider_api import Offer, ProviderName
from tests.unit.daemon.small import Small
from tests.unit.worlds import NOW, OFFER, ago, around, instance, machine, node, slurm, snapshot

READY = machine(Phase.READY)
LEAVING = machine(Phase.DRAINING, drained_at=ago(1))


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[Small]:
    world = Small(tmp_path)
    yield world
    await world.executor.aclose(1)
    world.journal.close()


def give(small: Small, m: Machine, *states: str, jobs: dict[str, str] | None = None) -> Machine:
    small.slurm.set(node(m, *states, reason="meshd: x"), jobs=jobs)
    return small.journal.put(m, "phase", "given", NOW)


async def do(small: Small, step: p.Step) -> None:
    small.executor.begin(step)
    await small.settle()


async def test_what_slurm_has_yet_to_show_is_not_done_again(small: Small) -> None:
    m = give(small, replace(READY, preempted_at=NOW + timedelta(hours=1)), "MIXED")

    async def ticks(*states: str, read_at: datetime) -> int:
        small.seen = around(m, slurm=Fresh(slurm(node(m, *states)), read_at))
        for _ in range(3):
            small.reconciler.tick()
            await small.settle()
        return small.slurm.orders.count(f"drain {m.slot}")

    assert await ticks("MIXED", read_at=small.clock.now()) == 1
    assert await ticks("MIXED", read_at=small.clock.now()) == 1, "that reading may have begun before the drain"
    assert len([one for one in small.journal.events() if one.kind == "drained"]) == 1
    small.clock.t_s += 1
    assert await ticks("MIXED", "DRAIN", read_at=small.clock.now()) == 1
    assert await ticks("MIXED", read_at=small.clock.now()) == 2, "somebody has resumed it"
    small.clock.t_s -= 3600
    assert await ticks("MIXED", read_at=small.clock.now()) > 2, "the clock was set back"


# -- leaving Slurm ----------------------------------------------------------------------------------------------------


async def test_leave(small: Small) -> None:
    m = give(small, LEAVING, "IDLE", "DRAIN")
    await do(small, p.Leave(m.name, "idle", m.slot))
    assert small.get(m.name).left_slurm
    assert (small.agents.orders, small.slurm.orders) == (["leave"], [f"down {m.slot}"])


async def test_slurmd_of_one_that_the_journal_had_lost_may_run_on(small: Small) -> None:
    """It was found again by its name, so there is no agent that could be told to stop slurmd. Unknown is not idle."""
    m = give(small, replace(LEAVING, facts=None, slurmd_started=False, launch_attempts=0), "IDLE", "DRAIN")
    await do(small, p.Leave(m.name, "idle", m.slot))
    assert (small.get(m.name).left_slurm, small.get(m.name).slurmd_started, small.agents.orders) == (True, True, [])
    small.machine_store.move(m.name, Phase.TERMINATING, "out of Slurm")
    small.slurm.down = True
    await do(small, p.Terminate(m.name, "over"))
    assert small.get(m.name).terminate_called_at is None, "somebody may have opened its node, and a job may be there"


@pytest.mark.parametrize("silent", [False, True])
async def test_a_job_that_came_after_the_snapshot_stops_it(small: Small, silent: bool) -> None:
    for states, jobs in (
        ((["ALLOCATED", "DRAIN"]), None),
        (["IDLE", "DRAIN"], {LEAVING.slot: "7"}),
        (["COMPLETING"], None),
    ):
        m = give(small, LEAVING, *states, jobs=jobs)
        await do(small, p.Leave(m.name, "idle", m.slot, silent=silent))
        assert not small.get(m.name).left_slurm
    assert small.agents.orders == small.slurm.orders == []


async def test_a_node_that_was_opened_again_stops_it(small: Small) -> None:
    m = give(small, LEAVING, "IDLE")
    await do(small, p.Leave(m.name, "idle", m.slot))
    assert not small.get(m.name).left_slurm
    assert small.agents.orders == []


async def test_slurm_that_does_not_answer_stops_it(small: Small) -> None:
    m = give(small, LEAVING, "IDLE", "DRAIN")
    small.slurm.down = True
    await do(small, p.Leave(m.name, "idle", m.slot))
    assert not small.get(m.name).left_slurm
    assert m.name in small.executor.busy, "it rests"
    assert "does not answer" in small.executor.problems[m.name]


async def test_a_forced_removal_leaves_the_node_drained_and_down(small: Small) -> None:
    """DOWN alone does not last: slurmctld opens the node when its slurmd answers once more."""
    m = give(small, replace(LEAVING, removal=Removal.FORCED, drained_at=None), "ALLOCATED", jobs={LEAVING.slot: "7"})
    await do(small, p.Leave(m.name, "removed by force", m.slot, forced=True))
    assert small.slurm.orders == [f"drain {m.slot}", f"down {m.slot}"]
    assert small.slurm.seen.nodes[m.slot].states == {"DOWN", "DRAIN"}
    assert small.get(m.name).left_slurm


async def test_why_a_step_failed_is_forgotten_once_none_is_planned_any_more(small: Small) -> None:
    m = give(small, LEAVING, "IDLE", "DRAIN")
    small.slurm.down = True
    await do(small, p.Leave(m.name, "idle", m.slot))
    small.journal.put(replace(machine(Phase.READY), name=m.name, slot=m.slot), "phase", "kept", NOW)
    small.seen = around(small.get(m.name))
    small.reconciler.tick()
    assert m.name in small.executor.problems, "it rests: nothing was planned for it yet"
    small.clock.t_s += 60
    small.journal.note(replace(small.get(m.name), heartbeat_at=small.clock.now()))
    small.reconciler.tick()
    assert m.name not in small.executor.problems


async def test_an_agent_is_asked_for_a_sign_of_life_unless_it_may_be_at_work(small: Small) -> None:
    m = give(small, replace(machine(Phase.READY), name=LEAVING.name, slot=LEAVING.slot), "IDLE")
    events = len(small.journal.events())
    small.agents.at_work = True
    small.executor.begin(p.AskAgent(m.name, "its cloud says so"))
    assert small.get(m.name).agent_asked_at is None, "its silence would prove nothing"
    small.agents.at_work = False
    small.executor.begin(p.AskAgent(m.name, "its cloud says so"))
    assert small.get(m.name).agent_asked_at == small.clock.now()
    assert small.agents.hastened == [m.name] * 2
    assert len(small.journal.events()) == events, "it is worth no line in the journal"


async def test_force_and_death_do_not_wait(small: Small) -> None:
    for step in (
        p.Leave(LEAVING.name, "", LEAVING.slot, forced=True),
        p.Leave(LEAVING.name, "", LEAVING.slot, dead=True),
    ):
        m = give(small, LEAVING, "ALLOCATED", jobs={LEAVING.slot: "7"})
        await do(small, step)
        assert small.get(m.name).left_slurm
    assert any(e.kind == "force" and "job 7" in e.text for e in small.journal.events())
    assert small.agents.orders == ["leave"], "nobody talks to the dead"


async def test_another_machines_node_is_not_set_down(small: Small) -> None:
    m = give(small, LEAVING, "IDLE", "DRAIN")
    small.slurm.set(node(m, "IDLE", node_addr="100.64.9.9"))
    await do(small, p.Leave(m.name, "idle", m.slot))
    assert small.slurm.orders == []
    assert small.get(m.name).left_slurm


# -- coming in --------------------------------------------------------------------------------------------------------


async def test_starting_slurmd_is_written_down_first(small: Small) -> None:
    m = give(small, machine(Phase.CONFIGURING, munge_ok=True, line_published=True), "DOWN")
    assert not m.may_run_jobs
    small.agents.answer = "no answer"
    await do(small, p.StartSlurmd(m.name, "now"))
    found = small.get(m.name)
    assert found.phase is Phase.DRAINING
    assert found.may_run_jobs, "it may have started all the same"


async def test_the_agent_is_told_what_slurms_settings_ask_for(small: Small) -> None:
    m = give(small, machine(Phase.CONFIGURING, munge_ok=True, line_published=True), "DOWN")
    small.slurm.settings = {"ProctrackType": "proctrack/cgroup"}
    await do(small, p.StartSlurmd(m.name, "now"))
    (told,) = small.agents.args
    assert told["slurm_settings"] == {"ProctrackType": "proctrack/cgroup"}


async def test_slurmd_is_started_where_the_path_was_tested_first(small: Small) -> None:
    waiting = machine(Phase.TESTING, slurmd_started=False, slurmd_start_ordered_at=None)
    m = give(small, waiting, "DOWN")
    await do(small, p.StartSlurmd(m.name, "its path is direct"))
    found = small.get(m.name)
    assert (found.phase, found.slurmd_started, found.may_run_jobs) == (Phase.TESTING, True, True)
    await do(small, p.StartSlurmd(m.name, "an old plan"))
    assert small.agents.orders == ["start_slurmd"]


@pytest.mark.parametrize(
    ("reason", "address", "resumed", "phase"),
    [
        ("meshd: free slot", "", True, Phase.READY),
        ("bad fan", "", False, Phase.TESTING),
        ("Kill task failed", "", False, Phase.TESTING),
        ("meshd: x", "100.64.9.9", False, Phase.TESTING),
    ],
)
async def test_accept_resumes_only_what_meshd_drained(
    small: Small, reason: str, address: str, resumed: bool, phase: Phase
) -> None:
    m = small.journal.put(machine(Phase.TESTING), "phase", "given", NOW)
    small.slurm.set(node(m, "IDLE", "DRAIN", reason=reason, node_addr=address or m.tailnet_ip))
    await do(small, p.MarkReady(m.name, "up"))
    assert bool(small.slurm.orders) is resumed
    assert small.get(m.name).phase is phase


@pytest.mark.parametrize(
    ("reason", "left"),
    [("meshd: tower is away since yesterday", ""), ("meshd: x : Not responding", ""), ("bad fan", "bad fan"), ("", "")],
)
async def test_an_open_node_keeps_no_reason_of_meshd(small: Small, reason: str, left: str) -> None:
    m = small.journal.put(machine(Phase.TESTING), "phase", "given", NOW)
    small.slurm.set(node(m, "IDLE", reason=reason))
    await do(small, p.MarkReady(m.name, "up"))
    assert small.get(m.name).phase is Phase.READY
    assert small.slurm.seen.nodes[m.slot].reason == left
    assert bool(small.slurm.orders) is (reason != left)


async def test_kept_after_all_its_drain_is_undone(small: Small) -> None:
    m = give(small, replace(LEAVING, removal=Removal.SCALE_DOWN), "IDLE", "DRAIN")
    await do(small, p.CancelRemoval(m.name, "wanted again"))
    assert small.slurm.orders == [f"resume {m.slot}"]
    assert (small.get(m.name).phase, small.get(m.name).removal) == (Phase.READY, None)


async def test_a_drain_by_a_person_is_not_undone(small: Small) -> None:
    m = give(small, replace(LEAVING, removal=Removal.SCALE_DOWN, drained_at=None), "IDLE", "DRAIN")
    await do(small, p.CancelRemoval(m.name, "wanted again"))
    assert small.slurm.orders == []
    assert small.get(m.name).phase is Phase.READY


async def test_removed_by_a_person_meanwhile_it_is_not_kept(small: Small) -> None:
    m = give(small, replace(LEAVING, removal=Removal.SCALE_DOWN), "IDLE", "DRAIN")
    small.slurm.before_view = lambda: (
        small.machine_store.change(m.name, "remove", "said root", removal=Removal.BY_USER),
        None,
    )[1]
    await do(small, p.CancelRemoval(m.name, "wanted again"))
    assert (small.get(m.name).phase, small.get(m.name).removal) == (Phase.DRAINING, Removal.BY_USER)


# -- clouds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "phase", "cooldown"),
    [
        (NoCapacity("sold out"), Phase.GONE, CooldownKey.of_offer(OFFER)),
        (QuotaExceeded("quota"), Phase.GONE, CooldownKey.of_offer(OFFER)),
        (InvalidRequest("no such type"), Phase.GONE, CooldownKey.of_offer(OFFER)),
        (AuthFailed("bad key"), Phase.GONE, CooldownKey("provider:aws")),
        (RateLimited("slow down", retry_after_s=7), Phase.REQUESTED, CooldownKey("provider:aws")),
        (Transient("busy"), Phase.REQUESTED, CooldownKey("provider:aws")),
        (Uncertain("cut"), Phase.LAUNCHING, ""),
    ],
)
async def test_each_refusal_has_one_way_out(small: Small, error: ProviderError, phase: Phase, cooldown: str) -> None:
    m = small.journal.put(machine(Phase.REQUESTED), "phase", "given", NOW)
    small.cloud.errors.append(error)
    await do(small, p.Launch(m.name, "wanted"))
    assert small.get(m.name).phase is phase
    assert set(small.journal.cooldowns(NOW)) == ({cooldown} if cooldown else set())
    last = small.journal.events(-1, 1, m.name)[0]
    if phase is Phase.GONE:
        assert (small.get(m.name).refusal, small.get(m.name).vendor_words) == (error.kind, error.vendor_text)
        assert (last.fields["refusal"], last.fields["slot"], last.fields["offer"]) == (error.kind, m.slot, OFFER.key)
    assert (small.get(m.name).create_unclear_at is not None) is isinstance(error, Uncertain)


IN_DOUBT = machine(Phase.LAUNCHING, launch_called_at=ago(30), create_unclear_at=ago(20))


async def test_a_call_that_is_repeated_is_journaled_first_and_its_answer_tells(small: Small) -> None:
    m = small.journal.put(replace(IN_DOUBT, refusal="transient"), "phase", "given", NOW)
    await do(small, p.Launch(m.name, "again"))
    found = small.get(m.name)
    assert (found.phase, found.instance_id, found.refusal) == (Phase.BOOTING, "i-1", "")
    assert (found.launch_attempts, found.launch_called_at, found.create_repeated_at) == (2, NOW, NOW)
    assert [request.token for request in small.cloud.launched] == [m.name]


@pytest.mark.parametrize("told_at", [None, ago(10)])
async def test_a_machine_that_a_repeated_call_made_is_billed_from_the_first_call(
    small: Small, told_at: datetime | None
) -> None:
    """Either call may have made it. A cloud that tells the launch time settles it."""
    small.cloud.launched_at = told_at
    m = small.journal.put(IN_DOUBT, "phase", "given", NOW)
    small.cloud.errors.append(Uncertain("gateway timeout"))
    await do(small, p.Launch(m.name, "again"))
    assert (small.get(m.name).launch_called_at, billed_since(small.get(m.name))) == (NOW, ago(30))
    await small.clock.sleep(60)
    await do(small, p.Launch(m.name, "and again"))
    found = small.get(m.name)
    assert (found.phase, found.launched_at, billed_since(found)) == (Phase.BOOTING, *([told_at or ago(30)] * 2))


async def test_an_order_that_was_clearly_refused_is_billed_from_the_next_call(small: Small) -> None:
    m = small.journal.put(machine(Phase.REQUESTED), "phase", "given", NOW)
    small.cloud.errors.append(RateLimited("slow down"))
    await do(small, p.Launch(m.name, "it was requested"))
    assert small.get(m.name).phase is Phase.REQUESTED
    await small.clock.sleep(60)
    await do(small, p.Launch(m.name, "again"))
    assert billed_since(small.get(m.name)) == small.clock.now()


@pytest.mark.parametrize(
    ("error", "refusal"),
    [
        (NoCapacity("sold out"), "no_capacity"), (QuotaExceeded("quota"), "quota_exceeded"),
        (InvalidRequest("no such type"), "invalid_request"), (AuthFailed("bad key"), "auth_failed"),
        (RateLimited("slow down"), ""), (Transient("busy"), ""),
    ],
)  # fmt: skip
async def test_a_clear_no_to_a_repeated_call_leaves_the_earlier_one_in_doubt(
    small: Small, error: ProviderError, refusal: str
) -> None:
    m = small.journal.put(IN_DOUBT, "phase", "given", NOW)
    small.cloud.errors.append(error)
    await do(small, p.Launch(m.name, "again"))
    found = small.get(m.name)
    assert (found.phase, found.refusal, found.failure) == (Phase.LAUNCHING, refusal, "")
    assert (found.launch_attempts, found.launch_called_at) == (1, m.launch_called_at)
    assert found.create_unclear_at == m.create_unclear_at, "its doubt does not grow with each no"
    assert small.journal.cooldowns(NOW)


async def test_an_unclear_answer_to_a_repeated_call_is_one_more_in_doubt(small: Small) -> None:
    m = small.journal.put(IN_DOUBT, "phase", "given", NOW)
    small.cloud.errors.append(Uncertain("cut again"))
    await do(small, p.Launch(m.name, "again"))
    found = small.get(m.name)
    assert (found.phase, found.launch_attempts, found.create_unclear_at) == (Phase.LAUNCHING, 2, NOW)


async def test_what_keeps_a_call_from_being_repeated_gives_nothing_up(small: Small) -> None:
    m = small.journal.put(IN_DOUBT, "phase", "given", NOW)
    small.journal.set_cooldown(Cooldown(CooldownKey.of_offer(OFFER), NOW + timedelta(seconds=60), "sold out"), NOW)
    await do(small, p.Launch(m.name, "again"))
    assert small.get(m.name) == m
    assert small.cloud.launched == []


async def test_launching_is_in_the_journal_before_the_call(small: Small) -> None:
    m = small.journal.put(machine(Phase.REQUESTED), "phase", "given", NOW)
    small.cloud.errors.append(KeyError("a fault in an adapter"))
    await do(small, p.Launch(m.name, "wanted"))
    found = small.get(m.name)
    assert (found.phase, found.launch_attempts) == (Phase.LAUNCHING, 1)
    assert m.name in small.executor.busy, "a fault of our own rests like any failure"


async def test_what_was_learned_while_an_order_waited_holds(small: Small) -> None:
    names = []
    for index in (1, 2, 3):
        names.append(small.journal.put(machine(Phase.REQUESTED, index=index), "phase", "given", NOW).name)
    small.machine_store.change(names[1], "remove", "said root", removal=Removal.BY_USER)
    small.providers.clear()
    await do(small, p.Launch(names[0], "wanted"))
    small.providers["aws"] = small.cloud
    await do(small, p.Launch(names[1], "wanted"))
    small.journal.set_cooldown(Cooldown(CooldownKey.of_offer(OFFER), NOW + timedelta(seconds=60), "sold out"), NOW)
    await do(small, p.Launch(names[2], "wanted"))
    assert small.cloud.launched == []
    assert all(small.get(name).phase is Phase.GONE for name in names)


@pytest.mark.parametrize(
    ("states", "jobs", "ended", "drained"),
    [
        (["MIXED"], {"h100-1": "7"}, False, True),
        (["ALLOCATED", "DRAIN"], {"h100-1": "7"}, False, False),
        (["IDLE"], None, False, True),
        (["IDLE", "DRAIN"], None, True, False),
        (["DOWN"], None, True, False),
    ],
)
async def test_the_last_look_before_the_end(
    small: Small, states: list[str], jobs: dict[str, str] | None, ended: bool, drained: bool
) -> None:
    """A node that somebody resumed after it had left is drained again, and its jobs are waited for."""
    gone = machine(Phase.TERMINATING, left_slurm=True, slurmd_started=True, tailnet_ip="100.64.0.2")
    m = give(small, gone, *states, jobs=jobs)
    await do(small, p.Terminate(m.name, "over"))
    assert (small.get(m.name).terminate_called_at is not None) is ended
    assert small.slurm.orders == ([f"drain {m.slot}"] if drained else [])


async def test_a_machine_that_its_cloud_does_not_know_is_asked_of_the_listing(small: Small) -> None:
    m = small.journal.put(machine(Phase.TERMINATING), "phase", "given", NOW)
    small.cloud.errors.append(NotFound("no such instance"))
    await do(small, p.Terminate(m.name, "over"))
    assert small.get(m.name).phase is Phase.TERMINATING
    assert small.get(m.name).terminate_called_at is not None


async def test_an_orphan_is_asked_once_in_a_while_and_never_one_of_ours(small: Small) -> None:
    m = small.journal.put(READY, "phase", "given", NOW)
    await do(small, p.TerminateOrphan(m.instance_id, "stray", instance(m)))
    assert small.cloud.ended == []
    stray = instance(m, id="i-77")
    await do(small, p.TerminateOrphan("i-77", "stray", stray))
    assert small.cloud.ended == ["i-77"]
    assert "i-77" in small.executor.busy
    small.clock.t_s += 16
    assert "i-77" not in small.executor.busy


async def test_one_that_was_gone_and_is_listed_again_is_ended(small: Small) -> None:
    m = small.journal.put(replace(READY, phase=Phase.GONE), "phase", "given", NOW)
    await do(small, p.TerminateOrphan(m.instance_id, "listed again", instance(m)))
    assert small.cloud.ended == [m.instance_id]


async def test_adopted_while_ending_it_keeps_where_it_is(small: Small) -> None:
    m = small.journal.put(machine(Phase.TERMINATING, instance_id="", region=""), "phase", "given", NOW)
    await do(small, p.Adopt(m.name, "found", instance(m, id="i-9", region="r7")))
    assert (small.get(m.name).instance_id, small.get(m.name).region) == ("i-9", "r7")


# -- the ladder -------------------------------------------------------------------------------------------------------


async def climb(small: Small, *offers: Offer, rounds: int = 12) -> None:
    """The loop over these offers, without a pause, until nothing is left to do."""
    for _ in range(rounds):
        now = small.clock.now()
        listed = tuple(instance(m) for m in small.journal.machines() if m.instance_id)
        small.seen = snapshot(instances={"aws": Fresh(listed, now)}, offers={"aws": Fresh(offers, now)})
        small.reconciler.tick()
        await small.settle()


def zones(*prices: float) -> list[Offer]:
    return [replace(OFFER, zone=f"r1{'abcdefgh'[i]}", usd_per_hour=usd) for i, usd in enumerate(prices)]


async def test_the_next_best_is_tried_at_once_and_the_slot_keeps_its_place(small: Small) -> None:
    """Three without capacity, quota on the fourth: the fifth has it, and no time has passed."""
    offers = zones(2.5, 2.0, 3.0, 3.5, 4.0)
    small.journal.set_target(Target("h100", 1), "said", NOW)
    small.cloud.errors += [NoCapacity("a"), NoCapacity("b"), NoCapacity("c"), QuotaExceeded("d")]
    await climb(small, *offers)
    assert [request.offer.usd_per_hour for request in small.cloud.launched] == [2.0, 2.5, 3.0, 3.5, 4.0]
    assert [request.token.rsplit("-", 1)[0] for request in small.cloud.launched] == ["lab-h100-1"] * 5
    assert small.clock.t_s == 0


async def test_one_refusal_sends_all_that_wait_with_the_same_offer_to_the_next(small: Small) -> None:
    offers = zones(2.0, 3.0)
    small.journal.set_target(Target("h100", 8), "said", NOW)
    small.cloud.errors += [NoCapacity("sold out")]
    await climb(small, *offers)
    assert [request.offer.zone for request in small.cloud.launched] == ["r1a"] + ["r1b"] * 8
    assert sorted(m.slot for m in small.journal.machines()) == [f"h100-{i}" for i in range(1, 9)]
    assert small.journal.cooldowns(NOW)[CooldownKey.of_offer(offers[0])].strikes == 1


async def test_a_refused_key_sends_all_orders_of_that_cloud_elsewhere(small: Small) -> None:
    small.pool = replace(small.pool, providers=("aws", "gce"))
    small.providers["gce"] = small.cloud
    away = replace(OFFER, provider=ProviderName("gce"), usd_per_hour=9.0)
    small.journal.set_target(Target("h100", 6), "said", NOW)
    small.cloud.errors += [AuthFailed("bad key")]
    await climb(small, OFFER, away)
    assert [request.offer.provider for request in small.cloud.launched] == ["aws"] + ["gce"] * 6


async def test_only_the_machine_whose_call_was_unclear_waits(small: Small) -> None:
    small.journal.set_target(Target("h100", 3), "said", NOW)
    small.cloud.errors += [Uncertain("cut")]
    await climb(small, *zones(2.0))
    assert sorted(m.phase for m in small.journal.machines()) == [Phase.BOOTING, Phase.BOOTING, Phase.LAUNCHING]
    assert len(small.cloud.launched) == 3


async def test_success_forgets_what_was_held_against_an_offer(small: Small) -> None:
    key = CooldownKey.of_offer(OFFER)
    for cooldown in (
        Cooldown(key, NOW, "sold out", 3),
        Cooldown(CooldownKey("provider:aws"), NOW, "busy", 2, CooldownCause.PAUSE),
    ):
        small.journal.set_cooldown(cooldown, NOW)
    m = small.journal.put(machine(Phase.REQUESTED), "phase", "given", NOW)
    await do(small, p.Launch(m.name, "wanted"))
    assert (small.journal.last_cooldown(key), small.journal.last_cooldown(CooldownKey("provider:aws"))) == (None, None)


async def test_but_not_a_refusal_that_came_meanwhile_nor_machines_that_do_not_boot(small: Small) -> None:
    key = CooldownKey.of_offer(OFFER)
    boots = Cooldown(key, NOW, "no boot", 1, CooldownCause.BOOTS)
    m = small.journal.put(machine(Phase.REQUESTED), "phase", "given", NOW)
    small.journal.set_cooldown(boots, NOW)
    await do(small, p.Launch(m.name, "wanted"))
    assert small.journal.last_cooldown(key) == boots
    refusal = Cooldown(key, NOW + timedelta(seconds=60), "sold out")
    small.journal.set_cooldown(refusal, NOW)
    small.machine_store.proved(key, causes={CooldownCause.REFUSED})
    assert small.journal.last_cooldown(key) == refusal


async def test_a_cloud_that_stumbles_for_long_is_gone_around(small: Small) -> None:
    m = small.journal.put(machine(Phase.REQUESTED), "phase", "given", NOW)
    for _ in range(5):
        small.cloud.errors.append(Transient("503"))
        await do(small, p.Launch(m.name, "wanted"))
        assert small.get(m.name).phase is Phase.REQUESTED
        small.clock.t_s += 10
    small.cloud.errors.append(Transient("503"))
    await do(small, p.Launch(m.name, "wanted"))
    assert (small.get(m.name).phase, small.get(m.name).refusal) == (Phase.GONE, "transient")
