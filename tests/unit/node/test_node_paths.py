"""The agent measures its paths: how answers are read, how often it asks whom, and what the heartbeat then has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.node.meshd_node import path_watch
from deploy.node.meshd_node.node import Node
from deploy.node.meshd_node.path_watch import (
    DIRECT_ENOUGH,
    HEAD_EVERY_S,
    NAMES_MAX,
    PAUSES_S,
    PEER_AGAIN_S,
    PEER_EVERY_S,
    SILENCES_MAX,
    PathWatch,
    best,
    pool_peers,
    read_pong,
)
from deploy.node.meshd_node.paths import Paths
from meshd.api.node_schema import PathsIn
from meshd.model.path import PathKind
from tests.unit.node.tailscaled import Tailscaled

HEAD = "100.64.0.1"
PONG = {"IP": HEAD, "NodeIP": HEAD, "NodeName": "head", "Err": "", "LatencySeconds": 0.0007, "Endpoint": "",
        "PeerRelay": "", "DERPRegionID": 0, "DERPRegionCode": ""}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"Endpoint": "10.78.0.1:20001"}, ("direct", "")),
        ({"Endpoint": "[fd00::1]:41641", "DERPRegionID": 0}, ("direct", "")),
        ({"DERPRegionID": 4, "DERPRegionCode": "fra"}, ("derp", "fra")),
        ({"DERPRegionID": 900, "DERPRegionCode": ""}, ("derp", "900")),
        ({"DERPRegionID": 4, "DERPRegionCode": "f\x1b[3 a" + "x" * 99}, ("derp", "f?[3?a" + "x" * 34)),
        ({"PeerRelay": "10.0.0.9:7777:vni:1"}, ("peer-relay", "")),
        ({}, None),  # TSMP and ICMP tell no path
        ({"Err": "no matching peer"}, None),
        ({"Err": "100.64.0.2 is local Tailscale IP", "IsLocalIP": True}, None),
        ({"Endpoint": "10.78.0.1:20001", "LatencySeconds": None}, None),
        ({"Endpoint": "10.78.0.1:20001", "LatencySeconds": True}, None),
        ({"Endpoint": "10.78.0.1:20001", "LatencySeconds": -1}, None),
        ({"Endpoint": "10.78.0.1:20001", "LatencySeconds": 61}, None),
        ({"Endpoint": "10.78.0.1:20001", "LatencySeconds": float("nan")}, None),
    ],
)
def test_what_an_answer_tells(changes: dict[str, Any], path: tuple[str, str] | None) -> None:
    found = read_pong({**PONG, **changes})
    assert (None if found is None else (found.kind, found.relay)) == path


def test_the_best_kind_counts_with_its_shortest_round_trip() -> None:
    derp, far, near = (
        path_watch.Path(*one) for one in (("derp", "fra", 0.001), ("direct", "", 0.03), ("direct", "", 0.02))
    )
    assert best([derp, far, near]) is near
    assert best([derp]) is derp
    assert best([]) is None


def test_the_peers_of_a_pool() -> None:
    roster = {f"a-b-{n}": f"100.64.0.{n}" for n in (1, 2, 3, 10)}
    others = {"a-1": "100.64.1.1", "head": HEAD, "a-b-x": "100.64.1.2", "a-b-c-4": "100.64.1.3"}
    assert list(pool_peers("a-b-2", {**roster, **others})) == ["a-b-3", "a-b-10", "a-b-1"], "from its own number on"
    assert pool_peers("", roster) == pool_peers("pool", roster) == {}


class Watched:
    """A machine that joined as h100-1, with a tailscaled, and a watch whose time moves by hand."""

    def __init__(self, root: Path) -> None:
        self.tailscaled = Tailscaled(root)
        self.now_s = 1000.0
        self.node = Node(Paths(root, root / "proc"))
        self.node.state.slot, self.node.state.node_token = "h100-1", "a" * 64
        self.node.state.conf_server = f"{HEAD}:6817"
        self.watch = PathWatch(self.node, lambda: self.now_s, self._sleep, lambda: 1.0)
        self.looked_at: list[float] = []

    def _sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def peers(self, *numbers: int) -> dict[str, str]:
        """Write the roster; name to address."""
        found = {f"h100-{n}": f"100.64.0.{n}" for n in numbers}
        self.node.paths.hosts.parent.mkdir(exist_ok=True)
        lines = "".join(f"{address}\t{name}\n" for name, address in found.items())
        self.node.paths.hosts.write_text(f"127.0.0.1 localhost\n# BEGIN meshd\n{lines}# END meshd\n")
        return found

    def looks(self, for_s: float) -> Counter[str]:
        """Look for so long, as often as the watch wants to; the pings that were sent, by address."""
        end_s, before = self.now_s + for_s, len(self.tailscaled.pinged)
        while self.now_s < end_s:
            self.looked_at.append(self.now_s)
            self.now_s += self.watch.look()
        return Counter(word.removeprefix("disco ") for word in self.tailscaled.pinged[before:])

    def report(self) -> PathsIn:
        """The report as the head reads it."""
        return PathsIn.model_validate(self.watch.report())


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    found = Watched(tmp_path)
    yield found
    found.tailscaled.close()


def test_before_the_join_nothing_is_asked(watched: Watched) -> None:
    watched.node.state.node_token = ""
    assert watched.looks(60) == {}
    assert watched.report().head is None


def test_a_direct_path_to_the_head_is_asked_once_a_minute(watched: Watched) -> None:
    watched.tailscaled.pongs[HEAD] = ["direct"]
    assert watched.watch.hold_s(25.0) < 25.0, "the head learns soon of the first measurement"
    assert watched.looks(3600) == {HEAD: DIRECT_ENOUGH * 3600 / HEAD_EVERY_S}
    head = watched.report().head
    assert head is not None
    assert (head.kind, head.relay, head.rtt_s) == (PathKind.DIRECT, "", 0.001)
    assert head.age_s <= HEAD_EVERY_S
    assert watched.watch.hold_s(25.0) == 25.0


def test_a_first_answer_over_the_relay_is_no_verdict(watched: Watched) -> None:
    watched.tailscaled.pongs[HEAD] = ["derp", "direct"]
    watched.watch.look()
    head = watched.report().head
    assert head is not None and head.kind is PathKind.DIRECT


def test_a_relayed_path_is_looked_at_soon_again_and_then_ever_more_seldom(watched: Watched) -> None:
    watched.tailscaled.pongs[HEAD] = ["derp"]
    pauses: list[float] = []
    for _ in range(12):
        pauses.append(watched.watch.look())
        holds_s = watched.watch.hold_s(25.0)
        assert holds_s <= 25.0 and holds_s <= watched.watch._next_head_s - watched.now_s + 1.01
        watched.now_s += pauses[-1]
    head = watched.report().head
    assert head is not None and (head.kind, head.relay) == (PathKind.DERP, "fra")
    assert pauses[0] <= 1.0
    pinged = watched.looks(3600)[HEAD]
    assert pinged <= len(PAUSES_S) * (3600 / HEAD_EVERY_S + 1), "what stays relayed costs no more than that"
    watched.tailscaled.pongs[HEAD] = ["direct"]
    watched.looks(HEAD_EVERY_S + 1)
    head = watched.report().head
    assert head is not None and head.kind is PathKind.DIRECT
    watched.tailscaled.pongs[HEAD] = ["derp"]
    watched.looks(HEAD_EVERY_S + 1)
    assert watched.report().head.kind is PathKind.DERP  # type: ignore[union-attr]


def test_silence_leaves_the_last_measurement_whose_age_tells(watched: Watched) -> None:
    watched.tailscaled.pongs[HEAD] = ["direct"]
    watched.watch.look()
    watched.tailscaled.pongs[HEAD] = ["silent"]
    pinged = watched.looks(HEAD_EVERY_S * 3)
    head = watched.report().head
    assert head is not None
    assert head.kind is PathKind.DIRECT and head.age_s >= HEAD_EVERY_S * 3 - 1
    assert pinged[HEAD] <= SILENCES_MAX * 9
    watched.tailscaled.close()
    watched.looks(60)
    assert watched.report().head is not None, "a tailscaled that does not run raises nothing"
    watched.now_s += 1e9
    assert watched.report().head is not None, "the head accepts the age"


def test_peers_are_asked_in_turn_and_seldom(watched: Watched) -> None:
    peers = watched.peers(1, 2, 3, 4)
    watched.tailscaled.pongs = {HEAD: ["direct"], **{address: ["direct"] for address in peers.values()}}
    asked = watched.looks(PEER_EVERY_S * 3 + 5)
    del peers["h100-1"]
    assert {address: asked[address] for address in peers.values()} == dict.fromkeys(peers.values(), DIRECT_ENOUGH)
    assert asked["100.64.0.1"] == 2 * DIRECT_ENOUGH, "the head alone has this address: no machine asks itself"
    hour = watched.looks(3600)
    for address in peers.values():
        assert hour[address] <= DIRECT_ENOUGH * (3600 / PEER_AGAIN_S + 1)


def test_a_large_pool_costs_two_peers_a_minute(watched: Watched) -> None:
    peers = watched.peers(*range(2, 200))
    watched.tailscaled.pongs = {HEAD: ["direct"], **{address: ["direct"] for address in peers.values()}}
    asked = watched.looks(1800)
    del asked[HEAD]
    assert len(asked) <= 1800 / PEER_EVERY_S + 1
    assert set(asked.values()) == {DIRECT_ENOUGH}, "each once before any is asked again"


def test_the_report_counts_and_names_what_is_not_direct(watched: Watched) -> None:
    peers = watched.peers(1, *range(2, 32))
    kinds = ["direct"] * 10 + ["derp"] * 15 + ["silent"] * 5
    watched.tailscaled.pongs = {HEAD: ["direct"]}
    watched.tailscaled.pongs |= {peers[f"h100-{n}"]: [kind] for n, kind in zip(range(2, 32), kinds, strict=True)}
    watched.looks(PEER_EVERY_S * 40)
    found = watched.report().peers
    assert found is not None
    assert (found.direct, found.relayed, found.silent, found.rtt_s) == (10, 15, 5, 0.05)
    assert len(found.not_direct) == NAMES_MAX
    assert set(found.not_direct) <= set(peers)


def test_a_peer_that_is_gone_or_has_another_address_is_forgotten(watched: Watched) -> None:
    peers = watched.peers(1, 2, 3)
    watched.tailscaled.pongs = {HEAD: ["direct"], **{address: ["derp"] for address in peers.values()}}
    watched.tailscaled.pongs["100.64.0.9"] = ["direct"]
    watched.looks(PEER_EVERY_S * 2 + 5)
    assert watched.report().peers.relayed == 2  # type: ignore[union-attr]
    watched.peers(1, 9)
    watched.looks(PEER_EVERY_S + 5)
    found = watched.report().peers
    assert found is not None and (found.direct, found.relayed, found.not_direct) == (1, 0, ())
