"""PURE: what a rotation of the auth key does next, and what the end of each step changes.

The caller writes the record into the journal before a step (`begun`) and after it (`finished`). So after a crash at any
point, `settle` (see `rotation_settle`) and `next_steps` can go on from the record. Every step may be carried out twice.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from meshd.runtime.backoff import backoff_s
from meshd.tailnet.rotation import (
    FIRST_STAGE,
    LOGGING_IN,
    AuthKeyRotation,
    AuthKeyStage,
    KeyRef,
    Newcomer,
    NodeStage,
    RotationNode,
)
from meshd.tailnet.rotation_fleet import AuthKeyFleet, SeenNode

STORE_PARALLEL: Final = 16
REAUTH_PARALLEL: Final = 4
PROVE_TRIES: Final = 3
"""A new key may not be known everywhere at once."""
RETRY_FIRST_S: Final = 5.0
RETRY_MAX_S: Final = 300.0
SILENT_S: Final = 180.0
"""A node that logs in again has ended that long before, with or without success."""


class RotationAction(StrEnum):
    """The kinds of step."""

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
    """One thing to do; `machine` is set when it is about one node."""

    action: RotationAction
    machine: str = ""


class StepVerdict(StrEnum):
    """How a step ended."""

    DONE = "done"
    AGAIN = "again"
    """It failed, or may have failed: try again."""
    REFUSED = "refused"
    """It failed, and would fail again."""


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """How a step ended, and its results.

    Attributes:
        key: of MINT, the new key; of PROVE, the same with what is known now.
        warnings: for the rotation's record.
        newcomers: of REVOKE_OLD of a compromised key, the devices that joined since the leak.
        node_key: of REAUTH, the node's public key now.
        gap_s: of REAUTH, how long the login took.
    """

    verdict: StepVerdict
    reason: str = ""
    key: KeyRef | None = None
    warnings: tuple[str, ...] = ()
    newcomers: tuple[Newcomer, ...] = ()
    node_key: str = ""
    gap_s: float = 0.0


def next_steps(
    rotation: AuthKeyRotation, fleet: AuthKeyFleet, now: datetime, busy: Collection[RotationStep] = ()
) -> list[RotationStep]:
    """The steps to begin now, in this order, without those that run already."""
    if rotation.ended or at_work(busy):
        return []
    single = {
        AuthKeyStage.REVOKE_FIRST: RotationAction.REVOKE_OLD,
        AuthKeyStage.MINT: RotationAction.MINT,
        AuthKeyStage.PROVE: RotationAction.PROVE,
        AuthKeyStage.SWITCH: RotationAction.SWITCH,
        AuthKeyStage.REVOKE: RotationAction.REVOKE_OLD,
        AuthKeyStage.DISCARD: RotationAction.DISCARD_NEW,
    }.get(rotation.stage)
    if rotation.stage is AuthKeyStage.ROLLBACK and switch_back_due(rotation, fleet):
        single = RotationAction.SWITCH_BACK
    if single is not None:
        return [] if rotation.retry_at and now < rotation.retry_at else [RotationStep(single)]
    steps = _stores(rotation, fleet, now, busy)
    if rotation.reauth and rotation.stage in {AuthKeyStage.REAUTH, AuthKeyStage.CONFIRM, AuthKeyStage.HOLD}:
        steps = _reauths(rotation, fleet, now, busy)
    return steps


def begun(rotation: AuthKeyRotation, step: RotationStep, fleet: AuthKeyFleet, now: datetime) -> AuthKeyRotation:
    """The record for the journal before the step."""
    if not step.machine:
        return replace(rotation, asked_at=now, attempts=rotation.attempts + 1)
    node = rotation.nodes[step.machine]
    if step.action is RotationAction.REAUTH:
        seen = fleet.nodes[step.machine]
        again = node.stage is NodeStage.REAUTHENTICATING
        node = replace(
            node, stage=NodeStage.REAUTHENTICATING, since=now, jobs=seen.jobs, retry_at=None,
            attempts=node.attempts + (not again), address=node.address or seen.address,
        )  # fmt: skip
        return rotation.with_node(step.machine, node)
    return rotation.with_node(step.machine, replace(node, attempts=node.attempts + 1, retry_at=None))


def finished(rotation: AuthKeyRotation, step: RotationStep, outcome: StepOutcome, now: datetime) -> AuthKeyRotation:
    """The record after a step. When the stage has changed since it began, the step changes no stage."""
    if outcome.warnings:
        rotation = replace(rotation, warnings=tuple(dict.fromkeys((*rotation.warnings, *outcome.warnings))))
    if step.machine:
        return _node_finished(rotation, step, outcome, now)
    if outcome.key is not None:
        rotation = replace(rotation, new=outcome.key)
    if outcome.newcomers:
        rotation = replace(rotation, newcomers=outcome.newcomers)
    if outcome.verdict is StepVerdict.DONE:
        return _onward(rotation, step, now)
    give_up = outcome.verdict is StepVerdict.REFUSED and rotation.stage in {
        AuthKeyStage.REVOKE_FIRST,
        AuthKeyStage.MINT,
        AuthKeyStage.PROVE,
    }
    if give_up and (step.action is not RotationAction.PROVE or rotation.attempts >= PROVE_TRIES):
        return rotation.moved(AuthKeyStage.DISCARD, now, taken_back=outcome.reason)
    return replace(rotation, failure=outcome.reason, retry_at=_retry_at(rotation.attempts, now))


def at_work(busy: Collection[RotationStep]) -> bool:
    """A step that is about the whole rotation runs."""
    return any(not step.machine for step in busy)


def switch_back_due(rotation: AuthKeyRotation, fleet: AuthKeyFleet) -> bool:
    """New machines do not get the old key yet, and should again."""
    return rotation.old is not None and fleet.in_use != rotation.old.sha256


# -- inside -------------------------------------------------------------------------------------------------------


def _stores(
    rotation: AuthKeyRotation, fleet: AuthKeyFleet, now: datetime, busy: Collection[RotationStep]
) -> list[RotationStep]:
    room = STORE_PARALLEL - sum(step.action is RotationAction.STORE for step in busy)
    steps = [
        RotationStep(RotationAction.STORE, machine)
        for machine, node in rotation.nodes.items()
        if node.stage is NodeStage.WAITING and _due(node, fleet.nodes.get(machine), now)
    ]
    return [step for step in steps if step not in busy][: max(room, 0)]


def _reauths(
    rotation: AuthKeyRotation, fleet: AuthKeyFleet, now: datetime, busy: Collection[RotationStep]
) -> list[RotationStep]:
    """The nodes to log in again now: one alone until the head has seen it, then a few, never two nodes of one job."""
    if not fleet.jobs_known:
        return []
    at_it = {m: n for m, n in rotation.nodes.items() if n.stage in LOGGING_IN}
    room = (REAUTH_PARALLEL if rotation.canary_lives else 1) - len(at_it)
    due = {m: n for m, n in rotation.nodes.items() if _due(n, fleet.nodes.get(m), now)}
    unclear = [m for m, n in due.items() if n.stage is NodeStage.REAUTHENTICATING]
    stored = [
        m for m, n in due.items()
        if n.stage is NodeStage.STORED and fleet.nodes[m].online and not fleet.nodes[m].reauth_problem
    ]  # fmt: skip
    stored.sort(key=lambda m: (len(fleet.nodes[m].jobs), rotation.nodes[m].attempts))
    steps: list[RotationStep] = []
    for machine in (*unclear, *stored):
        step = RotationStep(RotationAction.REAUTH, machine)
        new = machine not in at_it
        if step in busy or (new and room <= 0) or _shares_job(machine, rotation, fleet, now, steps):
            continue
        steps.append(step)
        room -= new
    return steps


def _shares_job(
    machine: str, rotation: AuthKeyRotation, fleet: AuthKeyFleet, now: datetime, begun_now: Collection[RotationStep]
) -> bool:
    """Another node of one of its jobs logs in again now, or may not have ended that."""
    jobs = set(fleet.nodes[machine].jobs)
    for other, node in rotation.nodes.items():
        asked_now = RotationStep(RotationAction.REAUTH, other) in begun_now
        at_it = node.stage in LOGGING_IN and (now - node.since).total_seconds() < SILENT_S
        if other == machine or not (asked_now or at_it):
            continue
        seen = fleet.nodes.get(other)
        if jobs & {*node.jobs, *(seen.jobs if seen else ())}:
            return True
    return False


def _due(node: RotationNode, seen: SeenNode | None, now: datetime) -> bool:
    return seen is not None and seen.reachable and not (node.retry_at and now < node.retry_at)


def _onward(rotation: AuthKeyRotation, step: RotationStep, now: datetime) -> AuthKeyRotation:
    """The stage after the present one, whose step is done."""
    match rotation.stage, step.action:
        case AuthKeyStage.REVOKE_FIRST, RotationAction.REVOKE_OLD:
            return rotation.moved(FIRST_STAGE[rotation.source], now)
        case AuthKeyStage.MINT, RotationAction.MINT:
            return rotation.moved(AuthKeyStage.PROVE, now)
        case AuthKeyStage.PROVE, RotationAction.PROVE:
            return rotation.moved(AuthKeyStage.SWITCH, now)
        case AuthKeyStage.SWITCH, RotationAction.SWITCH:
            return rotation.moved(AuthKeyStage.DISTRIBUTE, now)
        case AuthKeyStage.REVOKE, RotationAction.REVOKE_OLD:
            return rotation.moved(AuthKeyStage.DONE, now)
        case AuthKeyStage.DISCARD, RotationAction.DISCARD_NEW:
            return rotation.moved(AuthKeyStage.ABORTED, now)
        case _:
            return replace(rotation, asked_at=None, attempts=0)


def _node_finished(
    rotation: AuthKeyRotation, step: RotationStep, outcome: StepOutcome, now: datetime
) -> AuthKeyRotation:
    node = rotation.nodes.get(step.machine)
    if node is None or node.stage in {NodeStage.WAIVED, NodeStage.GONE}:
        return rotation
    if outcome.verdict is StepVerdict.DONE:
        if step.action is RotationAction.STORE:
            return rotation.with_node(step.machine, replace(node, failure="", retry_at=None))
        node = replace(node, stage=NodeStage.REAUTHENTICATED if node.stage in LOGGING_IN else node.stage)
        node = replace(node, since=now, failure="", node_key=outcome.node_key, gap_s=outcome.gap_s)
        return rotation.with_node(step.machine, node)
    refused = outcome.verdict is StepVerdict.REFUSED and node.stage is NodeStage.REAUTHENTICATING
    stage = NodeStage.STORED if refused else node.stage
    retry_at = _retry_at(node.attempts, now)
    since = now if refused else node.since
    return rotation.with_node(
        step.machine, replace(node, stage=stage, since=since, failure=outcome.reason, retry_at=retry_at)
    )


def _retry_at(attempts: int, now: datetime) -> datetime:
    return now + timedelta(seconds=backoff_s(attempts, RETRY_FIRST_S, RETRY_MAX_S))
