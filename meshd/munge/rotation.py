"""PURE: the rotation of the munge key: its record, its legal moves, and the nodes that it waits for.

munged cannot hold two keys. So every machine stores the new key beside the present one, and then all machines switch at
one moment. Slurm waits 2 s for a munged that is away, but does not try again after a credential was refused. So no two
machines may work with different keys for longer than that moment. The old key is kept until every node has proved the
new one. When the head or most nodes cannot follow, all machines go back to the old key, again at one moment.

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
    """The stages of a rotation."""

    GENERATE = "generate"
    STAGE = "stage"
    """The head and every node store the new key beside the present one."""
    SWITCH = "switch"
    """Head and nodes switch to the new key at `switch_at`."""
    VERIFY = "verify"
    """The head has the new key. Each node proves that it has it too."""
    RETURN = "return"
    """Head and nodes switch back to the old key at `switch_at`."""
    CHECK = "check"
    """The head has the old key again. Each node proves that it has it too."""
    DONE = "done"
    ABORTED = "aborted"


ENDED = frozenset({MungeStage.DONE, MungeStage.ABORTED})
AT_ONE_MOMENT = frozenset({MungeStage.SWITCH, MungeStage.RETURN})
"""In these stages head and nodes may have different keys. In all others that is a fault."""

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
"""A switch takes 3 to 5 s. One that takes longer than this is stuck."""


@dataclass(frozen=True, slots=True)
class MungeRotation:
    """One rotation, as the journal keeps it. Keys are named by their fingerprints; times are UTC.

    Attributes:
        old: the key in force when the rotation began.
        new: the key that replaces it; "" until it is made.
        switch_at: the moment of SWITCH or RETURN.
        tries: how many moments were set in this stage.
        taking_part: the machines that could be reached when the moment was set.
        confirmed: those of them that have proved the key of this stage.
        waived: machines that the rotation does not wait for, because a person said so.
        failure: what keeps the rotation from going on now; "" when nothing does.
        taken_back: why all machines keep, or get back, the old key; "" while they are to have the new one.
        longest_away_ms: the longest time that munged was away on a machine, of those that reported it.
        spread_ms: from the first munged that stopped to the last that started, by the head's clock.
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
        """Nothing is left to do."""
        return self.stage in ENDED

    @property
    def target(self) -> str:
        """The key that all machines have when this stage ends."""
        return self.new if self.stage in {MungeStage.SWITCH, MungeStage.VERIFY, MungeStage.DONE} else self.old

    def moved(self, to: MungeStage, now: datetime, **changes: object) -> MungeRotation:
        """The rotation in another stage.

        Raises:
            IllegalMove: that stage does not follow the present one.
        """
        if to not in MOVES[self.stage]:
            raise IllegalMove(f"the rotation of the munge key: {self.stage} cannot become {to}")
        fresh: dict[str, object] = {"tries": 0, "failure": "", "switch_at": None}
        if to in ENDED:
            fresh["ended_at"] = now
        return replace(self, stage=to, stage_since=now, **{**fresh, **changes})  # type: ignore[arg-type]


def begin(rotation_id: str, old: str, now: datetime, by: str, waived: tuple[str, ...] = ()) -> MungeRotation:
    """A new rotation, before its first step."""
    return MungeRotation(
        id=rotation_id, stage=MungeStage.GENERATE, stage_since=now, started_at=now, by=by, old=old, waived=waived
    )


def key_in_force(rotation: MungeRotation, head_key: str, now: datetime) -> str:
    """The key for a machine that joins now.

    Args:
        rotation: the newest one.
        head_key: the head's key by its unit's last answer; "" when not known.
        now: the time of day.
    """
    if rotation.stage in AT_ONE_MOMENT:
        was = rotation.old if rotation.stage is MungeStage.SWITCH else rotation.new
        return head_key or (was if rotation.switch_at is None or now < rotation.switch_at else rotation.target)
    return rotation.target


def unsettles_slurm(rotation: MungeRotation, now: datetime) -> bool:
    """Whether Slurm's daemons may refuse each other now, so that work that can wait should wait.

    True from the setting of a moment until all nodes have proved the key, and in no stage for longer than
    UNSETTLED_MAX_S. So a rotation that waits for one node, or is stuck, stops nothing else.
    """
    unsettled = rotation.stage in AT_ONE_MOMENT or rotation.stage in {MungeStage.VERIFY, MungeStage.CHECK}
    return unsettled and now < rotation.stage_since + timedelta(seconds=UNSETTLED_MAX_S)


# -- what is known of head and nodes ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as the head knows it now.

    Attributes:
        reachable: its agent is not late with its poll.
        offline: it cannot be reached, Slurm holds it down, and it has no job: nothing is lost while it is away.
        key: the munge key in use there; "" when not known.
        staged: the key stored beside it; "" for none.
        proved: node and head have decoded each other's credentials, with the key in use.
        slurmd: its slurmd answers, or is not meant to run.
        busy: it has an order to switch and has not answered: its key is about to change.
        problem: why it cannot go on, in its agent's words.
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
    """The head's munge, by the last answer of the root unit, which alone may read the key.

    Attributes:
        key: the key in use; "" before the first answer.
        staged: the key stored beside it.
        busy: the unit has a request and has not answered.
        failure: why the unit could not carry out its last request; "" when it could.
        moment: the moment of the present or last request to switch; None: it was a request to stage.
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
    """All that a decision looks at. `keys` are those that meshd keeps as files."""

    head: HeadView
    nodes: Mapping[str, NodeView] = field(default_factory=dict)
    keys: frozenset[str] = frozenset()


def waits_for(rotation: MungeRotation, fleet: MungeFleet) -> dict[str, str]:
    """The machines that the present stage waits for, each with the reason."""
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


def node_state(rotation: MungeRotation, node: NodeView) -> str:
    """The state of a node in one word, for `meshctl rotate-key --status`."""
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
    """Why a node has not proved this key yet; "" when it has."""
    if not node.reachable:
        return SILENT
    if node.key != key:
        return "it has another key than the head"
    if not node.proved:
        return "munge is not proved with the head"
    return "" if node.slurmd else "its slurmd does not answer Slurm"
