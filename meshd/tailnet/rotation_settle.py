"""PURE: what a rotation of the auth key becomes by what is seen of its nodes, and what it waits for.

What is to be done, and what its end changes, is in `rotation_steps`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime
from typing import Final

from meshd.tailnet.rotation import (
    AT_NODES,
    LOGGING_IN,
    SETTLED,
    AuthKeyRotation,
    AuthKeyStage,
    NodeStage,
    RotationNode,
    why_not_abort,
)
from meshd.tailnet.rotation_fleet import AuthKeyFleet, SeenNode
from meshd.tailnet.rotation_steps import SILENT_S, RotationStep, at_work, switch_back_due

CANARY_TRIES: Final = 3
"""So many failures of the first node that logs in anew, and the rotation is taken back."""
NODE_TRIES: Final = 5
"""After so many failures a node is tried seldom, and shown as failed."""
CONFIRM_S: Final = 60.0


def settle(
    rotation: AuthKeyRotation, fleet: AuthKeyFleet, now: datetime, busy: Collection[RotationStep] = ()
) -> AuthKeyRotation:
    """The record after what was seen, and in the stage that this leads to. Has no effect of its own."""
    if rotation.ended:
        return rotation
    if rotation.aborted_by and not rotation.taken_back and not at_work(busy):
        rotation = _turn_back(rotation, fleet, now)
    if rotation.stage in AT_NODES | {AuthKeyStage.REVOKE, AuthKeyStage.ROLLBACK}:
        rotation = _watch_nodes(rotation, fleet, now)
        rotation = _next_stage(rotation, fleet, now)
    return rotation


def holds_up(rotation: AuthKeyRotation, fleet: AuthKeyFleet) -> dict[str, str]:
    """What each node is waited for, by machine, for people."""
    found = {}
    for machine, node in rotation.nodes.items():
        if node.stage in SETTLED:
            continue
        seen = fleet.nodes.get(machine)
        if seen is None or not seen.reachable:
            found[machine] = "its agent cannot be reached" if seen and seen.address else "it has not joined yet"
        elif seen.reauth_problem and node.stage is NodeStage.STORED:
            found[machine] = seen.reauth_problem
        elif node.failure:
            found[machine] = node.failure
        if rotation.compromised and node.stage is NodeStage.WAITING:
            found[machine] = f"{found.get(machine, 'it has not answered yet')}; {_dead_key(node, seen)}"
    return found


def _dead_key(node: RotationNode, seen: SeenNode | None) -> str:
    """What a node needs that holds a key which was revoked before it had another one."""
    if seen is None or not seen.address:
        return "its key is dead: it cannot join, and is given up in time"
    return (
        "the key that it keeps is dead: while its login is good it gets the new one when it returns, else "
        f"`meshctl remove {node.slot}`"
    )


# -- inside -------------------------------------------------------------------------------------------------------


def _turn_back(rotation: AuthKeyRotation, fleet: AuthKeyFleet, now: datetime) -> AuthKeyRotation:
    why = rotation.taken_back or f"asked for by {rotation.aborted_by}"
    if why_not_abort(rotation):
        return replace(rotation, aborted_by="", taken_back="")
    if not rotation.switched:
        return rotation.moved(AuthKeyStage.DISCARD, now, taken_back=why)
    nodes = {m: _reset(node, now) for m, node in rotation.nodes.items()}
    return _remember(rotation.moved(AuthKeyStage.ROLLBACK, now, taken_back=why, nodes=nodes), fleet, now)


def _reset(node: RotationNode, now: datetime) -> RotationNode:
    """On the way back a node needs its old key again, whatever else was done: a login that was made stays good."""
    if node.stage in {NodeStage.WAIVED, NodeStage.GONE}:
        return node
    return replace(node, stage=NodeStage.WAITING, since=now, attempts=0, failure="", retry_at=None)


def _remember(rotation: AuthKeyRotation, fleet: AuthKeyFleet, now: datetime) -> AuthKeyRotation:
    """Every machine with another key than the one that all shall hold is waited for, also one that boots."""
    new = {
        machine: RotationNode(seen.slot, NodeStage.WAITING, now, address=seen.address)
        for machine, seen in fleet.nodes.items()
        if machine not in rotation.nodes and _concerned(rotation, seen)
    }
    return replace(rotation, nodes={**rotation.nodes, **new}) if new else rotation


def _concerned(rotation: AuthKeyRotation, seen: SeenNode) -> bool:
    """One that had a key of its own takes part when it shall log in anew, unless it was born after that was said."""
    if not _holds(rotation, seen):
        return True
    if not seen.own_key:
        return False
    born_before = seen.born_at is None or seen.born_at < rotation.started_at
    return rotation.reauth and not rotation.taken_back and born_before


def _holds(rotation: AuthKeyRotation, seen: SeenNode) -> bool:
    """It has what it shall keep: the key for all where there is one, or a spare that is no older than the rotation.

    On the way back a spare is as good as any other. One that has none is given one by and by, rotation or not.
    """
    if seen.own_key:
        return bool(rotation.taken_back) or seen.spare_at is None or seen.spare_at >= rotation.started_at
    target = rotation.target
    return target is None or seen.sha256 == target.sha256


def _watch_nodes(rotation: AuthKeyRotation, fleet: AuthKeyFleet, now: datetime) -> AuthKeyRotation:
    rotation = _remember(rotation, fleet, now)
    changed = {}
    for machine, node in rotation.nodes.items():
        after = _watched(rotation, node, fleet.nodes.get(machine), fleet, now)
        if after is not node:
            changed[machine] = after
    return replace(rotation, nodes={**rotation.nodes, **changed}) if changed else rotation


def _watched(
    rotation: AuthKeyRotation, node: RotationNode, seen: SeenNode | None, fleet: AuthKeyFleet, now: datetime
) -> RotationNode:
    """A node after what is seen of it."""
    if node.stage in {NodeStage.WAIVED, NodeStage.GONE}:
        return node
    if seen is None:
        return replace(node, stage=NodeStage.GONE, since=now, failure="", retry_at=None)
    if node.stage is NodeStage.REAUTHENTICATING:
        return _silent(node, seen, now)
    if not _holds(rotation, seen):
        return (
            node if node.stage is NodeStage.WAITING else replace(node, stage=NodeStage.WAITING, since=now, attempts=0)
        )
    if node.stage is NodeStage.WAITING:
        node = replace(node, stage=NodeStage.STORED, since=now, attempts=0, failure="", retry_at=None)
    if node.stage is NodeStage.STORED and (not rotation.reauth or rotation.stage is AuthKeyStage.ROLLBACK):
        return replace(node, stage=NodeStage.CONFIRMED, since=now)
    if node.stage is NodeStage.STORED and node.node_key:  # it had logged in before it lost the key file
        return replace(node, stage=NodeStage.REAUTHENTICATED, since=now)
    if node.stage is NodeStage.REAUTHENTICATED:
        return _confirmed(node, seen, fleet, now)
    return node


def _silent(node: RotationNode, seen: SeenNode, now: datetime) -> RotationNode:
    if seen.reachable or (now - node.since).total_seconds() <= SILENT_S:
        return node
    text = "its agent fell silent while it logged in anew"
    return replace(node, stage=NodeStage.STORED, since=now, failure=text)


def _confirmed(node: RotationNode, seen: SeenNode, fleet: AuthKeyFleet, now: datetime) -> RotationNode:
    if not fleet.peers_known:
        return node
    if seen.node_key == node.node_key and seen.online and seen.reachable:
        if seen.address == node.address:
            return replace(node, stage=NodeStage.CONFIRMED, since=now, failure="", retry_at=None)
        text = f"its address changed from {node.address} to {seen.address}: it is another device now"
    elif (now - node.since).total_seconds() > CONFIRM_S:
        text = "the head does not see its new key: `tailscale status` on both"
    else:
        return node
    return node if node.failure == text else replace(node, failure=text)


def _next_stage(rotation: AuthKeyRotation, fleet: AuthKeyFleet, now: datetime) -> AuthKeyRotation:
    if rotation.stage is AuthKeyStage.REVOKE and rotation.asked_at is not None:
        return rotation
    open_nodes = {m: n for m, n in rotation.nodes.items() if n.stage not in SETTLED}
    active = [n for m, n in open_nodes.items() if _active(n, fleet.nodes[m])]
    if rotation.stage is AuthKeyStage.ROLLBACK:
        # A key that is not revoked in the end need not be waited for: who returns later is given the right one then.
        left = open_nodes if rotation.new and rotation.new.minted else active
        return rotation if left or switch_back_due(rotation, fleet) else rotation.moved(AuthKeyStage.DISCARD, now)
    failure = _canary_failure(rotation)
    if failure and not why_not_abort(rotation):
        return _turn_back(replace(rotation, aborted_by="meshd", taken_back=failure), fleet, now)
    expired = rotation.old is not None and rotation.old.expires is not None and rotation.old.expires <= now
    if any(n.stage is NodeStage.WAITING for n in active):
        to = AuthKeyStage.DISTRIBUTE
    elif any(n.stage in {NodeStage.STORED, NodeStage.REAUTHENTICATING} for n in active):
        to = AuthKeyStage.REAUTH
    elif any(n.stage is NodeStage.REAUTHENTICATED for n in active):
        to = AuthKeyStage.CONFIRM
    elif open_nodes and not expired:
        to = AuthKeyStage.HOLD
    else:
        to = AuthKeyStage.REVOKE
    return rotation if to is rotation.stage else rotation.moved(to, now)


def _active(node: RotationNode, seen: SeenNode) -> bool:
    """Something is about to happen with the node; the others are held for."""
    if not seen.reachable or node.attempts >= NODE_TRIES:
        return False
    if node.stage is NodeStage.REAUTHENTICATED:
        return not node.failure
    return not (node.stage is NodeStage.STORED and seen.reauth_problem)


def _canary_failure(rotation: AuthKeyRotation) -> str:
    """Why the first nodes that logged in anew prove that the others should not; "" while they do not."""
    if not rotation.reauth or rotation.canary_lives:
        return ""
    failed = [n for n in rotation.nodes.values() if n.failure and n.stage in {NodeStage.STORED, *LOGGING_IN}]
    unseen = [n for n in failed if n.stage is NodeStage.REAUTHENTICATED]
    if not unseen and sum(n.attempts for n in failed if n.stage is NodeStage.STORED) < CANARY_TRIES:
        return ""
    return f"the first node could not log in anew: {(unseen or failed)[0].failure}"
