"""PURE: what the present state of the nodes means for a rotation of the auth key, and what the rotation waits for.

`rotation_steps` has what to do next, and what the end of a step changes.
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
"""After this many failures of the first node that logs in again, the rotation is taken back."""
NODE_TRIES: Final = 5
"""After this many failures a node is tried seldom, and shown as failed."""
CONFIRM_S: Final = 60.0


def settle(
    rotation: AuthKeyRotation, fleet: AuthKeyFleet, now: datetime, busy: Collection[RotationStep] = ()
) -> AuthKeyRotation:
    """The record after a look at the machines, in the stage that follows from it."""
    if rotation.ended:
        return rotation
    if rotation.aborted_by and not rotation.taken_back and not at_work(busy):
        rotation = _turn_back(rotation, fleet, now)
    if rotation.stage in AT_NODES | {AuthKeyStage.REVOKE, AuthKeyStage.ROLLBACK}:
        rotation = _watch_nodes(rotation, fleet, now)
        rotation = _next_stage(rotation, fleet, now)
    return rotation


def holds_up(rotation: AuthKeyRotation, fleet: AuthKeyFleet) -> dict[str, str]:
    """By machine, why the rotation waits for it, for people."""
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
    """What a node needs whose key was revoked before it had another one."""
    if seen is None or not seen.address:
        return "its key is dead: it cannot join, and is given up in time"
    return (
        "the key that it keeps is dead: while its login is good it gets the new one when it returns, else "
        f"`meshctl remove {node.slot}`"
    )


# -- inside -------------------------------------------------------------------------------------------------------


def _turn_back(rotation: AuthKeyRotation, fleet: AuthKeyFleet, now: datetime) -> AuthKeyRotation:
    why = rotation.taken_back or f"aborted by {rotation.aborted_by}"
    if why_not_abort(rotation):
        return replace(rotation, aborted_by="", taken_back="")
    if not rotation.switched:
        return rotation.moved(AuthKeyStage.DISCARD, now, taken_back=why)
    nodes = {m: _reset(node, now) for m, node in rotation.nodes.items()}
    return _remember(rotation.moved(AuthKeyStage.ROLLBACK, now, taken_back=why, nodes=nodes), fleet, now)


def _reset(node: RotationNode, now: datetime) -> RotationNode:
    """On the way back a node needs its old key again. A login that was made stays valid."""
    if node.stage in {NodeStage.WAIVED, NodeStage.GONE}:
        return node
    return replace(node, stage=NodeStage.WAITING, since=now, attempts=0, failure="", retry_at=None)


def _remember(rotation: AuthKeyRotation, fleet: AuthKeyFleet, now: datetime) -> AuthKeyRotation:
    """Add every machine that does not hold the right key, also one that boots."""
    new = {
        machine: RotationNode(seen.slot, NodeStage.WAITING, now, address=seen.address)
        for machine, seen in fleet.nodes.items()
        if machine not in rotation.nodes and _concerned(rotation, seen)
    }
    return replace(rotation, nodes={**rotation.nodes, **new}) if new else rotation


def _concerned(rotation: AuthKeyRotation, seen: SeenNode) -> bool:
    """One with a key of its own takes part when nodes log in again, unless it was launched after the rotation began."""
    if not _holds(rotation, seen):
        return True
    if not seen.own_key:
        return False
    born_before = seen.born_at is None or seen.born_at < rotation.started_at
    return rotation.reauth and not rotation.taken_back and born_before


def _holds(rotation: AuthKeyRotation, seen: SeenNode) -> bool:
    """It holds the right key: the shared one, or a spare that is no older than the rotation.

    On the way back any spare will do. A machine without a spare gets one in any case, later.
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
    """The record of a node after a look at it."""
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
    text = "its agent fell silent while it logged in again"
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
        # The new key is not revoked, so do not wait for the other nodes: they get the right key when they return.
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
    """The rotation can go on with the node now. HOLD waits for the others."""
    if not seen.reachable or node.attempts >= NODE_TRIES:
        return False
    if node.stage is NodeStage.REAUTHENTICATED:
        return not node.failure
    return not (node.stage is NodeStage.STORED and seen.reauth_problem)


def _canary_failure(rotation: AuthKeyRotation) -> str:
    """Why the others should not log in again, after what happened to the first nodes; "" when they may."""
    if not rotation.reauth or rotation.canary_lives:
        return ""
    failed = [n for n in rotation.nodes.values() if n.failure and n.stage in {NodeStage.STORED, *LOGGING_IN}]
    unseen = [n for n in failed if n.stage is NodeStage.REAUTHENTICATED]
    if not unseen and sum(n.attempts for n in failed if n.stage is NodeStage.STORED) < CANARY_TRIES:
        return ""
    return f"the first node could not log in again: {(unseen or failed)[0].failure}"
