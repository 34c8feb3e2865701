"""What a machine keeps when it is given back, and what people are told of one whose user data is open."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshd.codes import ProblemCode
from meshd.daemon.nodes import problems
from meshd.model.machine import Machine, Phase
from meshd.model.plan import Terminate
from tests.security.attacker import NODE_FACTS, Head
from tests.unit.worlds import ago


def ending(head: Head, **changes: object) -> Machine:
    """A machine that joined and got the munge key, and is ended before it was a node."""
    plain = {"facts": NODE_FACTS, "heartbeat_at": head.clock.now(), "munge_ok": True, "failure": "too few GPUs"}
    return head.put(Phase.TERMINATING, **{**plain, **changes})


async def test_a_machine_that_never_was_a_node_erases_its_keys_before_it_is_ended(head: Head) -> None:
    one = ending(head)
    head.agents.answer = "its agent did not answer within 5 s"
    await head.cloud_steps.terminate(Terminate(one.name, "it failed"))
    assert head.agents.orders == ["leave"]
    assert head.cloud.ended == [one.instance_id], "and is ended whatever its agent says"
    await head.cloud_steps.terminate(Terminate(one.name, "asked again"))
    assert head.agents.orders == ["leave"], "once"


@pytest.mark.parametrize(
    "changes",
    [
        {"heartbeat_at": ago(600)},
        {"heartbeat_at": None},
        {"facts": None},
        {"left_slurm": True},
        {"slurmd_started": True, "left_slurm": True},
    ],
)
async def test_no_machine_waits_for_an_agent_that_has_nothing_to_erase_or_is_silent(
    head: Head, changes: dict[str, object]
) -> None:
    one = ending(head, **changes)
    await head.cloud_steps.terminate(Terminate(one.name, "it failed"))
    assert head.agents.orders == []
    assert head.cloud.ended == [one.instance_id]


async def test_a_node_with_an_open_metadata_service_is_named_until_it_is_closed(head: Head) -> None:
    one, agent = await head.ready()
    why = "nft: nft is not installed or not on PATH"
    assert (await agent.poll(metadata_open=why)).status == 200
    (told,) = problems.metadata_open(head.journal.machines())
    assert (told.severity, told.machine) == ("warning", one.name)
    assert why in told.text
    assert told.code == ProblemCode.METADATA_OPEN
    assert problems.check_metadata_service(head.journal.machines()).status == "warn"
    assert list(problems.metadata_open([replace(head.get(one.name), phase=Phase.TERMINATING)])) == []
    assert (await agent.poll(metadata_open="")).status == 200
    assert problems.metadata_open(head.journal.machines()) == []
    assert problems.check_metadata_service(head.journal.machines()).status == "ok"


@pytest.mark.parametrize(
    ("firewall", "cure"), [(None, problems.CURE), (True, problems.CURE), (False, problems.CURE_WITHOUT_RULES)]
)
async def test_the_cure_is_a_firewall_only_where_the_agent_may_make_rules(
    head: Head, firewall: bool | None, cure: str
) -> None:
    one, agent = await head.ready()
    assert (await agent.poll(metadata_open="169.254.169.254 answers")).status == 200
    machine = replace(head.get(one.name), facts=replace(NODE_FACTS, firewall=firewall))
    (told,) = problems.metadata_open([machine])
    assert told.cure == problems.check_metadata_service([machine]).cure == cure
