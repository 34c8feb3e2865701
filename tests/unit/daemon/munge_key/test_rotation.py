"""The daemon's part of a munge key rotation, with agents that poll and a head whose munge is two variables."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import SecretBytes

from meshd.api import schema as s
from meshd.api.faults import BadRequest, Unknown
from meshd.codes import CheckName, ProblemCode, RefusalCode
from meshd.munge.key import MungeKeyStore, fingerprint
from meshd.munge.rotation import MungeStage
from tests.clocks import in_loop_time
from tests.codes import refused
from tests.unit.daemon.munge_lab import OLD, OLD_NAME, ROOT, TIMINGS, Agent, MungeLab
from tests.unit.worlds import slurm


async def eventually(what: Callable[[], bool]) -> None:
    for _ in range(500):
        if what():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it does not come about")


@pytest.fixture
def lab(tmp_path: Path) -> MungeLab:
    return MungeLab(tmp_path)


async def with_nodes(lab: MungeLab, count: int) -> list[Agent]:
    agents = [lab.node(number) for number in range(1, count + 1)]
    for agent in agents:
        agent.start()
    await eventually(lambda: all(node.reachable for node in lab.controller.fleet().nodes.values()))
    lab.start()
    return agents


@in_loop_time
async def test_all_get_the_new_key_and_the_old_one_is_erased(lab: MungeLab, tmp_path: Path) -> None:
    agents = await with_nodes(lab, 3)
    preview = await lab.ask(dry_run=True)
    assert len(preview.steps) == 5
    assert lab.controller.last is None
    begun = await lab.ask()
    assert (begun.active, begun.old, begun.stage) == (True, OLD_NAME, "generate")
    with refused(RefusalCode.ROTATION_ACTIVE):
        await lab.ask()
    done = await lab.until(MungeStage.DONE)
    assert {agent.name_of("key") for agent in agents} == {lab.head.key, done.new} == {done.new}
    assert sorted(done.confirmed) == sorted(agent.name for agent in agents)
    assert done.longest_away_ms == pytest.approx(100, abs=1)
    assert [path.stem for path in (tmp_path / "munge-keys").iterdir()] == [done.new]
    assert (tmp_path / "munge-keys" / f"{done.new}.key").stat().st_mode & 0o777 == 0o600
    assert fingerprint(lab.controller.keys.for_joining()) == done.new
    await eventually(lambda: all(agent.name_of("previous") == "" for agent in agents))
    key = lab.controller.keys.for_joining().get_secret_value()
    dump = b"".join(path.read_bytes() for path in tmp_path.glob("j.db*"))
    assert key not in dump
    # The service restarts: systemd hands over the head's key, and the file is not needed any more.
    lab.credential = SecretBytes(key)
    await lab.restart()
    assert list((tmp_path / "munge-keys").iterdir()) == []
    assert fingerprint(lab.controller.keys.for_joining()) == done.new
    # A second rotation.
    await lab.ask()
    second = await lab.until(MungeStage.DONE)
    assert second.old == done.new != second.new
    assert (await lab.service.rotation()).key == second.new


@pytest.mark.parametrize("stage", [MungeStage.GENERATE, MungeStage.STAGE, MungeStage.SWITCH, MungeStage.VERIFY])
@in_loop_time
async def test_killed_in_a_stage_it_goes_on(lab: MungeLab, stage: MungeStage) -> None:
    agents = await with_nodes(lab, 2)
    if stage is MungeStage.STAGE:
        agents[1].deaf = ("stage",)
    if stage is MungeStage.VERIFY:
        agents[1].deaf = ("switch", "put")
    await lab.ask()
    await lab.until(stage)
    await lab.restart()
    agents[1].deaf = ()
    done = await lab.until(MungeStage.DONE)
    assert {agent.name_of("key") for agent in agents} == {lab.head.key} == {done.new}


@in_loop_time
async def test_a_head_that_cannot_change_takes_all_back(lab: MungeLab) -> None:
    agents = await with_nodes(lab, 2)
    agents[0].deaf = ("stage",)
    await lab.ask()
    await lab.until(MungeStage.STAGE)
    await eventually(lambda: bool(lab.head.staged))
    lab.head.refuses, agents[0].deaf = "systemd says no", ()
    await lab.until(MungeStage.RETURN)
    lab.head.refuses = ""
    ended = await lab.until(MungeStage.ABORTED)
    assert "systemd says no" in ended.taken_back
    assert {agent.name_of("key") for agent in agents} == {lab.head.key} == {OLD_NAME}
    assert fingerprint(lab.controller.keys.for_joining()) == OLD_NAME


@in_loop_time
async def test_after_the_cause_is_mended_it_can_be_begun_again(lab: MungeLab) -> None:
    await with_nodes(lab, 1)
    lab.head.refuses = "nobody serves"
    await lab.ask()
    ended = await lab.until(MungeStage.ABORTED)
    assert "nobody serves" in ended.taken_back
    lab.head.refuses = ""
    await lab.ask()
    await lab.until(MungeStage.DONE)


async def key_row(lab: MungeLab) -> s.CheckRow:
    (check,) = [check for check in lab.controller.checks() if check.name is CheckName.MUNGE_KEY]
    return await check.run()


@in_loop_time
async def test_doctor_tells_the_age_and_who_has_another_key(lab: MungeLab) -> None:
    (agent,) = await with_nodes(lab, 1)
    row = await key_row(lab)
    assert row.status == "ok"
    assert "3 days" in row.text
    lab.head.days = 400
    assert (await key_row(lab)).code == ProblemCode.MUNGE_KEY_OLD
    agent.keys["key"] = b"x" * 1024
    await eventually(lambda: {node.key for node in lab.controller.fleet().nodes.values()} == {agent.name_of("key")})
    row = await key_row(lab)
    assert (row.status, row.code) == ("fail", ProblemCode.MUNGE_KEYS_DIFFER)
    assert "h100-1" in row.text


@in_loop_time
async def test_when_most_nodes_do_not_follow_all_go_back(lab: MungeLab) -> None:
    agents = await with_nodes(lab, 3)
    for agent in agents[:2]:
        agent.deaf = ("switch", "put")
    await lab.ask()
    await lab.until(MungeStage.RETURN)
    ended = await lab.until(MungeStage.ABORTED)
    assert "1 of 3 nodes" in ended.taken_back
    assert {agent.name_of("key") for agent in agents} == {lab.head.key} == {OLD_NAME}


@in_loop_time
async def test_one_that_does_not_follow_is_shown_and_can_be_waived(lab: MungeLab) -> None:
    agents = await with_nodes(lab, 3)
    agents[0].deaf = ("switch", "put")
    await lab.ask()
    await lab.until(MungeStage.VERIFY)
    await asyncio.sleep(TIMINGS.verify_s + 0.2)
    assert lab.controller.current.stage is MungeStage.VERIFY
    (problem,) = lab.controller.problems()
    assert agents[0].name in problem.text
    row = next(row for row in (await lab.service.rotation()).nodes if row.machine == agents[0].name)
    assert "does not work here" in row.reason
    with pytest.raises(Unknown):
        await lab.ask("waive", "nobody")
    with pytest.raises(BadRequest):
        await lab.ask("waive")
    await lab.service.waive(s.WaiveRequest(machine="h100-1"), ROOT)
    await lab.until(MungeStage.DONE)


@in_loop_time
async def test_a_silent_node_with_a_job_is_waited_for_and_one_that_is_down_is_not(lab: MungeLab) -> None:
    agents = await with_nodes(lab, 2)
    await agents[1].stop()
    lab.seen = slurm(*lab.seen.nodes.values(), jobs={"7": "h100-2"})
    await asyncio.sleep(0.6)
    view = await lab.ask()
    await lab.until(MungeStage.STAGE)
    await asyncio.sleep(0.3)
    assert lab.controller.current.stage is MungeStage.STAGE
    assert "jobs are on it" in lab.controller.current.failure
    # Slurm gives its job to another node: nothing is lost any more.
    down = replace(lab.seen.nodes["h100-2"], states=frozenset({"DOWN", "NOT_RESPONDING"}))
    lab.seen = slurm(lab.seen.nodes["h100-1"], down)
    done = await lab.until(MungeStage.DONE)
    states = {row.machine: row.state for row in (await lab.service.rotation()).nodes}
    assert states == {agents[0].name: "confirmed", agents[1].name: "offline"}
    # It comes back, with the old key: it gets the new one before anything else.
    queue = lab.agents.of(agents[1].name)
    for command in queue.pending():
        queue.drop(command.id)
    agents[1].verbs.clear()
    agents[1].start()
    await eventually(lambda: agents[1].name_of("key") == done.new)
    assert agents[1].verbs[0] == "put"
    assert view.id == done.id


@in_loop_time
async def test_one_that_is_slow_to_tell_is_not_changed_twice(lab: MungeLab) -> None:
    agents = await with_nodes(lab, 3)
    for agent in agents:
        agent.pause_s = 0.2  # the head is done, and sees them with the old key
    await lab.ask()
    await lab.until(MungeStage.DONE)
    assert {agent.verbs.count("switch") for agent in agents} == {1}
    assert "put" not in {verb for agent in agents for verb in agent.verbs}


@in_loop_time
async def test_who_asks_in_the_middle_of_the_change_waits_for_its_end(lab: MungeLab) -> None:
    await with_nodes(lab, 1)
    assert await lab.controller.switched(0.0)
    await lab.ask()
    await lab.until(MungeStage.SWITCH)
    assert not await lab.controller.switched(0.01)
    assert await lab.controller.switched(5.0)
    assert lab.head.key == lab.controller.current.new
    await lab.until(MungeStage.DONE)


@in_loop_time
async def test_abort(lab: MungeLab) -> None:
    agents = await with_nodes(lab, 2)
    with refused(RefusalCode.NO_ROTATION):
        await lab.ask("abort")
    agents[0].deaf = ("stage",)
    await lab.ask()
    await lab.until(MungeStage.STAGE)
    view = await lab.ask("abort")
    assert (view.stage, view.taken_back) == ("aborted", "aborted by root")
    assert lab.head.key == OLD_NAME
    agents[0].deaf, agents[1].deaf = (), ("switch", "put")
    await lab.ask()
    await lab.until(MungeStage.VERIFY)
    assert (await lab.ask("abort")).stage == "return"
    await lab.until(MungeStage.ABORTED)
    assert {agent.name_of("key") for agent in agents} == {lab.head.key} == {OLD_NAME}


@in_loop_time
async def test_the_head_s_key_was_changed_by_hand(lab: MungeLab) -> None:
    lab.head.key = "f" * 16
    lab.start()
    await lab.ask()
    ended = await lab.until(MungeStage.ABORTED)
    assert "systemctl restart munge meshd" in ended.taken_back


@in_loop_time
async def test_without_munge_nothing_is_rotated(lab: MungeLab) -> None:
    lab.head.auth = "auth/slurm"
    for dry_run in (True, False):
        with refused(RefusalCode.MUNGE_NOT_USED):
            await lab.ask(dry_run=dry_run)
    assert (await lab.service.rotation()).id == ""


def test_keys_are_in_no_repr(tmp_path: Path) -> None:
    store = MungeKeyStore(tmp_path)
    name = store.keep(OLD)
    assert "ooo" not in repr(store.read(name))
    (tmp_path / "munge-keys" / f"{name}.key").write_bytes(b"x" * 1024)
    assert store.fingerprints() == frozenset(), "one that is damaged does not count"
