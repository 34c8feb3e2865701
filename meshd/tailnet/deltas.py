"""PURE: the messages of tailscaled's bus (`watch-ipn-bus`, ipn.Notify) and what they change.

Facts: tailscale 1.102 `ipn/backend.go` and `ipn/ipnlocal`, checked on recordings. A message without SelfChange carries
true deltas. One with SelfChange carries the whole list of peers without naming those that went, and no message says
whether this node itself is online. Such messages ask for a fresh status (`resync`), and remove no peer by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from meshd.model.observed import TailnetPeer
from meshd.tailnet.fields import Json, first_ipv4, items, moment, number, table, text, texts
from meshd.tailnet.status import TailnetTable, load_object, parse_status, peer_from_node

STATES: Final = {
    0: "NoState",
    1: "InUseOtherUser",
    2: "NeedsLogin",
    3: "NeedsMachineAuth",
    4: "Stopped",
    5: "Starting",
    6: "Running",
}


@dataclass(frozen=True, slots=True)
class PeerPatch:
    """What changed in one peer. None: no change."""

    node_id: int
    online: bool | None = None
    last_seen: datetime | None = None
    key_expiry: datetime | None = None
    node_key: str = ""


@dataclass(frozen=True, slots=True)
class Delta:
    """One message of the bus. Absent parts changed nothing.

    Attributes:
        status: a whole new table, on the first message.
        changed: (NodeID, peer) of peers that are new or replaced.
        removed: NodeIDs.
        own: this node's stable id and address, if the message has them.
        health: tailscaled's complaints, if the message has them; () is "none".
        resync: there were changes that only a fresh status shows completely.
    """

    status: TailnetTable | None = None
    changed: tuple[tuple[int, TailnetPeer], ...] = ()
    removed: tuple[int, ...] = ()
    patched: tuple[PeerPatch, ...] = ()
    own: tuple[str, str] | None = None
    backend: str | None = None
    health: tuple[str, ...] | None = None
    resync: bool = False

    @property
    def empty(self) -> bool:
        """Nothing that meshd follows: most messages of a quiet bus."""
        return self == _NOTHING


_NOTHING: Final = Delta()


def parse_delta(line: str | bytes) -> Delta:
    """Read one line of the bus.

    Raises:
        TailnetError: not a JSON object, or a first message whose status cannot be read.
    """
    note = load_object(line, "a message of tailscaled's bus")
    node = table(note.get("SelfChange"))
    state = note.get("State")
    health = note.get("Health")
    return Delta(
        status=parse_status(table(note["InitialStatus"])) if note.get("InitialStatus") else None,
        changed=tuple((number(p, "ID"), peer_from_node(p)) for p in map(table, items(note.get("PeersChanged")))),
        removed=tuple(node_id for node_id in items(note.get("PeersRemoved")) if isinstance(node_id, int)),
        patched=tuple(_patch(table(patch)) for patch in items(note.get("PeerChangedPatch"))),
        own=_own(node) if node else None,
        backend=STATES.get(state, str(state)) if isinstance(state, int) else None,
        health=_health(table(health)) if isinstance(health, dict) else None,
        resync=any(note.get(key) is not None for key in ("SelfChange", "State", "Health", "ErrMessage", "NetMap")),
    )


def _own(node: Json) -> tuple[str, str]:
    return text(node, "StableID"), first_ipv4(texts(node, "Addresses"))


def _patch(patch: Json) -> PeerPatch:
    online = patch.get("Online")
    return PeerPatch(
        node_id=number(patch, "NodeID"),
        online=online if isinstance(online, bool) else None,
        last_seen=moment(patch, "LastSeen"),
        key_expiry=moment(patch, "KeyExpiry"),
        node_key=text(patch, "Key"),
    )


def _health(health: Json) -> tuple[str, ...]:
    warnings = map(table, table(health.get("Warnings")).values())
    return tuple(sorted(found for warning in warnings if (found := text(warning, "Text"))))


def apply(before: TailnetTable, delta: Delta) -> tuple[TailnetTable, bool]:
    """The table after a message, and whether a fresh status must be read to be sure of it.

    Applying every delta gives what a fresh status would, except for paths: only a status has them, and a known one
    is kept while the peer stays online. Idempotent. A patch or removal of a peer that is not known asks for a status.
    """
    resync = delta.resync and delta.status is None
    after = delta.status or before
    peers, ids = dict(after.peers), dict(after.ids)
    for node_id, peer in delta.changed:
        if not peer.id or not node_id:
            resync = True
            continue
        known = peers.get(peer.id)
        peers[peer.id] = replace(peer, path=known.path) if known and known.online and peer.online else peer
        ids[node_id] = peer.id
    for patch in delta.patched:
        found = peers.get(ids.get(patch.node_id, ""))
        if found is None:
            resync = True
        else:
            peers[found.id] = _patched(found, patch)
    for node_id in delta.removed:
        resync = ids.get(node_id) is None or resync
        peers.pop(ids.pop(node_id, ""), None)
    after = replace(after, peers=peers, ids=ids)
    if delta.own:
        after = replace(after, self_id=delta.own[0], self_tailnet_ip=delta.own[1])
    if delta.backend is not None:
        after = replace(after, backend=delta.backend)
    if delta.health is not None:
        after = replace(after, health=delta.health)
    return after, resync


def _patched(peer: TailnetPeer, patch: PeerPatch) -> TailnetPeer:
    online = peer.online if patch.online is None else patch.online
    return replace(
        peer,
        online=online,
        path=peer.path if online and peer.online else "",
        last_seen=None if online else patch.last_seen or peer.last_seen,
        key_expiry=patch.key_expiry or peer.key_expiry,
        node_key=patch.node_key or peer.node_key,
    )
