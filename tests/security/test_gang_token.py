"""A gang's join token in the hands of somebody on one of its machines: it opens no machine that is not the gang's, none
that has joined, and each of the others only for the instance that its cloud shows under its name."""

from __future__ import annotations

from typing import Any

from meshd.gang_id import gang_id
from meshd.model.ids import MachineName
from meshd.model.machine import Machine, Phase
from meshd.model.observed import TailnetPeer
from tests.security.attacker import Answer, Head, address_of, facts_wire

GANG = gang_id([f"lab-h100-{index}-k7q2mz" for index in (1, 2, 3)])


def put(head: Head, index: int, phase: Phase = Phase.JOINING, **changes: Any) -> Machine:
    """A machine of the gang."""
    return head.put(phase, index, name=MachineName(f"lab-h100-{index}-k7q2mz"), gang=GANG, **changes)


def token(head: Head) -> str:
    """What every machine of the gang has in its user data."""
    return head.tokens.join_token(GANG).get_secret_value()


async def joins(head: Head, index: int, instance_id: str, at: int | None = None) -> Answer:
    """A process on a machine asks to join, and says which instance it is."""
    facts = facts_wire(instance_id=instance_id)
    return await head.at(index if at is None else at).call("POST", "/v1/join", {"facts": facts}, token(head))


async def whole_join(head: Head, index: int) -> str:
    """The join of a machine, and its first proof; returns its node token."""
    joined = await joins(head, index, f"i-{index}")
    assert joined.status == 200, joined.body
    assert (await head.at(index).prove(joined.body["node_token"])).status == 200
    return str(joined.body["node_token"])


async def test_each_machine_of_a_gang_joins_once_with_the_same_token(head: Head) -> None:
    names = [put(head, index).name for index in (1, 2, 3)]
    nodes = {await whole_join(head, index) for index in (1, 2, 3)}
    assert len(nodes) == 3, "each has a node token of its own"
    assert {head.get(name).phase for name in names} == {Phase.CONFIGURING}
    for index in (1, 2, 3):
        assert (await joins(head, index, f"i-{index}")).code == "ticket_closed"


async def test_the_first_proof_closes_the_token_for_its_machine_alone(head: Head) -> None:
    put(head, 1)
    put(head, 2)
    await whole_join(head, 1)
    assert (await joins(head, 1, "i-1")).code == "ticket_closed"
    assert (await joins(head, 2, "i-2")).status == 200


async def test_a_machine_that_is_another_instance_is_refused_and_the_real_one_is_not(head: Head) -> None:
    one = put(head, 1)
    for said in ("i-2", "", "i-11"):
        answer = await joins(head, 1, said)
        assert (answer.status, answer.code) == (403, "other_instance")
        assert answer.body["fatal"] is False
    assert head.get(one.name).phase is Phase.JOINING, "the try does not cost the machine its place"
    (problem,) = head.refusals.problems(head.clock.now())
    assert (problem.machine, "may still join" in problem.cure) == (one.name, True)
    assert (await joins(head, 1, "i-1")).status == 200


async def test_a_machine_whose_call_is_not_answered_yet_waits(head: Head) -> None:
    put(head, 1, Phase.LAUNCHING)
    answer = await joins(head, 1, "i-1")
    assert (answer.status, answer.code, answer.body["fatal"]) == (403, "not_confirmed", False)


async def test_somebody_on_one_machine_is_not_another_of_its_gang(head: Head) -> None:
    """The device of a machine that has joined calls itself like one that has not."""
    put(head, 1)
    two = put(head, 2)
    await whole_join(head, 1)
    head.peers[address_of(1)] = TailnetPeer("n-1", two.name, "100.64.0.2", online=True)
    answer = await joins(head, 2, "i-2", at=1)
    assert answer.status == 403
    assert head.get(two.name).phase is Phase.JOINING, "it is not given back for that"
    assert (await joins(head, 2, "i-2")).status == 200


async def test_a_second_device_with_the_name_of_a_machine_that_joined(head: Head) -> None:
    two = put(head, 2)
    assert (await joins(head, 2, "i-2")).status == 200
    head.peers[address_of(9)] = TailnetPeer("n-9", two.name, "100.64.0.99", online=True)
    assert (await joins(head, 2, "i-2", at=9)).code == "other_device"


async def test_a_machine_outside_the_gang(head: Head) -> None:
    put(head, 1)
    outside = head.put(Phase.JOINING, 5)
    before = head.get(outside.name)
    answer = await joins(head, 5, "i-5")
    assert (answer.status, answer.code) == (403, "other_machine")
    assert head.get(outside.name) == before
    assert (await head.at(5).join(head.join_token(outside))).status == 200, "its own token still opens its own join"


async def test_the_token_of_one_machine_opens_nothing_of_a_gang(head: Head) -> None:
    one = put(head, 1)
    answer = await head.at(1).join(head.join_token(one))
    assert (answer.status, answer.code) == (401, "unknown_token"), "such a token was never given to anybody"


async def test_the_token_of_a_gang_that_is_gone(head: Head) -> None:
    one = put(head, 1)
    head.machine_store.move(one.name, Phase.TERMINATING, "given back")
    assert (await joins(head, 1, "i-1")).code == "other_machine"
    head.machine_store.move(one.name, Phase.GONE, "ended")
    assert (await joins(head, 1, "i-1")).code == "unknown_token"


async def test_names_are_guessed_no_faster_than_tokens(head: Head) -> None:
    put(head, 1)
    codes = []
    for number in range(15):
        head.peers[address_of(8)] = TailnetPeer("n-8", f"lab-h100-{number + 10}-k7q2mz", "100.64.0.88", online=True)
        codes.append((await joins(head, 8, "i-8")).code)
    assert codes[0] == "other_machine"
    assert codes[-1] == "throttled"
    assert (await joins(head, 1, "i-1")).status == 200
