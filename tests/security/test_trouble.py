"""Reports of what keeps a machine from joining: its own, small, few, and nothing follows from them but words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshd.api.node_api import TROUBLE_BURST, TROUBLE_EVERY_S
from meshd.model.machine import Phase
from meshd.model.observed import TailnetPeer
from tests.security.attacker import Caller, Head, address_of


async def told(caller: Caller, token: str, text: str = "nvidia-smi hangs", **more: Any) -> int:
    body = {"stage": "gpu", "text": text, **more}
    return (await caller.call("POST", "/v1/trouble", body, token)).status


async def test_a_report_is_the_machines_problem_and_one_event_and_nothing_else(head: Head) -> None:
    one = head.put(Phase.JOINING)
    before, events = head.get(one.name), len(head.journal.events())
    for _ in range(3):
        assert await told(head.at(1), head.join_token(one)) == 200
    after = head.get(one.name)
    assert after.problem == "gpu: nvidia-smi hangs"
    assert before.head_reached_at is None and after.head_reached_at is not None
    assert replace(after, problem="", head_reached_at=None) == replace(before, problem="")
    assert len(head.journal.events()) == events + 1
    joined = await head.at(1).join(head.join_token(one))
    assert joined.status == 200, "it does not use the token up"
    assert head.get(one.name).problem == "", "what kept it from joining is over"


async def test_a_machine_that_joins_again_reports_with_its_node_token(head: Head) -> None:
    one, agent = await head.ready()
    assert await told(agent, agent.token) == 200
    assert head.get(one.name).phase is Phase.READY
    assert head.get(one.name).problem == "gpu: nvidia-smi hangs"
    assert (await agent.poll()).status == 200
    assert head.get(one.name).problem == "", "it clears by itself"


async def test_nobody_else_reports_for_a_machine(head: Head) -> None:
    one, two = head.put(Phase.JOINING, 1), head.put(Phase.JOINING, 2)
    assert await told(head.at(2), head.join_token(one)) == 403, "another machine's device"
    assert await told(head.at(1), "x" * 64) == 401
    assert await told(head.at(1), "") == 401
    head.peers[address_of(1)] = TailnetPeer("n-9", "lab-h100-9-zzzzz9", "100.64.0.9", online=True)
    assert await told(head.at(1), head.join_token(one)) == 403
    assert head.get(one.name).problem == head.get(two.name).problem == ""


async def test_a_closed_or_expired_join_token_reports_nothing(head: Head) -> None:
    one, _ = await head.ready()
    assert await told(head.at(1), head.join_token(one)) == 403
    late = head.put(Phase.JOINING, 2)
    head.later(head.live.settings.timing.join_token_ttl_s + 1)
    assert await told(head.at(2), head.join_token(late)) == 403
    assert head.get(one.name).problem == head.get(late.name).problem == ""


@pytest.mark.parametrize(
    "body",
    [
        {"text": ""}, {"text": "x" * 401}, {"text": 7}, {"stage": "root"}, {"stage": ""}, {"text": ["a"]},
        {"text": "x" * 100_000},
    ],
)  # fmt: skip
async def test_what_is_no_report_changes_nothing(head: Head, body: dict[str, Any]) -> None:
    one = head.put(Phase.JOINING)
    assert await told(head.at(1), head.join_token(one), **body) in (400, 413)
    assert head.get(one.name).problem == ""


async def test_no_report_steers_a_terminal_or_echoes_a_secret(head: Head) -> None:
    one = head.put(Phase.JOINING)
    assert await told(head.at(1), head.join_token(one), "a\x1b[2Jb\x9bc\nd") in (200, 400)
    assert not any(ord(char) < 32 or 127 <= ord(char) < 160 for char in head.get(one.name).problem)


async def test_reports_are_few(head: Head) -> None:
    one, two = head.put(Phase.JOINING, 1), head.put(Phase.JOINING, 2)
    answers = [await told(head.at(1), head.join_token(one), f"try {n}") for n in range(TROUBLE_BURST + 5)]
    assert answers == [200] * TROUBLE_BURST + [429] * 5
    assert await told(head.at(2), head.join_token(two)) == 200, "each machine has its own turns"
    head.later(TROUBLE_EVERY_S)
    assert await told(head.at(1), head.join_token(one), "later") == 200
    assert head.get(one.name).problem == "gpu: later"


async def test_a_machine_that_says_that_it_reboots_is_waited_for_until_it_is_back(head: Head) -> None:
    one, agent = await head.ready()
    assert (await agent.poll(phase="rebooting")).status == 200
    assert head.get(one.name).rebooting
    assert head.get(one.name).heartbeat_at == head.clock.now()
    head.later(400)
    assert (await agent.poll(phase="configuring", munge_ok=False)).status == 200
    assert not head.get(one.name).rebooting
