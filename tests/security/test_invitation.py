"""Invitations and the tokens of owned machines: each opens one thing, for one device, for a while."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshd.model.machine import Machine, Phase
from meshd.model.observed import TailnetPeer
from meshd.plan.hosts import offer_of
from meshd.provider_api import CLUSTER_TAG, LaunchRequest
from tests.security.attacker import Head, address_of, facts_wire, head_at
from tests.unit.worlds import machine

CALLS = [
    ("GET", "/v1/invitation"), ("POST", "/v1/hosts/enrol"), ("POST", "/v1/hosts/poll"), ("POST", "/v1/hosts/evicted"),
    ("GET", "/v1/agent"),
]  # fmt: skip


async def as_node(head: Head, agent: object, name: str = "tower") -> Machine:
    """The host as a machine that is on its way, as a launch leaves it."""
    offer = offer_of(head.host(name))
    assert offer is not None
    one = machine(Phase.JOINING, name="lab-desk-1-abcdef", slot="desk-1", pool="desk", provider="static", offer=offer)
    one = replace(one, created_at=head.clock.now(), tailnet_ip="", instance_id=f"{name}/{one.name}")
    head.journal.put(one, "phase", "given", head.clock.now())
    await head.static.launch(LaunchRequest(one.name, "lab", offer, "", {CLUSTER_TAG: "lab"}))
    return one


# -- the invitation ---------------------------------------------------------------------------------------------------


async def test_an_invitation_makes_a_host_and_the_answer_may_be_lost(head: Head) -> None:
    token, agent = head.invited(), head.at(1)
    first = await agent.enrol(token)
    again = await agent.enrol(token)
    assert (first.status, first.body) == (200, again.body)
    assert first.body["host"] == "tower"
    host = head.host()
    assert (host.device_id, host.ours, host.token_used) == ("n-1", False, False)
    assert (await agent.poll_host(first.body["host_token"])).body["order"] == "free"


async def test_its_first_poll_closes_the_invitation_for_the_same_device_too(head: Head) -> None:
    agent = await head.enrolled()
    token = head.tokens.invitation_token("tower", 1).get_secret_value()
    for method, path in (("GET", "/v1/invitation"), ("GET", "/v1/agent"), ("POST", "/v1/hosts/enrol")):
        answer = await agent.call(method, path, {} if method == "POST" else None, token)
        assert (answer.status, answer.code) == (403, "invitation_used")
    assert (await agent.poll_host()).status == 200


async def test_used_by_another_device(head: Head) -> None:
    token = head.invited()
    assert (await head.at(1).enrol(token)).status == 200
    head.peers[address_of(2)] = TailnetPeer("n-2", "thief", "100.64.0.3", online=True)
    answer = await head.at(2).enrol(token)
    assert (answer.status, answer.code) == (403, "invitation_used")
    assert "host_token" not in str(answer.body)
    assert head.host().device_id == "n-1"


class Asked(dict[str, TailnetPeer]):
    """The tailnet's devices, and whether the head has looked at the first one."""

    def __init__(self, peers: dict[str, TailnetPeer]) -> None:
        super().__init__(peers)
        self.first = asyncio.Event()

    def __getitem__(self, address: str) -> TailnetPeer:
        if address == address_of(1):
            self.first.set()
        return super().__getitem__(address)


async def test_of_two_devices_at_the_same_moment_one_wins(head: Head) -> None:
    """The first one's call is accepted, and half of it is there, when the second one enrols."""
    token, go_on = head.invited(), asyncio.Event()
    head.peers[address_of(2)] = TailnetPeer("n-2", "thief", "100.64.0.3", online=True)
    head.peers = asked = Asked(head.peers)

    async def halves() -> AsyncIterator[bytes]:
        data = json.dumps({"facts": facts_wire(gpus=[]), "tailnet": "own"}).encode()
        yield data[:40]
        await go_on.wait()
        yield data[40:]

    slow = asyncio.create_task(head.at(1).call("POST", "/v1/hosts/enrol", token=token, data=halves()))
    await asyncio.wait_for(asked.first.wait(), 10)
    assert (await head.at(2).enrol(token)).status == 200
    go_on.set()
    answer = await slow
    assert (answer.status, answer.code) == (403, "invitation_used")
    assert head.host().device_id == "n-2"


async def test_used_late(head: Head) -> None:
    token = head.invited()
    head.later(3601)
    answer = await head.at(1).enrol(token)
    assert (answer.status, answer.code) == (403, "invitation_expired")
    assert head.host().enrolled_at is None
    assert (await head.at(1).call("GET", "/v1/agent", token=token)).code == "invitation_expired"


async def test_a_lost_answer_is_not_repeated_for_ever(head: Head) -> None:
    token, agent = head.invited(), head.at(1)
    assert (await agent.enrol(token)).status == 200
    head.later(3601)
    assert (await agent.enrol(token)).code == "invitation_expired"


async def test_a_new_invitation_makes_the_last_one_void(head: Head) -> None:
    token = head.invited()
    head.hosts.change("tower", "invited again", head.clock.now(), invitation=2)
    assert (await head.at(1).enrol(token)).code == "unknown_token"
    assert (await head.at(1).enrol(head.tokens.invitation_token("tower", 2).get_secret_value())).status == 200


async def test_one_that_is_withdrawn(head: Head) -> None:
    token = head.invited()
    head.hosts.forget("tower", "withdrawn", head.clock.now())
    assert (await head.at(1).enrol(token)).code == "unknown_token"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"in_use": "slurmd runs, with another cluster's slurm.conf"}, "slurm_in_use"),
        ({"slurm_version": "21.08.5"}, "slurmd_version"),
        ({"slurm_version": "25.05.1"}, "slurmd_version"),
        ({"facts": facts_wire()}, "host_unsuited"),  # it has a GPU, and the pool wants none
        ({"facts": facts_wire(gpus=[], arch="aarch64")}, "host_unsuited"),
    ],
)
async def test_a_machine_that_cannot_be_a_node_leaves_it_open(head: Head, body: dict[str, Any], code: str) -> None:
    token, agent = head.invited(), head.at(1)
    answer = await agent.enrol(token, **body)
    assert (answer.status, answer.code) == (403, code)
    assert head.host().enrolled_at is None
    assert (await agent.enrol(token)).status == 200


async def test_a_device_that_is_something_else_already(head: Head) -> None:
    await head.enrolled("attic", 2)
    head.invited("tower", 1, slot="desk-2")
    token = head.tokens.invitation_token("tower", 1).get_secret_value()
    assert (await head.at(2).enrol(token)).code == "other_machine", "a host"
    await head.ready(3)
    assert (await head.at(3).enrol(token)).code == "other_machine", "a node"
    head.peers[address_of(4)] = TailnetPeer("n-head", "head", "100.64.0.1", online=True)
    assert (await head.at(4).enrol(token)).code == "other_machine", "the head"
    head.peers[address_of(5)] = TailnetPeer("n-5", "six", "", online=True)
    assert (await head.at(5).enrol(token)).code == "no_ipv4"
    assert (await head.at(1).enrol(token)).status == 200


async def test_it_is_no_node_and_no_machine(head: Head) -> None:
    token = head.invited()
    for path, body in (
        ("/v1/join", {"facts": facts_wire()}),
        ("/v1/poll", {}),
        ("/v1/munge", {"credential": "MUNGE:a:"}),
    ):
        assert (await head.at(1).call("POST", path, body, token)).code == "unknown_token"


@pytest.mark.parametrize(("method", "path"), CALLS)
@pytest.mark.parametrize("token", ["", "x", "f" * 64, "f" * 129, "f" * 60 + "\u00e9" * 4])
async def test_tokens_that_nobody_gave(head: Head, method: str, path: str, token: str) -> None:
    head.invited()
    answer = await head.at(1).call(method, path, {} if method == "POST" else None, token.encode().decode("latin-1"))
    assert (answer.status, answer.code) == (401, "unknown_token")


async def test_guesses_are_slowed_down_and_the_host_is_served(head: Head) -> None:
    agent = await head.enrolled()
    token = head.tokens.invitation_token("tower", 1).get_secret_value()
    user = head.at(1)
    codes = [(await user.enrol(token)).code for _ in range(20)]
    assert codes == ["invitation_used"] * 10 + ["throttled"] * 10
    assert (await agent.poll_host()).status == 200


@pytest.mark.parametrize(
    "body",
    [
        {"facts": {}}, {"tailnet": "theirs"}, {"in_use": "x" * 401}, {"slurm_version": "24.11;rm"}, {"facts": None},
        {"facts": facts_wire(gpus=[{"index": i} for i in range(65)])}, {"in_use": 7},
    ],
)  # fmt: skip
async def test_bodies_out_of_bounds(head: Head, body: dict[str, Any]) -> None:
    token = head.invited()
    assert (await head.at(1).enrol(token, **body)).status == 400
    assert head.host().enrolled_at is None


async def test_a_huge_body(head: Head) -> None:
    agent = await head.enrolled()
    assert (await agent.poll_host(problem="x" * 70_000)).status == 413
    lines = {"not_restored": ["x" * 400] * 65}
    assert (await agent.call("POST", "/v1/hosts/evicted", lines)).status == 400


# -- the host's token -------------------------------------------------------------------------------------------------


async def test_the_token_of_a_host_opens_nothing_for_another_device(head: Head) -> None:
    agent = await head.enrolled()
    head.peers[address_of(2)] = TailnetPeer("n-2", "thief", "100.64.0.3", online=True)
    for method, path in CALLS[2:]:
        answer = await head.at(2).call(method, path, {"state": "free"} if method == "POST" else None, agent.token)
        assert (answer.status, answer.code) == (403, "other_device")


async def test_the_token_of_a_host_that_nobody_has_enrolled(head: Head) -> None:
    head.invited()
    assert (await head.at(1).poll_host(head.host_token())).code == "unknown_token"


async def test_hosts_survive_a_killed_meshd(head: Head, tmp_path: Path) -> None:
    agent = await head.enrolled()
    token, peers = agent.token, head.peers
    await head.stop()
    async with head_at(tmp_path / "head") as again:
        again.peers = peers
        assert (await again.at(1).poll_host(token)).status == 200
        invitation = again.tokens.invitation_token("tower", 1).get_secret_value()
        assert (await again.at(1).enrol(invitation)).code == "invitation_used"


async def test_nobody_evicts_itself(head: Head) -> None:
    agent = await head.enrolled()
    answer = await agent.call("POST", "/v1/hosts/evicted", {})
    assert (answer.status, answer.body["fatal"]) == (403, False)
    assert head.host().evicted_at is None


# -- as a node --------------------------------------------------------------------------------------------------------


async def test_a_host_joins_as_a_node_under_the_name_of_its_own_device(head: Head) -> None:
    agent = await head.enrolled()
    one = await as_node(head, agent)
    order = (await agent.poll_host()).body
    assert (order["order"], order["machine"], order["join"]["machine"]) == ("node", one.name, one.name)
    joined = await agent.join(order["join"]["token"], facts=facts_wire(gpus=[]))
    assert joined.status == 200, joined.body
    assert (await agent.prove(joined.body["node_token"])).status == 200
    assert head.get(one.name).tailnet_id == "n-1"
    assert joined.body["dead_man_s"] == 0.0, "it never powers itself off"


async def test_the_join_token_of_a_host_is_bound_to_its_device(head: Head) -> None:
    agent = await head.enrolled()
    one = await as_node(head, agent)
    head.peers[address_of(2)] = TailnetPeer("n-2", "thief", "100.64.0.3", online=True)
    answer = await head.at(2).join(head.join_token(one), facts=facts_wire(gpus=[]))
    assert (answer.status, answer.code) == (403, "other_machine")


async def test_a_host_that_is_taken_off_is_no_machine_any_more(head: Head) -> None:
    agent = await head.enrolled()
    one = await as_node(head, agent)
    (instance,) = await head.static.list()
    await head.static.terminate(instance)
    assert (await agent.poll_host(state="node", machine=one.name)).body["order"] == "free"
    answer = await agent.join(head.join_token(one), facts=facts_wire(gpus=[]))
    assert (answer.status, answer.code) == (403, "other_machine")


async def test_the_whole_way_out(head: Head) -> None:
    agent = await head.enrolled(auth_key=True)
    head.hosts.change("tower", "it was logged in", head.clock.now(), ours=True)
    one = await as_node(head, agent)
    head.hosts.change("tower", "removed", head.clock.now(), evict=True)
    assert (await agent.poll_host()).body["order"] == "node", "its machine leaves Slurm first"
    (instance,) = await head.static.list()
    await head.static.terminate(instance)
    assert (await agent.poll_host(state="node", machine=one.name)).body["order"] == "evict"
    for _ in range(2):  # the answer may be lost
        assert (await agent.call("POST", "/v1/hosts/evicted", {"not_restored": ["/etc/hosts"]})).status == 200
    await head.owned.controller.reconcile()
    assert head.tailnet_api.ids == [], "its answer may still be on its way"
    head.later(11)
    await head.owned.controller.reconcile()
    assert head.tailnet_api.ids == ["n-1"]
    assert head.hosts.find("tower") is None
    assert (await agent.poll_host()).code == "unknown_token"


async def test_a_device_of_its_owner_is_never_deleted(head: Head) -> None:
    agent = await head.enrolled()
    head.hosts.change("tower", "removed", head.clock.now(), evict=True)
    assert (await agent.call("POST", "/v1/hosts/evicted", {})).status == 200
    head.later(11)
    await head.owned.controller.reconcile()
    assert (head.tailnet_api.ids, head.hosts.find("tower")) == ([], None)


async def test_who_lies_about_its_login_does_not_have_a_device_deleted(head: Head) -> None:
    token = head.invited()
    assert (await head.at(1).enrol(token, tailnet="ours")).status == 200
    assert head.host().ours is False, "its invitation had no key"
