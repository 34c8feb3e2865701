"""Node tokens: whose they are, what they open, and how one that may have leaked is replaced, whatever is killed."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshd.api.auth import Actor
from meshd.api.faults import BadRequest, Unknown
from meshd.api.schema import TokenRenewalRequest
from meshd.codes import JoinCode
from meshd.errors import StoreError
from meshd.model.machine import Machine, Phase, Removal
from meshd.model.observed import TailnetPeer
from tests.security.attacker import KEY, Answer, Caller, Head, address_of, credential, fingerprint, head_at


class Agent:
    """A node agent as far as its token goes: kept durably first, then used. It can be killed in between."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.stored = caller.token
        self.results: list[dict[str, Any]] = []

    async def poll(self, *, hold_s: float = 0.0) -> Answer:
        """One poll with what it keeps; it carries out the verb that it is handed."""
        answer = await self.caller.poll(self.stored, hold_s=hold_s, results=self.results)
        self.results = []
        for command in answer.body.get("commands", ()):
            if command["verb"] == "node_token":
                self.stored = command["args"]["token"]
                data = {"generation": command["args"]["generation"]}
                self.results.append({"id": command["id"], "ok": True, "data": data})
        return answer


ROOT = Actor(uid=0, gid=0, pid=1, user="root", may_write=True)


async def states(head: Head) -> list[str]:
    return [node.state for node in (await head.token_service.renewal()).nodes]


async def handed(head: Head, agent: Agent) -> None:
    """The loop's look hands the token over while the agent polls; the agent has kept it, and not used it yet."""
    before = agent.stored
    tick = asyncio.create_task(head.node_tokens.tick())
    try:
        async with asyncio.timeout(30):
            while agent.stored == before:
                assert (await agent.poll(hold_s=0.2)).status == 200
    finally:
        tick.cancel()
        await asyncio.gather(tick, return_exceptions=True)


async def renewed(head: Head, agent: Agent) -> str:
    """A whole renewal of all nodes; the old token."""
    old = agent.stored
    await head.token_service.renew(TokenRenewalRequest(), ROOT)
    await handed(head, agent)
    assert (await agent.poll()).status == 200
    return old


async def test_another_machines_node_token(head: Head) -> None:
    _, one = await head.ready(1)
    await head.ready(2)
    thief = head.at(2, one.token)
    for answer in (await thief.poll(), await thief.prove(), await thief.join(), await thief.call("GET", "/v1/agent")):
        assert (answer.status, answer.code) == (403, JoinCode.DEVICE_COPIED)
    assert (await one.poll()).status == 200


async def test_an_address_that_guesses_locks_nobody_out(head: Head) -> None:
    one, agent = await head.ready()
    user = head.at(1)
    codes = [(await user.poll("x" * 64)).status for _ in range(30)]
    assert set(codes) == {401, 429} and codes[-1] == 429
    assert (await agent.poll()).status == 200
    assert (await user.poll("x" * 64)).status == 429, "the agent's calls do not forgive the user's"
    assert (await user.join(head.join_token(one))).code == "throttled"


async def test_an_address_that_guesses_does_not_keep_a_machine_from_joining(head: Head) -> None:
    one = head.put(Phase.JOINING)
    guess = head.at(1)
    for _ in range(30):
        await guess.join("x" * 64)
    assert (await head.at(1).join(head.join_token(one))).status == 200


async def test_a_caller_without_a_device_of_the_tailnet(head: Head) -> None:
    _, agent = await head.ready()
    del head.peers[address_of(1)]
    assert (await agent.poll()).status == 503
    head.peers[address_of(1)] = TailnetPeer("n-1", "lab-h100-1-abcde1", "100.64.0.2", online=True)
    assert (await agent.poll()).status == 200


async def test_a_new_token_ends_the_old_one_with_its_first_use(head: Head) -> None:
    one, caller = await head.ready()
    agent = Agent(caller)
    await head.token_service.renew(TokenRenewalRequest(machines=(one.slot,)), ROOT)
    assert await states(head) == ["waiting"]
    old = agent.stored
    await handed(head, agent)
    assert (await caller.prove(old)).status == 200, "until the new one is used"
    assert (await agent.poll()).status == 200
    assert await states(head) == ["done"]
    for answer in (await caller.poll(old), await caller.prove(old), await caller.join(old)):
        assert (answer.status, answer.code) == (401, "unknown_token")
    assert (await caller.join(agent.stored, munge_key=fingerprint(KEY))).body["node_token"] == agent.stored


async def test_generations_go_up_one_by_one_and_no_old_one_comes_back(head: Head) -> None:
    _, caller = await head.ready()
    agent = Agent(caller)
    old = [await renewed(head, agent) for _ in range(3)]
    assert len({*old, agent.stored}) == 4
    for token in old:
        assert (await caller.poll(token)).code == "unknown_token"


async def test_the_agent_is_killed_between_keeping_and_using_it(head: Head) -> None:
    _, caller = await head.ready()
    agent = Agent(caller)
    await head.token_service.renew(TokenRenewalRequest(), ROOT)
    await handed(head, agent)
    again = Agent(caller)
    again.stored = agent.stored  # what is on its disk
    assert (await again.poll()).status == 200
    assert await states(head) == ["done"]


@pytest.mark.parametrize("moment", ["begun", "handed", "used"])
async def test_meshd_is_killed_at_any_moment(head: Head, tmp_path: Path, moment: str) -> None:
    _, caller = await head.ready()
    agent, old = Agent(caller), caller.token
    await head.token_service.renew(TokenRenewalRequest(), ROOT)
    if moment != "begun":
        await handed(head, agent)
    if moment == "used":
        assert (await agent.poll()).status == 200
    peers = head.peers
    await head.stop()
    async with head_at(tmp_path / "head") as next_life:
        next_life.peers = peers
        agent.caller = next_life.at(1)
        if moment == "begun":
            assert (await agent.poll()).status == 200
            await handed(next_life, agent)
        assert (await agent.poll()).status == 200
        assert await states(next_life) == ["done"]
        assert agent.stored != old
        assert (await agent.caller.poll(old)).code == "unknown_token"


async def test_an_old_token_stays_dead_when_the_journal_is_lost(head: Head, tmp_path: Path) -> None:
    one, caller = await head.ready()
    agent = Agent(caller)
    old = await renewed(head, agent)
    peers = head.peers
    await head.stop()
    for path in (tmp_path / "head").glob("j.db*"):
        path.unlink()
    async with head_at(tmp_path / "head") as anew:
        anew.peers = peers
        anew.journal.put(machine_as_adopted(one), "phase", "found again", anew.clock.now())
        assert (await anew.at(1).join(old)).code == "unknown_token"
        assert (await anew.at(1).join(agent.stored)).status == 200


def machine_as_adopted(one: Machine) -> Machine:
    return replace(one, phase=Phase.BOOTING, facts=None, tailnet_id="", launch_attempts=0)


async def test_a_compromised_token_opens_nothing_at_once_and_its_machine_is_given_back(head: Head) -> None:
    one, caller = await head.ready(1)
    _, other = await head.ready(2)
    agent = Agent(caller)
    await head.token_service.renew(TokenRenewalRequest(), ROOT)
    await handed(head, agent)  # the next one may have been read there as well
    await head.token_service.renew(TokenRenewalRequest(machines=(one.slot,), compromised=True), ROOT)
    for token in (caller.token, agent.stored):
        for answer in (await caller.poll(token), await caller.join(token), await caller.prove(token)):
            assert (answer.status, answer.code) == (401, "unknown_token")
    assert (await caller.join(head.join_token(one))).code == "ticket_closed"
    assert head.get(one.name).removal is Removal.BY_USER
    assert await states(head) == ["locked_out"]
    assert (await other.poll()).status == 200


async def test_a_node_that_is_off_gets_its_token_when_it_returns(head: Head) -> None:
    _, caller = await head.ready()
    agent = Agent(caller)
    head.later(600)
    await head.token_service.renew(TokenRenewalRequest(), ROOT)
    assert await states(head) == ["offline"]
    assert not (await head.token_service.renewal()).active
    await head.node_tokens.tick()
    assert (await agent.poll()).body["commands"] == [] or agent.stored == caller.token
    await handed(head, agent)
    assert (await agent.poll()).status == 200
    assert await states(head) == ["done"]


async def test_an_agent_that_does_not_know_the_verb_is_told_to_people(head: Head) -> None:
    _, caller = await head.ready()
    await head.token_service.renew(TokenRenewalRequest(), ROOT)
    tick = asyncio.create_task(head.node_tokens.tick())
    (command,) = [one for one in (await caller.poll(hold_s=5)).body["commands"] if one["verb"] == "node_token"]
    detail = "this agent does not know the verb 'node_token'"
    await caller.poll(results=[{"id": command["id"], "ok": False, "detail": detail}])
    await tick
    (row,) = (await head.token_service.renewal()).nodes
    assert (row.state, row.reason) == ("failed", detail)
    assert [problem.machine for problem in head.token_service.problems()] == [row.machine]
    assert (await caller.poll()).status == 200, "its old token opens as before"


async def test_what_is_asked_for_in_vain(head: Head) -> None:
    await head.ready()
    with pytest.raises(Unknown):
        await head.token_service.renew(TokenRenewalRequest(machines=("nobody",)), ROOT)
    with pytest.raises(BadRequest):
        await head.token_service.renew(TokenRenewalRequest(compromised=True), ROOT)
    preview = await head.token_service.renew(TokenRenewalRequest(dry_run=True), ROOT)
    assert (len(preview.steps), head.node_tokens.last) == (3, None)


async def test_generations_that_cannot_be_read_keep_meshd_from_starting(head: Head, tmp_path: Path) -> None:
    _, caller = await head.ready()
    await renewed(head, Agent(caller))
    floors = tmp_path / "head" / "machines.key.generations"
    assert floors.stat().st_mode & 0o777 == 0o600
    assert list(json.loads(floors.read_text()).values()) == [1]
    await head.stop()
    floors.write_text("{")
    with pytest.raises(StoreError, match=r"machines\.key\.generations"):
        async with head_at(tmp_path / "head"):
            pass


async def test_another_munge_key_proves_nothing(head: Head) -> None:
    _, agent = await head.ready()
    body = {"credential": credential(b"another")}
    assert (await agent.call("POST", "/v1/munge", body)).status == 409
