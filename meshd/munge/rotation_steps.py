"""PURE: what a rotation of the munge key does next.

`decide` returns the new record and the steps to begin. The daemon writes the record before it begins the steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from meshd.errors import IllegalMove
from meshd.munge.rotation import HeadView, MungeFleet, MungeRotation, MungeStage, not_confirmed, waits_for

TRIES_MAX = 3
"""After this many moments at which the head did not switch, all go back. The way back is tried without end."""


@dataclass(frozen=True, slots=True)
class SwitchTimings:
    """Deadlines and pauses of a switch.

    Attributes:
        lead_s: from the setting of a moment to that moment: every agent must know it in time.
        lead_per_node_s: more lead for each node. On two busy cores 1,000 agents know the moment after 2.8 s.
        lead_max_s: the most lead.
        head_timeout_s: a head that has not switched this long after the moment has failed.
        verify_s: when most nodes have not proved the new key by then, all go back.
        again_s: between two tries of the way back.
        away_s: how long munged is away everywhere: longer than the clocks differ, much shorter than the 2 s that Slurm
            waits for it.
    """

    lead_s: float = 2.0
    lead_per_node_s: float = 0.003
    lead_max_s: float = 15.0
    head_timeout_s: float = 20.0
    verify_s: float = 90.0
    again_s: float = 5.0
    away_s: float = 0.2


@dataclass(frozen=True, slots=True)
class MakeKeys:
    """Make the new key, and keep it and the old one as files."""


@dataclass(frozen=True, slots=True)
class StageHead:
    """Have the head's unit store a key beside the present one. Its answer names both."""

    key: str


@dataclass(frozen=True, slots=True)
class StageNode:
    """The same, on a node."""

    machine: str
    key: str


@dataclass(frozen=True, slots=True)
class SwitchHead:
    """Have the head switch to a staged or previous key at a moment."""

    key: str
    at: datetime


@dataclass(frozen=True, slots=True)
class SwitchNode:
    """The same, on a node."""

    machine: str
    key: str
    at: datetime


@dataclass(frozen=True, slots=True)
class PutNode:
    """Send a node the key and have it used at once: the node did not switch at the moment."""

    machine: str
    key: str


@dataclass(frozen=True, slots=True)
class RestartSlurmd:
    """Have slurmd register again: Slurm takes a node for dead whose credentials it could not decode."""

    machine: str


MungeStep = MakeKeys | StageHead | StageNode | SwitchHead | SwitchNode | PutNode | RestartSlurmd


@dataclass(frozen=True, slots=True)
class Decision:
    """The record to write, and the steps to begin after that. A step may be named again while it runs."""

    rotation: MungeRotation
    steps: tuple[MungeStep, ...] = ()


def decide(rotation: MungeRotation, fleet: MungeFleet, now: datetime, timings: SwitchTimings) -> Decision:
    """Decide what to do now.

    Args:
        rotation: as the journal has it.
        fleet: what is known of head and nodes. What is not known never counts as done.
        now: the time of day.
        timings: deadlines.
    """
    match rotation.stage:
        case MungeStage.GENERATE:
            if rotation.new and {rotation.old, rotation.new} <= fleet.keys:
                return Decision(rotation.moved(MungeStage.STAGE, now))
            return Decision(rotation, (MakeKeys(),))
        case MungeStage.STAGE:
            return _stage(rotation, fleet, now, timings)
        case MungeStage.SWITCH | MungeStage.RETURN:
            return _switch(rotation, fleet, now, timings)
        case MungeStage.VERIFY | MungeStage.CHECK:
            return _verify(rotation, fleet, now, timings)
    # A node that was away comes back with a key that is no longer in force.
    gone = {rotation.old, rotation.new} - {rotation.target, ""}
    late = (name for name, node in fleet.nodes.items() if node.reachable and node.key in gone)
    return Decision(rotation, tuple(PutNode(name, rotation.target) for name in late))


def abort(rotation: MungeRotation, now: datetime, timings: SwitchTimings, by: str) -> MungeRotation:
    """Take a rotation back, because a person asked for it.

    Raises:
        IllegalMove: the rotation has ended.
    """
    if rotation.ended:
        raise IllegalMove(f"the rotation of the munge key is {rotation.stage} already")
    return _back(rotation, now, timings, f"aborted by {by}")


# -- inside -------------------------------------------------------------------------------------------------------


def _stage(rotation: MungeRotation, fleet: MungeFleet, now: datetime, timings: SwitchTimings) -> Decision:
    head = fleet.head
    if rotation.new not in fleet.keys:
        return Decision(rotation.moved(MungeStage.ABORTED, now, taken_back="the new key's file is gone"))
    if head.failure and head.moment is None and not head.busy:
        return Decision(
            rotation.moved(MungeStage.ABORTED, now, taken_back=f"the head cannot take the key: {head.failure}")
        )
    if head.key not in {"", rotation.old}:
        text = "the head has another munge key than meshd was started with: systemctl restart munge meshd"
        return Decision(rotation.moved(MungeStage.ABORTED, now, taken_back=text))
    steps: list[MungeStep] = []
    if head.staged != rotation.new and not head.busy:
        steps.append(StageHead(rotation.new))
    steps += [
        StageNode(node.machine, rotation.new)
        for node in fleet.nodes.values()
        if node.reachable and node.staged != rotation.new
    ]
    waiting = waits_for(rotation, fleet)
    if waiting or head.staged != rotation.new:
        return Decision(replace(rotation, failure=_waiting_text(waiting)), tuple(steps))
    return Decision(_set_moment(rotation.moved(MungeStage.SWITCH, now), fleet, now, timings))


def _switch(rotation: MungeRotation, fleet: MungeFleet, now: datetime, timings: SwitchTimings) -> Decision:
    head, target, at = fleet.head, rotation.target, rotation.switch_at
    if at is None:
        return Decision(_set_moment(rotation, fleet, now, timings))
    if head.busy and head.moment != at:
        # The unit is busy with an earlier request. No node gets this moment before the head can.
        return Decision(rotation if now < at else _set_moment(rotation, fleet, now, timings))
    if head.busy and now < at + timedelta(seconds=timings.head_timeout_s):
        return Decision(rotation, _switch_nodes(rotation, fleet, at))
    if now >= at and head.key == target and not head.busy:
        return Decision(
            rotation.moved(MungeStage.VERIFY if rotation.stage is MungeStage.SWITCH else MungeStage.CHECK, now)
        )
    if head.busy:
        return _try_again(rotation, fleet, now, timings, "the unit that changes the head's key has not answered")
    if head.failure and head.moment == at:
        return _try_again(rotation, fleet, now, timings, head.failure)
    if now < at:
        return Decision(rotation, (SwitchHead(target, at), *_switch_nodes(rotation, fleet, at)))
    if not head.key:
        # The moment was set before meshd restarted. Its outcome is not known, so ask the unit.
        return Decision(rotation, (StageHead(target),))
    return _try_again(rotation, fleet, now, timings, "the moment passed before the head was told")


def _try_again(rotation: MungeRotation, fleet: MungeFleet, now: datetime, timings: SwitchTimings, why: str) -> Decision:
    """The head has not switched: set another moment, or go back."""
    refused = bool(fleet.head.failure) and fleet.head.moment == rotation.switch_at
    if rotation.stage is MungeStage.SWITCH and (refused or rotation.tries >= TRIES_MAX):
        return Decision(_back(rotation, now, timings, f"the head could not change: {why}", fleet))
    again = replace(rotation, failure=why)
    wait_s = timings.again_s if rotation.stage is MungeStage.RETURN else 0.0
    if rotation.switch_at is not None and now < rotation.switch_at + timedelta(seconds=wait_s):
        return Decision(again)
    return Decision(_set_moment(again, fleet, now, timings))


def _switch_nodes(rotation: MungeRotation, fleet: MungeFleet, at: datetime) -> tuple[MungeStep, ...]:
    return tuple(
        SwitchNode(node.machine, rotation.target, at)
        for node in fleet.nodes.values()
        if node.reachable and node.key not in {"", rotation.target}
    )


def _verify(rotation: MungeRotation, fleet: MungeFleet, now: datetime, timings: SwitchTimings) -> Decision:
    target = rotation.target
    proved = [
        name
        for name, node in fleet.nodes.items()
        if name not in rotation.confirmed and node.reachable and not not_confirmed(node, target)
    ]
    rotation = replace(rotation, confirmed=tuple(sorted({*rotation.confirmed, *proved})))
    waiting = waits_for(rotation, fleet)
    if not waiting and fleet.head.works:
        return Decision(
            rotation.moved(MungeStage.DONE if rotation.stage is MungeStage.VERIFY else MungeStage.ABORTED, now)
        )
    problem = _waiting_text(waiting) if fleet.head.works else "munge or slurmctld on the head does not answer"
    overdue = now >= rotation.stage_since + timedelta(seconds=timings.verify_s)
    if rotation.stage is MungeStage.VERIFY and overdue:
        still_there = [name for name in rotation.taking_part if name in fleet.nodes and name not in rotation.waived]
        followed = sum(name in rotation.confirmed for name in still_there)
        if not fleet.head.works or 2 * followed < len(still_there):
            text = f"after {timings.verify_s:g} s {followed} of {len(still_there)} nodes have proved it; {problem}"
            return Decision(_back(rotation, now, timings, text, fleet))
    steps: list[MungeStep] = []
    for name, node in fleet.nodes.items():
        if node.reachable and node.key not in {"", target} and not node.busy:
            steps.append(PutNode(name, target))
        elif node.reachable and node.key == target and node.proved and not node.slurmd and name in waiting:
            steps.append(RestartSlurmd(name))
    return Decision(replace(rotation, failure=problem), tuple(steps))


def _set_moment(rotation: MungeRotation, fleet: MungeFleet, now: datetime, timings: SwitchTimings) -> MungeRotation:
    """Set a moment for all machines that can be reached."""
    part = {name for name, node in fleet.nodes.items() if node.reachable} | set(rotation.taking_part)
    lead_s = min(timings.lead_s + timings.lead_per_node_s * len(part), timings.lead_max_s)
    return replace(
        rotation, switch_at=now + timedelta(seconds=lead_s), tries=rotation.tries + 1, confirmed=(),
        taking_part=tuple(sorted(part)),
    )  # fmt: skip


def _back(
    rotation: MungeRotation, now: datetime, timings: SwitchTimings, why: str, fleet: MungeFleet | None = None
) -> MungeRotation:
    if rotation.stage in {MungeStage.GENERATE, MungeStage.STAGE}:
        return rotation.moved(MungeStage.ABORTED, now, taken_back=why)
    if rotation.stage in {MungeStage.RETURN, MungeStage.CHECK}:
        return rotation
    return _set_moment(
        rotation.moved(MungeStage.RETURN, now, taken_back=why), fleet or MungeFleet(HeadView()), now, timings
    )


def _waiting_text(waiting: Mapping[str, str]) -> str:
    if not waiting:
        return ""
    name, reason = next(iter(waiting.items()))
    more = f", and {len(waiting) - 1} more" if len(waiting) > 1 else ""
    return f"waits for {name} ({reason}){more}"
