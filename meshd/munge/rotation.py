"""PURE: the rotation of the munge key: its record, its legal moves, and the nodes that it waits for.

munged cannot hold two keys, so a new key is laid beside the present one on every machine, and then all change at one
moment. Slurm waits 2 s for a munged that is away, but it does not try again when a credential is refused: what counts
is that no two machines work with different keys for longer than that moment. The old key is kept until all is proved,
and everybody goes back to it, again at one moment, when the head or most nodes cannot follow.

The second half has what is known of head and nodes, and which of them the present stage waits for. What is done next is
decided in `rotation_steps`. Neither module has effects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from meshd.errors import IllegalMove


class MungeStage(StrEnum):
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


ENDED = frozenset({MungeStage.DONE, MungeStage.ABORTED})
AT_ONE_MOMENT = frozenset({MungeStage.SWITCH, MungeStage.RETURN})
"""Only in these stages may head and nodes have different keys without that being a fault."""

MOVES: dict[MungeStage, frozenset[MungeStage]] = {
    MungeStage.GENERATE: frozenset({MungeStage.STAGE, MungeStage.ABORTED}),
    MungeStage.STAGE: frozenset({MungeStage.SWITCH, MungeStage.ABORTED}),
    MungeStage.SWITCH: frozenset({MungeStage.VERIFY, MungeStage.RETURN}),
    MungeStage.VERIFY: frozenset({MungeStage.DONE, MungeStage.RETURN}),
    MungeStage.RETURN: frozenset({MungeStage.CHECK}),
    MungeStage.CHECK: frozenset({MungeStage.ABORTED}),
    MungeStage.DONE: frozenset(),
    MungeStage.ABORTED: frozenset(),
}

SILENT = "it is silent, but Slurm does not hold it down, or jobs are on it"
UNSETTLED_MAX_S = 20.0
"""A change of the key takes 3 to 5 s; after this it is stuck."""


@dataclass(frozen=True, slots=True)
class MungeRotation:
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
    stage: MungeStage
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
        return self.new if self.stage in {MungeStage.SWITCH, MungeStage.VERIFY, MungeStage.DONE} else self.old

    def moved(self, to: MungeStage, now: datetime, **changes: object) -> MungeRotation:
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


def begin(rotation_id: str, old: str, now: datetime, by: str, waived: tuple[str, ...] = ()) -> MungeRotation:
    """A rotation before its first step."""
    return MungeRotation(
        id=rotation_id, stage=MungeStage.GENERATE, stage_since=now, started_at=now, by=by, old=old, waived=waived
    )


def key_in_force(rotation: MungeRotation, head_key: str, now: datetime) -> str:
    """The key that a machine which joins now must get.

    Args:
        rotation: the newest one.
        head_key: the head's, as its unit told last; "" when not known.
        now: the time of day.
    """
    if rotation.stage in AT_ONE_MOMENT:
        was = rotation.old if rotation.stage is MungeStage.SWITCH else rotation.new
        return head_key or (was if rotation.switch_at is None or now < rotation.switch_at else rotation.target)
    return rotation.target


def unsettles_slurm(rotation: MungeRotation, now: datetime) -> bool:
    """Slurm's daemons may refuse each other just now, so that what need not happen now had better wait.

    True from the agreement on a moment until all have proved the key, and in no stage for longer than UNSETTLED_MAX_S:
    a rotation that waits for one node, or cannot go on, stops nothing else.
    """
    unsettled = rotation.stage in AT_ONE_MOMENT or rotation.stage in {MungeStage.VERIFY, MungeStage.CHECK}
    return unsettled and now < rotation.stage_since + timedelta(seconds=UNSETTLED_MAX_S)


# -- what is known of head and nodes ------------------------------------------------------------------------------


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
class MungeFleet:
    """All that is looked at. `keys` are those whose files lie in meshd's state directory."""

    head: HeadView
    nodes: Mapping[str, NodeView] = field(default_factory=dict)
    keys: frozenset[str] = frozenset()


def waits_for(rotation: MungeRotation, fleet: MungeFleet) -> dict[str, str]:
    """The machines that the present stage waits for, with the reason of each."""
    found = {}
    for name, node in sorted(fleet.nodes.items()):
        if name in rotation.waived or (not node.reachable and node.offline):
            continue
        if rotation.stage is MungeStage.STAGE:
            reason = _not_staged(node, rotation.new)
        elif rotation.stage in {MungeStage.VERIFY, MungeStage.CHECK}:
            concerned = name in rotation.taking_part or node.key not in {"", rotation.target}
            reason = not_confirmed(node, rotation.target) if concerned and name not in rotation.confirmed else ""
        else:
            reason = ""
        if reason:
            found[name] = f"{reason}: {node.problem}" if node.problem else reason
    return found


def standing(rotation: MungeRotation, node: NodeView) -> str:
    """One word for `meshctl rotate-key --status`."""
    if node.machine in rotation.confirmed:
        return "confirmed"
    if node.machine in rotation.waived:
        return "waived"
    if not node.reachable:
        return "offline" if node.offline else "silent"
    if rotation.stage not in {MungeStage.GENERATE, MungeStage.STAGE} and node.key == rotation.target:
        return "switched"
    return "staged" if rotation.new and node.staged == rotation.new else "waiting"


def _not_staged(node: NodeView, key: str) -> str:
    if not node.reachable:
        return SILENT
    if not node.key:
        return "its agent does not tell its key: it is of an older meshd"
    return "" if node.staged == key else "it has not stored the new key yet"


def not_confirmed(node: NodeView, key: str) -> str:
    """Why a node does not count as proved with this key; "" when it does."""
    if not node.reachable:
        return SILENT
    if node.key != key:
        return "it has another key than the head"
    if not node.proved:
        return "munge is not proved with the head"
    return "" if node.slurmd else "its slurmd does not answer Slurm"
