"""PURE: the rotation of the munge key: its record, its legal moves, and what is to be done next.

munged cannot hold two keys, so a new key is laid beside the present one on every machine, and then all change at one
moment. Slurm waits 2 s for a munged that is away, but it does not try again when a credential is refused: what counts
is that no two machines work with different keys for longer than that moment. The old key is kept until all is proved,
and everybody goes back to it, again at one moment, when the head or most nodes cannot follow.

Nothing here does anything: `decide` says what to do, and the daemon writes the record down before it does it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from meshd.errors import IllegalMove


class Stage(StrEnum):
    """Where a rotation stands."""

    GENERATE = "generate"
    STAGE = "stage"
    """The new key is laid beside the present one, on the head and on every node."""
    SWITCH = "switch"
    """Head and nodes change to the new key at `switch_at`."""
    VERIFY = "verify"
    """The head has the new key; each node proves that it has it too."""
    RETURN = "return"
    """Head and nodes change back to the old key at `switch_at`."""
    CHECK = "check"
    """The head has the old key again; each node proves it."""
    DONE = "done"
    ABORTED = "aborted"


ENDED = frozenset({Stage.DONE, Stage.ABORTED})
AT_ONE_MOMENT = frozenset({Stage.SWITCH, Stage.RETURN})
"""Only in these stages may head and nodes have different keys without that being a fault."""

MOVES: dict[Stage, frozenset[Stage]] = {
    Stage.GENERATE: frozenset({Stage.STAGE, Stage.ABORTED}),
    Stage.STAGE: frozenset({Stage.SWITCH, Stage.ABORTED}),
    Stage.SWITCH: frozenset({Stage.VERIFY, Stage.RETURN}),
    Stage.VERIFY: frozenset({Stage.DONE, Stage.RETURN}),
    Stage.RETURN: frozenset({Stage.CHECK}),
    Stage.CHECK: frozenset({Stage.ABORTED}),
    Stage.DONE: frozenset(),
    Stage.ABORTED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Rotation:
    """One rotation, as the journal keeps it. Keys are told by their fingerprints; times are UTC.

    Attributes:
        old: the key that was in force when it began.
        new: the key that shall be; "" until it is made.
        switch_at: the agreed moment of SWITCH or RETURN.
        tries: how often a moment was agreed on in this stage.
        taking_part: the machines that could be reached when the moment was agreed on.
        confirmed: of these, the machines that have proved the key of this stage.
        waived: machines that somebody said are not waited for.
        failure: what keeps it from going on just now; "" while all is well.
        taken_back: why everybody keeps, or gets back, the old key; "" while they shall have the new one.
        longest_away_ms: how long munged was away on the machine where it took longest, as far as told.
        spread_ms: from the first munged that stopped to the last that came back, by the head's clock.
    """

    id: str
    stage: Stage
    stage_since: datetime
    started_at: datetime
    by: str
    old: str
    new: str = ""
    switch_at: datetime | None = None
    tries: int = 0
    taking_part: tuple[str, ...] = ()
    confirmed: tuple[str, ...] = ()
    waived: tuple[str, ...] = ()
    failure: str = ""
    taken_back: str = ""
    longest_away_ms: float = 0.0
    spread_ms: float = 0.0
    ended_at: datetime | None = None

    @property
    def ended(self) -> bool:
        """Nothing is left to be done."""
        return self.stage in ENDED

    @property
    def target(self) -> str:
        """The key that all shall have when this stage has ended."""
        return self.new if self.stage in {Stage.SWITCH, Stage.VERIFY, Stage.DONE} else self.old

    def moved(self, to: Stage, now: datetime, **changes: object) -> Rotation:
        """In another stage.

        Raises:
            IllegalMove: it does not follow the present one.
        """
        if to not in MOVES[self.stage]:
            raise IllegalMove(f"the rotation of the munge key: {self.stage} cannot become {to}")
        fresh: dict[str, object] = {"tries": 0, "failure": "", "switch_at": None}
        if to in ENDED:
            fresh["ended_at"] = now
        return replace(self, stage=to, stage_since=now, **{**fresh, **changes})  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as the head knows it just now.

    Attributes:
        reachable: its agent has spoken since it was due to.
        offline: it cannot be reached, Slurm holds it down, and no job is on it: nothing is lost while it is away.
        key: the munge key in place there; "" when not known.
        staged: the key laid beside it; "" for none.
        proved: munge was proved both ways with the head, by the key in place.
        slurmd: its slurmd answers, or shall not run.
        busy: it was told to switch and has not answered: its key is about to be another one.
        problem: why not, in its agent's words.
    """

    machine: str
    slot: str
    reachable: bool
    offline: bool = False
    key: str = ""
    staged: str = ""
    proved: bool = False
    slurmd: bool = True
    busy: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True)
class HeadView:
    """The head's munge.

    Attributes:
        key: the key in place, as the unit that may see it told last; "" when it was not asked yet.
        staged: the key laid beside it.
        busy: the unit was asked for something and has not answered.
        failure: why its last answer was no.
        moment: for which moment it is, or was last, asked to change; None: it was asked to stage.
        works: munge encodes and decodes there, and slurmctld answers.
    """

    key: str = ""
    staged: str = ""
    busy: bool = False
    failure: str = ""
    moment: datetime | None = None
    works: bool = False


@dataclass(frozen=True, slots=True)
class World:
    """All that is looked at. `keys` are those whose files lie in meshd's state directory."""

    head: HeadView
    nodes: Mapping[str, NodeView] = field(default_factory=dict)
    keys: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Pace:
    """How long what may take.

    Attributes:
        lead_s: from the agreement on a moment to that moment: every agent must have heard of it.
        lead_per_node_s: so much more for each node: on two busy cores 1,000 of them have heard after 2.8 s.
        lead_max_s: but never more than this.
        head_timeout_s: the head has changed by so long after the moment, or it has failed.
        verify_s: by then most nodes have proved the new key, or all go back.
        again_s: between two tries of the way back.
        away_s: so long munged stays away everywhere: longer than the machines are apart, far shorter than Slurm waits
            for it (2 s).
    """

    lead_s: float = 2.0
    lead_per_node_s: float = 0.003
    lead_max_s: float = 15.0
    head_timeout_s: float = 20.0
    verify_s: float = 90.0
    again_s: float = 5.0
    away_s: float = 0.2


UNSETTLED_MAX_S = 20.0
"""A change of the key takes 3 to 5 s; after this it is stuck."""

TRIES_MAX = 3
"""So many moments are agreed on before a head that does not change is given up. Only the way back is tried for ever."""


@dataclass(frozen=True, slots=True)
class MakeKeys:
    """Make the new key, and keep it and the old one as files."""


@dataclass(frozen=True, slots=True)
class StageHead:
    """Have the head's unit lay a key beside the present one; it tells both."""

    key: str


@dataclass(frozen=True, slots=True)
class StageNode:
    """Have a node do the same."""

    machine: str
    key: str


@dataclass(frozen=True, slots=True)
class SwitchHead:
    """Have the head change to a staged or previous key at a moment."""

    key: str
    at: datetime


@dataclass(frozen=True, slots=True)
class SwitchNode:
    """Have a node do the same."""

    machine: str
    key: str
    at: datetime


@dataclass(frozen=True, slots=True)
class PutNode:
    """Send a node the key and have it used at once: it did not change at the moment."""

    machine: str
    key: str


@dataclass(frozen=True, slots=True)
class RestartSlurmd:
    """Have slurmd register anew: Slurm takes a node for dead that it met with the wrong key."""

    machine: str


Step = MakeKeys | StageHead | StageNode | SwitchHead | SwitchNode | PutNode | RestartSlurmd


@dataclass(frozen=True, slots=True)
class Decision:
    """The record as it shall be written down, and what to do after that. A step may come again while it is at work."""

    rotation: Rotation
    steps: tuple[Step, ...] = ()


def begin(rotation_id: str, old: str, now: datetime, by: str, waived: tuple[str, ...] = ()) -> Rotation:
    """A rotation before its first step."""
    return Rotation(
        id=rotation_id, stage=Stage.GENERATE, stage_since=now, started_at=now, by=by, old=old, waived=waived
    )


def decide(rotation: Rotation, world: World, now: datetime, pace: Pace) -> Decision:
    """What the record becomes now, and what is to be done.

    Args:
        rotation: as the journal has it.
        world: as it was seen last. What is not known in it never counts as done.
        now: the time of day.
        pace: deadlines.
    """
    match rotation.stage:
        case Stage.GENERATE:
            if rotation.new and {rotation.old, rotation.new} <= world.keys:
                return Decision(rotation.moved(Stage.STAGE, now))
            return Decision(rotation, (MakeKeys(),))
        case Stage.STAGE:
            return _stage(rotation, world, now, pace)
        case Stage.SWITCH | Stage.RETURN:
            return _switch(rotation, world, now, pace)
        case Stage.VERIFY | Stage.CHECK:
            return _verify(rotation, world, now, pace)
    # Who was away comes back with the key that is no longer in force.
    gone = {rotation.old, rotation.new} - {rotation.target, ""}
    late = (name for name, node in world.nodes.items() if node.reachable and node.key in gone)
    return Decision(rotation, tuple(PutNode(name, rotation.target) for name in late))


def abort(rotation: Rotation, now: datetime, pace: Pace, by: str) -> Rotation:
    """The record after somebody asked for the way back.

    Raises:
        IllegalMove: it has ended.
    """
    if rotation.ended:
        raise IllegalMove(f"the rotation of the munge key is {rotation.stage} already")
    return _back(rotation, now, pace, f"aborted by {by}")


def key_in_force(rotation: Rotation, head_key: str, now: datetime) -> str:
    """The key that a machine which joins now must get.

    Args:
        rotation: the newest one.
        head_key: the head's, as its unit told last; "" when not known.
        now: the time of day.
    """
    if rotation.stage in AT_ONE_MOMENT:
        was = rotation.old if rotation.stage is Stage.SWITCH else rotation.new
        return head_key or (was if rotation.switch_at is None or now < rotation.switch_at else rotation.target)
    return rotation.target


def unsettles_slurm(rotation: Rotation, now: datetime) -> bool:
    """Slurm's daemons may refuse each other just now, so that what need not happen now had better wait.

    True from the agreement on a moment until all have proved the key, and in no stage for longer than UNSETTLED_MAX_S:
    a rotation that waits for one node, or cannot go on, stops nothing else.
    """
    unsettled = rotation.stage in AT_ONE_MOMENT or rotation.stage in {Stage.VERIFY, Stage.CHECK}
    return unsettled and now < rotation.stage_since + timedelta(seconds=UNSETTLED_MAX_S)


def waits_for(rotation: Rotation, world: World) -> dict[str, str]:
    """The machines that the present stage waits for, with the reason of each."""
    found = {}
    for name, node in sorted(world.nodes.items()):
        if name in rotation.waived or (not node.reachable and node.offline):
            continue
        if rotation.stage is Stage.STAGE:
            reason = _not_staged(node, rotation.new)
        elif rotation.stage in {Stage.VERIFY, Stage.CHECK}:
            concerned = name in rotation.taking_part or node.key not in {"", rotation.target}
            reason = _not_confirmed(node, rotation.target) if concerned and name not in rotation.confirmed else ""
        else:
            reason = ""
        if reason:
            found[name] = f"{reason}: {node.problem}" if node.problem else reason
    return found


def standing(rotation: Rotation, node: NodeView) -> str:
    """One word for `meshctl rotate-key --status`."""
    if node.machine in rotation.confirmed:
        return "confirmed"
    if node.machine in rotation.waived:
        return "waived"
    if not node.reachable:
        return "offline" if node.offline else "silent"
    if rotation.stage not in {Stage.GENERATE, Stage.STAGE} and node.key == rotation.target:
        return "switched"
    return "staged" if rotation.new and node.staged == rotation.new else "waiting"


# -- inside ---------------------------------------------------------------------------------------------------------


def _stage(rotation: Rotation, world: World, now: datetime, pace: Pace) -> Decision:
    head = world.head
    if rotation.new not in world.keys:
        return Decision(rotation.moved(Stage.ABORTED, now, taken_back="the new key's file is gone"))
    if head.failure and head.moment is None and not head.busy:
        return Decision(rotation.moved(Stage.ABORTED, now, taken_back=f"the head cannot take the key: {head.failure}"))
    if head.key not in {"", rotation.old}:
        text = "the head has another munge key than meshd was started with: systemctl restart munge meshd"
        return Decision(rotation.moved(Stage.ABORTED, now, taken_back=text))
    steps: list[Step] = []
    if head.staged != rotation.new and not head.busy:
        steps.append(StageHead(rotation.new))
    steps += [
        StageNode(node.machine, rotation.new)
        for node in world.nodes.values()
        if node.reachable and node.staged != rotation.new
    ]
    waiting = waits_for(rotation, world)
    if waiting or head.staged != rotation.new:
        return Decision(replace(rotation, failure=_told(waiting)), tuple(steps))
    return Decision(_agree(rotation.moved(Stage.SWITCH, now), world, now, pace))


def _switch(rotation: Rotation, world: World, now: datetime, pace: Pace) -> Decision:
    head, target, at = world.head, rotation.target, rotation.switch_at
    if at is None:
        return Decision(_agree(rotation, world, now, pace))
    if head.busy and head.moment != at:
        # An earlier order is still under way. Nobody is told of this moment before the head can be.
        return Decision(rotation if now < at else _agree(rotation, world, now, pace))
    if head.busy and now < at + timedelta(seconds=pace.head_timeout_s):
        return Decision(rotation, _switch_nodes(rotation, world, at))
    if now >= at and head.key == target and not head.busy:
        return Decision(rotation.moved(Stage.VERIFY if rotation.stage is Stage.SWITCH else Stage.CHECK, now))
    if head.busy:
        return _once_more(rotation, world, now, pace, "the unit that changes the head's key has not answered")
    if head.failure and head.moment == at:
        return _once_more(rotation, world, now, pace, head.failure)
    if now < at:
        return Decision(rotation, (SwitchHead(target, at), *_switch_nodes(rotation, world, at)))
    if not head.key:
        # Agreed on before meshd was started anew: what came of it is not known, so the unit is asked.
        return Decision(rotation, (StageHead(target),))
    return _once_more(rotation, world, now, pace, "the moment passed before the head was told")


def _once_more(rotation: Rotation, world: World, now: datetime, pace: Pace, why: str) -> Decision:
    """The head has not changed: agree on another moment, or give up."""
    refused = bool(world.head.failure) and world.head.moment == rotation.switch_at
    if rotation.stage is Stage.SWITCH and (refused or rotation.tries >= TRIES_MAX):
        return Decision(_back(rotation, now, pace, f"the head could not change: {why}", world))
    again = replace(rotation, failure=why)
    wait_s = pace.again_s if rotation.stage is Stage.RETURN else 0.0
    if rotation.switch_at is not None and now < rotation.switch_at + timedelta(seconds=wait_s):
        return Decision(again)
    return Decision(_agree(again, world, now, pace))


def _switch_nodes(rotation: Rotation, world: World, at: datetime) -> tuple[Step, ...]:
    return tuple(
        SwitchNode(node.machine, rotation.target, at)
        for node in world.nodes.values()
        if node.reachable and node.key not in {"", rotation.target}
    )


def _verify(rotation: Rotation, world: World, now: datetime, pace: Pace) -> Decision:
    target = rotation.target
    proved = [
        name
        for name, node in world.nodes.items()
        if name not in rotation.confirmed and node.reachable and not _not_confirmed(node, target)
    ]
    rotation = replace(rotation, confirmed=tuple(sorted({*rotation.confirmed, *proved})))
    waiting = waits_for(rotation, world)
    if not waiting and world.head.works:
        return Decision(rotation.moved(Stage.DONE if rotation.stage is Stage.VERIFY else Stage.ABORTED, now))
    problem = _told(waiting) if world.head.works else "munge or slurmctld on the head does not answer"
    overdue = now >= rotation.stage_since + timedelta(seconds=pace.verify_s)
    if rotation.stage is Stage.VERIFY and overdue:
        still_there = [name for name in rotation.taking_part if name in world.nodes and name not in rotation.waived]
        followed = sum(name in rotation.confirmed for name in still_there)
        if not world.head.works or 2 * followed < len(still_there):
            text = f"after {pace.verify_s:g} s {followed} of {len(still_there)} nodes have proved it; {problem}"
            return Decision(_back(rotation, now, pace, text, world))
    steps: list[Step] = []
    for name, node in world.nodes.items():
        if node.reachable and node.key not in {"", target} and not node.busy:
            steps.append(PutNode(name, target))
        elif node.reachable and node.key == target and node.proved and not node.slurmd and name in waiting:
            steps.append(RestartSlurmd(name))
    return Decision(replace(rotation, failure=problem), tuple(steps))


def _agree(rotation: Rotation, world: World, now: datetime, pace: Pace) -> Rotation:
    """Agree on a moment with all who can be reached."""
    part = {name for name, node in world.nodes.items() if node.reachable} | set(rotation.taking_part)
    lead_s = min(pace.lead_s + pace.lead_per_node_s * len(part), pace.lead_max_s)
    return replace(
        rotation, switch_at=now + timedelta(seconds=lead_s), tries=rotation.tries + 1, confirmed=(),
        taking_part=tuple(sorted(part)),
    )  # fmt: skip


def _back(rotation: Rotation, now: datetime, pace: Pace, why: str, world: World | None = None) -> Rotation:
    if rotation.stage in {Stage.GENERATE, Stage.STAGE}:
        return rotation.moved(Stage.ABORTED, now, taken_back=why)
    if rotation.stage in {Stage.RETURN, Stage.CHECK}:
        return rotation
    return _agree(rotation.moved(Stage.RETURN, now, taken_back=why), world or World(HeadView()), now, pace)


def _not_staged(node: NodeView, key: str) -> str:
    if not node.reachable:
        return "it is silent, but Slurm does not hold it down, or jobs are on it"
    if not node.key:
        return "its agent does not tell its key: it is of an older meshd"
    return "" if node.staged == key else "it has not stored the new key yet"


def _not_confirmed(node: NodeView, key: str) -> str:
    if not node.reachable:
        return "it is silent, but Slurm does not hold it down, or jobs are on it"
    if node.key != key:
        return "it has another key than the head"
    if not node.proved:
        return "munge is not proved with the head"
    return "" if node.slurmd else "its slurmd does not answer Slurm"


def _told(waiting: Mapping[str, str]) -> str:
    if not waiting:
        return ""
    name, reason = next(iter(waiting.items()))
    more = f", and {len(waiting) - 1} more" if len(waiting) > 1 else ""
    return f"waits for {name} ({reason}){more}"
