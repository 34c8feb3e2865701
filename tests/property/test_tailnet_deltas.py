"""Applying the bus's messages gives what a fresh status would give, whatever happened."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from meshd.tailnet.deltas import apply, parse_delta
from meshd.tailnet.status import parse_status


@dataclass
class Peer:
    node_id: int
    hostname: str
    tags: list[str]
    online: bool = True
    seen: str = "0001-01-01T00:00:00Z"
    expired: bool = False
    address: str = ""

    @property
    def stable(self) -> str:
        return f"n{self.node_id}"

    @property
    def ip(self) -> str:
        return f"100.64.{self.node_id // 256}.{self.node_id % 256}"

    def as_status(self) -> dict[str, object]:
        return {
            "ID": self.stable,
            "NodeID": self.node_id,
            "HostName": self.hostname,
            "DNSName": f"{self.hostname}.x.ts.net.",
            "TailscaleIPs": [self.ip],
            "Online": self.online,
            "LastSeen": self.seen,
            "Tags": self.tags,
            "Expired": self.expired,
            "CurAddr": self.address,
        }

    def as_node(self) -> dict[str, object]:
        return {
            "ID": self.node_id,
            "StableID": self.stable,
            "Name": f"{self.hostname}.x.ts.net.",
            "Online": self.online,
            "Addresses": [f"{self.ip}/32"],
            "Hostinfo": {"Hostname": self.hostname},
            "Tags": self.tags or None,
            "Expired": self.expired,
            **({} if self.online else {"LastSeen": self.seen}),
        }


@dataclass
class Tailnet:
    """A tailnet that keeps what tailscaled would answer and says what it would say."""

    peers: dict[int, Peer] = field(default_factory=dict)
    born: int = 0

    def status(self) -> dict[str, object]:
        return {
            "BackendState": "Running",
            "TailscaleIPs": ["100.64.0.1"],
            "Self": {"ID": "n0", "Online": True},
            "Health": [],
            "Peer": {f"nodekey:{peer.node_id}": peer.as_status() for peer in self.peers.values()},
        }

    def event(self, kind: str, pick: int, hostname: str) -> dict[str, object]:
        if kind == "join" or not self.peers:
            self.born += 1
            peer = self.peers[self.born] = Peer(self.born, hostname, ["tag:gpu"] if pick % 2 else [])
            return {"PeersChanged": [peer.as_node()]}
        peer = self.peers[sorted(self.peers)[pick % len(self.peers)]]
        if kind == "leave":
            del self.peers[peer.node_id]
            return {"PeersRemoved": [peer.node_id]}
        if kind == "rename":
            peer.hostname = hostname
            return {"PeersChanged": [peer.as_node()]}
        if kind == "expire":
            peer.expired = not peer.expired
            return {"PeersChanged": [peer.as_node()]}
        if kind == "offline":
            peer.online, peer.seen, peer.address = False, f"2026-11-27T12:00:{pick % 60:02}Z", ""
            return {"PeerChangedPatch": [{"NodeID": peer.node_id, "Online": False, "LastSeen": peer.seen}]}
        peer.online = True
        return {"PeerChangedPatch": [{"NodeID": peer.node_id, "Online": True}]}


KINDS = st.sampled_from(["join", "leave", "rename", "expire", "offline", "online"])
EVENTS = st.lists(st.tuples(KINDS, st.integers(0, 1000), st.sampled_from(["a", "b", "gpu-1"])), max_size=60)


@given(before=EVENTS, after=EVENTS, paths=st.booleans())
def test_applying_deltas_is_a_fresh_status(
    before: list[tuple[str, int, str]], after: list[tuple[str, int, str]], paths: bool
) -> None:
    tailnet = Tailnet()
    for event in before:
        tailnet.event(*event)
    for peer in tailnet.peers.values():
        peer.address = f"10.0.0.{peer.node_id}:41641" if paths and peer.online else ""
    table = parse_status(tailnet.status())
    for event in after:
        note = json.dumps(tailnet.event(*event))
        table, resync = apply(table, parse_delta(note))
        assert not resync
        assert apply(table, parse_delta(note))[0] == table
        assert table == parse_status(tailnet.status())


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "PeersChanged",
                        "PeersRemoved",
                        "PeerChangedPatch",
                        "NodeID",
                        "ID",
                        "StableID",
                        "Online",
                        "State",
                        "Health",
                        "Warnings",
                        "SelfChange",
                        "Addresses",
                        "Hostinfo",
                        "Tags",
                        "LastSeen",
                        "Peer",
                        "Self",
                        "TailscaleIPs",
                    ]
                ),
                inner,
                max_size=5,
            )
        ),
        max_leaves=30,
    )
)
def test_no_shape_of_message_breaks_it(value: object) -> None:
    if not isinstance(value, dict):
        return
    apply(parse_status({"BackendState": "Running", **value}), parse_delta(json.dumps(value)))
