"""The join token in the hands of a user who read it in the machine's user data: it opens one thing, once."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path

import pytest

from meshd.model.machine import Machine, Phase
from meshd.model.observed import TailnetPeer
from meshd.model.plan import AdoptOrphan
from tests.security.attacker import KEY, Head, address_of, fingerprint, head_at
from tests.unit.worlds import instance, machine

CALLS = [("POST", "/v1/join"), ("GET", "/v1/needs"), ("GET", "/v1/agent"), ("POST", "/v1/trouble")]


def secrets_in(body: object) -> bool:
    text = str(body)
    return base64.b64encode(KEY).decode()[:40] in text or "node_token" in text


@pytest.mark.parametrize(("method", "path"), CALLS)
async def test_a_user_of_a_ready_machine_gets_nothing_for_its_join_token(head: Head, method: str, path: str) -> None:
    one, agent = await head.ready()
    user = head.at(1, head.join_token(one))
    body = {"facts": {}} if method == "POST" else None
    answer = await user.call(method, path, body)
    assert (answer.status, answer.code) == (403, "ticket_closed")
    assert not secrets_in(answer.body)
    assert (await agent.poll()).status == 200
    assert head.get(one.name) == replace(head.get(one.name), phase=Phase.READY, problem=""), "its record is untouched"


async def test_the_ticket_is_closed_by_the_first_proof_and_not_before(head: Head) -> None:
    one = head.put(Phase.JOINING)
    agent = head.at(1)
    first = await agent.join(head.join_token(one))
    again = await agent.join(head.join_token(one))
    assert first.body == {**again.body, "roster_version": first.body["roster_version"]}, "the answer may be lost"
    assert base64.b64decode(first.body["munge_key_b64"]) == KEY
    assert (await agent.prove(first.body["node_token"])).status == 200
    assert (await agent.join(head.join_token(one))).code == "ticket_closed"


@pytest.mark.parametrize("phase", [Phase.TESTING, Phase.READY, Phase.DRAINING])
async def test_a_machine_in_slurm_is_closed_whatever_the_journal_says_of_its_ticket(head: Head, phase: Phase) -> None:
    one = head.put(phase, munge_ok=False, slurmd_start_ordered_at=None)
    assert (await head.at(1).join(head.join_token(one))).code == "ticket_closed"


async def test_an_expired_token_opens_nothing_for_the_device_that_joined_with_it(head: Head) -> None:
    one = head.put(Phase.JOINING)
    agent = head.at(1)
    assert (await agent.join(head.join_token(one))).status == 200
    head.later(head.live.settings.timing.join_token_ttl_s + 1)
    answer = await agent.join(head.join_token(one))
    assert (answer.status, answer.code) == (403, "ticket_expired")
    assert not secrets_in(answer.body)


async def test_another_device_with_the_machines_name(head: Head) -> None:
    one = head.put(Phase.JOINING)
    assert (await head.at(1).join(head.join_token(one))).status == 200
    head.peers[address_of(2)] = TailnetPeer("n-copy", one.name, "100.64.0.77", online=True)
    assert (await head.at(2).join(head.join_token(one))).code == "other_device"


async def test_another_machine(head: Head) -> None:
    one, _ = await head.ready(2)
    booting = head.put(Phase.JOINING, 1)
    answer = await head.at(2).join(head.join_token(booting))
    assert (answer.status, answer.code) == (403, "other_machine")
    assert head.get(booting.name).phase is Phase.JOINING, "somebody else's try does not cost the machine its place"
    assert one.name != booting.name


async def test_tries_are_shown_to_people_and_are_one_event(head: Head) -> None:
    one, agent = await head.ready()
    events = head.journal.last_event_id()
    user = head.at(1, head.join_token(one))
    codes = [(await user.join()).code for _ in range(20)]
    assert codes == ["ticket_closed"] * 10 + ["throttled"] * 10
    assert (await agent.poll()).status == 200
    (told,) = head.refusals.problems(head.clock.now())
    assert (told.severity, told.machine) == ("warning", one.name)
    assert [event.kind for event in head.journal.events(events)] == ["ticket"]
    head.later(3600)
    assert head.refusals.problems(head.clock.now()) == []


async def test_a_closed_ticket_stays_closed_when_meshd_is_killed(head: Head, tmp_path: Path) -> None:
    one = head.put(Phase.JOINING)
    agent = head.at(1)
    token = (await agent.join(head.join_token(one))).body["node_token"]
    assert (await agent.poll(token)).status == 200
    peers = head.peers
    await head.stop()
    async with head_at(tmp_path / "head") as next_life:
        next_life.peers = peers
        assert (await next_life.at(1).join(next_life.join_token(one))).code == "ticket_closed"
        assert (await next_life.at(1).poll(token)).status == 200


async def test_a_rejoin_with_the_node_token_sends_the_munge_key_only_to_a_machine_that_lacks_it(head: Head) -> None:
    one, agent = await head.ready()
    answer = await agent.join(munge_key=fingerprint(KEY))
    assert (answer.status, answer.body["munge_key_b64"], answer.body["slurmd_wanted"]) == (200, None, True)
    answer = await agent.join(munge_key="")
    assert base64.b64decode(answer.body["munge_key_b64"]) == KEY
    assert head.get(one.name).phase is Phase.READY


# -- the journal is lost ----------------------------------------------------------------------------------------------


async def adopt(head: Head, one: Machine, *, published: bool) -> Machine:
    """What a listing and the planner lead to: the machine is found by its tag."""
    step = AdoptOrphan(one.name, "the journal does not know it", instance(one), one.offer, one.pool, one.slot)
    await head.cloud_steps.adopt_orphan(replace(step, tailnet_ip=one.tailnet_ip if published else ""))
    return head.get(one.name)


async def test_after_a_lost_journal_the_node_token_rejoins_and_the_join_token_does_not(
    head: Head, tmp_path: Path
) -> None:
    one, agent = await head.ready()
    token, peers = agent.token, head.peers
    await head.stop()
    for path in (tmp_path / "head").glob("j.db*"):
        path.unlink()
    async with head_at(tmp_path / "head") as anew:
        anew.peers = peers
        assert (await anew.at(1).poll(token)).code == "unknown_token"
        assert (await anew.at(1).join(anew.join_token(one))).code == "unknown_token"
        await adopt(anew, one, published=True)
        assert (await anew.at(1).join(anew.join_token(one))).code == "ticket_closed"
        assert anew.get(one.name).phase is Phase.BOOTING, "a user's try does not cost the node its place"
        assert (await anew.at(1).poll(token)).code == "rejoin"
        peers[address_of(3)] = TailnetPeer("n-3", "somebody", "100.64.0.33", online=True)
        assert (await anew.at(3).join(token)).code == "other_machine"
        answer = await anew.at(1).join(token, munge_key=fingerprint(KEY))
        assert (answer.status, answer.body["munge_key_b64"]) == (200, None)
        assert anew.get(one.name).phase is Phase.CONFIGURING
        assert (await anew.at(1).poll(token)).status == 200


async def test_a_machine_that_was_still_joining_when_the_journal_was_lost_is_replaced(head: Head) -> None:
    one = machine(Phase.JOINING, tailnet_ip="")
    head.peers[address_of(1)] = TailnetPeer("n-1", one.name, "100.64.0.2", online=True)
    await adopt(head, one, published=False)
    assert (await head.at(1).join(head.join_token(one))).code == "ticket_closed"
    assert head.get(one.name).phase is Phase.TERMINATING


async def test_a_machine_that_was_given_up_before_it_joined_may_join_when_it_is_found(head: Head) -> None:
    one = machine(Phase.GONE, tailnet_ip="")
    head.journal.put(one, "phase", "given up: the create call's outcome stayed unclear", head.clock.now())
    head.peers[address_of(1)] = TailnetPeer("n-1", one.name, "100.64.0.2", online=True)
    await adopt(head, one, published=False)
    assert (await head.at(1).join(head.join_token(one))).status == 200


async def test_a_machine_whose_create_call_is_in_doubt_is_known_to_exist_once_it_calls(head: Head) -> None:
    one = head.put(Phase.LAUNCHING)
    agent = head.at(1)
    answer = await agent.join(head.join_token(one))
    assert answer.status != 200
    assert head.get(one.name).head_reached_at is not None
    assert head.get(one.name).phase is Phase.LAUNCHING, "the cloud confirms it"
