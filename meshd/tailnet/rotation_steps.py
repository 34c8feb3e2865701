"""PURE: what a rotation of the auth key does next, and what the end of each step makes of it.

The caller journals the record before a step is carried out (`begun`) and after it (`finished`), so a crash at any point
leaves a record from which `settle` and `next_steps` go on. Each step may be carried out twice without harm.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from meshd.runtime.pauses import growing_pause_s
from meshd.tailnet.rotation import (
    AT_NODES,
    LOGGING_IN,
    SETTLED,
    KeyRef,
    Newcomer,
    NodeStage,
    Rotation,
    RotationNode,
    Source,
    Stage,
    why_not_abort,
)

STORE_PARALLEL: Final = 16
REAUTH_PARALLEL: Final = 4
CANARY_TRIES: Final = 3
"""So many failures of the first node that logs in anew, and the rotation is taken back."""
PROVE_TRIES: Final = 3
"""A key may take a moment to be known everywhere."""
NODE_TRIES: Final = 5
"""After so many failures a node is tried seldom, and shown as failed."""
RETRY_FIRST_S: Final = 5.0
RETRY_MAX_S: Final = 300.0
CONFIRM_S: Final = 60.0
SILENT_S: Final = 180.0
"""A node that logs in anew is done with it long before, one way or the other."""
HOLD_LONG_S: Final = 86400.0
"""A rotation that holds for longer than this is a problem that somebody must look at."""


class Action(StrEnum):
    """What is to be done."""

    MINT = "mint"
    PROVE = "prove"
    SWITCH = "switch"
    STORE = "store"
    REAUTH = "reauth"
    REVOKE_OLD = "revoke_old"
    SWITCH_BACK = "switch_back"
    DISCARD_NEW = "discard_new"


@dataclass(frozen=True, slots=True)
class RotationStep:
    """One thing to do; `machine` for those that concern one node."""

    action: Action
    machine: str = ""


class Verdict(StrEnum):
    """How a step ended."""

    DONE = "done"
    AGAIN = "again"
    """It did not work, or may not have worked: try again."""
    REFUSED = "refused"
    """It did not work, and the same again cannot."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a step ended, and what came of it.

    Attributes:
        key: MINT: the new key; PROVE: what is known of it now.
        warnings: to be kept with the rotation.
        newcomers: REVOKE_OLD of a compromised key: devices born since the leak.
        node_key: REAUTH: the node's public key now.
        gap_s: REAUTH: how long the login took.
    """

    verdict: Verdict
    reason: str = ""
    key: KeyRef | None = None
    warnings: tuple[str, ...] = ()
    newcomers: tuple[Newcomer, ...] = ()
    node_key: str = ""
    gap_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SeenNode:
    """A machine that may hold an auth key, as it is known now.

    Attributes:
        sha256: of the key that it was born with or that it last told to hold; "" when not known.
        reachable: its agent speaks with the head.
        jobs: those that hold it.
        node_key: its public key as the head's tailscaled sees it.
        online: the head's tailscaled sees it online.
        reauth_problem: why it cannot log in anew; "" when it can.
        own_key: it was born with a key of its own and keeps none: it is given one when it logs in anew.
        born_at: when its create call was made; None when not known.
    """

    slot: str
    sha256: str = ""
    reachable: bool = False
    address: str = ""
    jobs: tuple[str, ...] = ()
    node_key: str = ""
    online: bool = False
    reauth_problem: str = ""
    own_key: bool = False
    born_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class World:
    """What is known now.

    Attributes:
        nodes: every machine that was launched and is not on its way out, by name.
        jobs_known: Slurm can be read: else nobody knows which nodes work.
        peers_known: the head's tailscaled can be read and believed.
        in_use: sha256 of the key that launches have.
    """

    nodes: Mapping[str, SeenNode]
    jobs_known: bool = True
    peers_known: bool = True
    in_use: str = ""


def settle(rotation: Rotation, world: World, now: datetime, busy: Collection[RotationStep] = ()) -> Rotation:
    """The record after what was seen, and in the stage that this leads to. Has no effect of its own."""
    if rotation.ended:
        return rotation
    if rotation.aborted_by and not rotation.taken_back and not _at_work(busy):
        rotation = _turn_back(rotation, world, now)
    if rotation.stage in AT_NODES | {Stage.REVOKE, Stage.ROLLBACK}:
        rotation = _watch_nodes(rotation, world, now)
        rotation = _next_stage(rotation, world, now)
    return rotation


def next_steps(
    rotation: Rotation, world: World, now: datetime, busy: Collection[RotationStep] = ()
) -> list[RotationStep]:
    """What to do now, in this order; nothing of what is under way already."""
    if rotation.ended or _at_work(busy):
        return []
    single = {
        Stage.REVOKE_FIRST: Action.REVOKE_OLD,
        Stage.MINT: Action.MINT,
        Stage.PROVE: Action.PROVE,
        Stage.SWITCH: Action.SWITCH,
        Stage.REVOKE: Action.REVOKE_OLD,
        Stage.DISCARD: Action.DISCARD_NEW,
    }.get(rotation.stage)
    if rotation.stage is Stage.ROLLBACK and rotation.old is not None and world.in_use != rotation.old.sha256:
        single = Action.SWITCH_BACK
    if single is not None:
        return [] if rotation.retry_at and now < rotation.retry_at else [RotationStep(single)]
    steps = _stores(rotation, world, now, busy)
    if rotation.reauth and rotation.stage in {Stage.REAUTH, Stage.CONFIRM, Stage.HOLD}:
        steps = _reauths(rotation, world, now, busy)
    return steps


def begun(rotation: Rotation, step: RotationStep, world: World, now: datetime) -> Rotation:
    """The record to be journaled before the step is carried out."""
    if not step.machine:
        return replace(rotation, asked_at=now, attempts=rotation.attempts + 1)
    node = rotation.nodes[step.machine]
    if step.action is Action.REAUTH:
        seen = world.nodes[step.machine]
        again = node.stage is NodeStage.REAUTHENTICATING
        node = replace(
            node, stage=NodeStage.REAUTHENTICATING, since=now, jobs=seen.jobs, retry_at=None,
            attempts=node.attempts + (not again), address=node.address or seen.address,
        )  # fmt: skip
        return rotation.with_node(step.machine, node)
    return rotation.with_node(step.machine, replace(node, attempts=node.attempts + 1, retry_at=None))


def finished(rotation: Rotation, step: RotationStep, outcome: Outcome, now: datetime) -> Rotation:
    """The record after a step. One whose rotation went another way meanwhile changes nothing but what is known."""
    if outcome.warnings:
        rotation = replace(rotation, warnings=tuple(dict.fromkeys((*rotation.warnings, *outcome.warnings))))
    if step.machine:
        return _node_finished(rotation, step, outcome, now)
    if outcome.key is not None:
        rotation = replace(rotation, new=outcome.key)
    if outcome.newcomers:
        rotation = replace(rotation, newcomers=outcome.newcomers)
    if outcome.verdict is Verdict.DONE:
        return _onward(rotation, step, now)
    give_up = outcome.verdict is Verdict.REFUSED and rotation.stage in {Stage.REVOKE_FIRST, Stage.MINT, Stage.PROVE}
    if give_up and (step.action is not Action.PROVE or rotation.attempts >= PROVE_TRIES):
        return rotation.moved(Stage.DISCARD, now, taken_back=outcome.reason)
    return replace(rotation, failure=outcome.reason, retry_at=_retry_at(rotation.attempts, now))


def holds_up(rotation: Rotation, world: World) -> dict[str, str]:
    """What each node is waited for, by machine, for people."""
    found = {}
    for machine, node in rotation.nodes.items():
        if node.stage in SETTLED:
            continue
        seen = world.nodes.get(machine)
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


def _at_work(busy: Collection[RotationStep]) -> bool:
    """A step that concerns the whole is under way."""
    return any(not step.machine for step in busy)


def _turn_back(rotation: Rotation, world: World, now: datetime) -> Rotation:
    why = rotation.taken_back or f"taken back by {rotation.aborted_by}"
    if why_not_abort(rotation):
        return replace(rotation, aborted_by="", taken_back="")
    if not rotation.switched:
        return rotation.moved(Stage.DISCARD, now, taken_back=why)
    nodes = {m: _reset(node, now) for m, node in rotation.nodes.items()}
    return _remember(rotation.moved(Stage.ROLLBACK, now, taken_back=why, nodes=nodes), world, now)


def _reset(node: RotationNode, now: datetime) -> RotationNode:
    """On the way back a node needs its old key again, whatever else was done: a login that was made stays good."""
    if node.stage in {NodeStage.WAIVED, NodeStage.GONE}:
        return node
    return replace(node, stage=NodeStage.WAITING, since=now, attempts=0, failure="", retry_at=None)


def _remember(rotation: Rotation, world: World, now: datetime) -> Rotation:
    """Every machine with another key than the one that all shall hold is waited for, also one that boots."""
    new = {
        machine: RotationNode(seen.slot, NodeStage.WAITING, now, address=seen.address)
        for machine, seen in world.nodes.items()
        if machine not in rotation.nodes and _concerned(rotation, seen)
    }
    return replace(rotation, nodes={**rotation.nodes, **new}) if new else rotation


def _concerned(rotation: Rotation, seen: SeenNode) -> bool:
    """One that keeps no key takes part when it shall log in anew, unless it was born after that was said."""
    if not seen.own_key:
        return not _holds(rotation, seen)
    born_before = seen.born_at is None or seen.born_at < rotation.started_at
    return rotation.reauth and not rotation.taken_back and born_before


def _holds(rotation: Rotation, seen: SeenNode) -> bool:
    """It has what it shall keep. Where there is no key for all, there is nothing to be kept."""
    target = rotation.target
    return seen.own_key or target is None or seen.sha256 == target.sha256


def _watch_nodes(rotation: Rotation, world: World, now: datetime) -> Rotation:
    rotation = _remember(rotation, world, now)
    changed = {}
    for machine, node in rotation.nodes.items():
        after = _watched(rotation, node, world.nodes.get(machine), world, now)
        if after is not node:
            changed[machine] = after
    return replace(rotation, nodes={**rotation.nodes, **changed}) if changed else rotation


def _watched(
    rotation: Rotation, node: RotationNode, seen: SeenNode | None, world: World, now: datetime
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
    if node.stage is NodeStage.STORED and (not rotation.reauth or rotation.stage is Stage.ROLLBACK):
        return replace(node, stage=NodeStage.CONFIRMED, since=now)
    if node.stage is NodeStage.STORED and node.node_key:  # it had logged in before it lost the key file
        return replace(node, stage=NodeStage.REAUTHENTICATED, since=now)
    if node.stage is NodeStage.REAUTHENTICATED:
        return _confirmed(node, seen, world, now)
    return node


def _silent(node: RotationNode, seen: SeenNode, now: datetime) -> RotationNode:
    if seen.reachable or (now - node.since).total_seconds() <= SILENT_S:
        return node
    text = "its agent fell silent while it logged in anew"
    return replace(node, stage=NodeStage.STORED, since=now, failure=text)


def _confirmed(node: RotationNode, seen: SeenNode, world: World, now: datetime) -> RotationNode:
    if not world.peers_known:
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


def _next_stage(rotation: Rotation, world: World, now: datetime) -> Rotation:
    if rotation.stage is Stage.REVOKE and rotation.asked_at is not None:
        return rotation
    open_nodes = {m: n for m, n in rotation.nodes.items() if n.stage not in SETTLED}
    active = [n for m, n in open_nodes.items() if _active(n, world.nodes[m])]
    if rotation.stage is Stage.ROLLBACK:
        # A key that is not revoked in the end need not be waited for: who returns later is given the right one then.
        left = open_nodes if rotation.new and rotation.new.minted else active
        return rotation if left or _switch_back_due(rotation, world) else rotation.moved(Stage.DISCARD, now)
    failure = _canary_failure(rotation)
    if failure and not why_not_abort(rotation):
        return _turn_back(replace(rotation, aborted_by="meshd", taken_back=failure), world, now)
    expired = rotation.old is not None and rotation.old.expires is not None and rotation.old.expires <= now
    if any(n.stage is NodeStage.WAITING for n in active):
        to = Stage.DISTRIBUTE
    elif any(n.stage in {NodeStage.STORED, NodeStage.REAUTHENTICATING} for n in active):
        to = Stage.REAUTH
    elif any(n.stage is NodeStage.REAUTHENTICATED for n in active):
        to = Stage.CONFIRM
    elif open_nodes and not expired:
        to = Stage.HOLD
    else:
        to = Stage.REVOKE
    return rotation if to is rotation.stage else rotation.moved(to, now)


def _active(node: RotationNode, seen: SeenNode) -> bool:
    """Something is about to happen with the node; the others are held for."""
    if not seen.reachable or node.attempts >= NODE_TRIES:
        return False
    if node.stage is NodeStage.REAUTHENTICATED:
        return not node.failure
    return not (node.stage is NodeStage.STORED and seen.reauth_problem)


def _canary_failure(rotation: Rotation) -> str:
    """Why the first nodes that logged in anew prove that the others should not; "" while they do not."""
    if not rotation.reauth or _canary_lives(rotation):
        return ""
    failed = [n for n in rotation.nodes.values() if n.failure and n.stage in {NodeStage.STORED, *LOGGING_IN}]
    unseen = [n for n in failed if n.stage is NodeStage.REAUTHENTICATED]
    if not unseen and sum(n.attempts for n in failed if n.stage is NodeStage.STORED) < CANARY_TRIES:
        return ""
    return f"the first node could not log in anew: {(unseen or failed)[0].failure}"


def _switch_back_due(rotation: Rotation, world: World) -> bool:
    return rotation.old is not None and world.in_use != rotation.old.sha256


def _canary_lives(rotation: Rotation) -> bool:
    """Some node has logged in anew, and the head has seen it."""
    return any(node.stage is NodeStage.CONFIRMED and node.node_key for node in rotation.nodes.values())


def _stores(rotation: Rotation, world: World, now: datetime, busy: Collection[RotationStep]) -> list[RotationStep]:
    room = STORE_PARALLEL - sum(step.action is Action.STORE for step in busy)
    steps = [
        RotationStep(Action.STORE, machine)
        for machine, node in rotation.nodes.items()
        if node.stage is NodeStage.WAITING and _due(node, world.nodes.get(machine), now)
    ]
    return [step for step in steps if step not in busy][: max(room, 0)]


def _reauths(rotation: Rotation, world: World, now: datetime, busy: Collection[RotationStep]) -> list[RotationStep]:
    """Who logs in anew now: one alone until the head has seen it, then a few, never two nodes of one job."""
    if not world.jobs_known:
        return []
    at_it = {m: n for m, n in rotation.nodes.items() if n.stage in LOGGING_IN}
    room = (REAUTH_PARALLEL if _canary_lives(rotation) else 1) - len(at_it)
    due = {m: n for m, n in rotation.nodes.items() if _due(n, world.nodes.get(m), now)}
    unclear = [m for m, n in due.items() if n.stage is NodeStage.REAUTHENTICATING]
    stored = [
        m for m, n in due.items()
        if n.stage is NodeStage.STORED and world.nodes[m].online and not world.nodes[m].reauth_problem
    ]  # fmt: skip
    stored.sort(key=lambda m: (len(world.nodes[m].jobs), rotation.nodes[m].attempts))
    steps: list[RotationStep] = []
    for machine in (*unclear, *stored):
        step = RotationStep(Action.REAUTH, machine)
        new = machine not in at_it
        if step in busy or (new and room <= 0) or _shares_job(machine, rotation, world, now, steps):
            continue
        steps.append(step)
        room -= new
    return steps


def _shares_job(
    machine: str, rotation: Rotation, world: World, now: datetime, begun_now: Collection[RotationStep]
) -> bool:
    """A node of one of its jobs logs in anew now, or may still be at it."""
    jobs = set(world.nodes[machine].jobs)
    for other, node in rotation.nodes.items():
        asked_now = RotationStep(Action.REAUTH, other) in begun_now
        at_it = node.stage in LOGGING_IN and (now - node.since).total_seconds() < SILENT_S
        if other == machine or not (asked_now or at_it):
            continue
        seen = world.nodes.get(other)
        if jobs & {*node.jobs, *(seen.jobs if seen else ())}:
            return True
    return False


def _due(node: RotationNode, seen: SeenNode | None, now: datetime) -> bool:
    return seen is not None and seen.reachable and not (node.retry_at and now < node.retry_at)


def _onward(rotation: Rotation, step: RotationStep, now: datetime) -> Rotation:
    """The stage after one whose step is done."""
    match rotation.stage, step.action:
        case Stage.REVOKE_FIRST, Action.REVOKE_OLD:
            return rotation.moved(Stage.MINT if rotation.source is Source.MINTED else Stage.PROVE, now)
        case Stage.MINT, Action.MINT:
            return rotation.moved(Stage.PROVE, now)
        case Stage.PROVE, Action.PROVE:
            return rotation.moved(Stage.SWITCH, now)
        case Stage.SWITCH, Action.SWITCH:
            return rotation.moved(Stage.DISTRIBUTE, now)
        case Stage.REVOKE, Action.REVOKE_OLD:
            return rotation.moved(Stage.DONE, now)
        case Stage.DISCARD, Action.DISCARD_NEW:
            return rotation.moved(Stage.ABORTED, now)
        case _:
            return replace(rotation, asked_at=None, attempts=0)


def _node_finished(rotation: Rotation, step: RotationStep, outcome: Outcome, now: datetime) -> Rotation:
    node = rotation.nodes.get(step.machine)
    if node is None or node.stage in {NodeStage.WAIVED, NodeStage.GONE}:
        return rotation
    if outcome.verdict is Verdict.DONE:
        if step.action is Action.STORE:
            return rotation.with_node(step.machine, replace(node, failure="", retry_at=None))  # `settle` looks itself
        node = replace(node, stage=NodeStage.REAUTHENTICATED if node.stage in LOGGING_IN else node.stage)
        node = replace(node, since=now, failure="", node_key=outcome.node_key, gap_s=outcome.gap_s)
        return rotation.with_node(step.machine, node)
    refused = outcome.verdict is Verdict.REFUSED and node.stage is NodeStage.REAUTHENTICATING
    stage = NodeStage.STORED if refused else node.stage
    retry_at = _retry_at(node.attempts, now)
    since = now if refused else node.since
    return rotation.with_node(
        step.machine, replace(node, stage=stage, since=since, failure=outcome.reason, retry_at=retry_at)
    )


def _retry_at(attempts: int, now: datetime) -> datetime:
    return now + timedelta(seconds=growing_pause_s(attempts, RETRY_FIRST_S, RETRY_MAX_S))
