"""PURE: the rotation of the munge key: its record and its legal moves.

munged cannot hold two keys, so a new key is laid beside the present one on every machine, and then all change at one
moment. Slurm waits 2 s for a munged that is away, but it does not try again when a credential is refused: what counts
is that no two machines work with different keys for longer than that moment. The old key is kept until all is proved,
and everybody goes back to it, again at one moment, when the head or most nodes cannot follow.

What is seen of head and nodes is in `rotation_world`, what is to be done next is decided in `rotation_steps`; none of
them does anything.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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

UNSETTLED_MAX_S = 20.0
"""A change of the key takes 3 to 5 s; after this it is stuck."""


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


def begin(rotation_id: str, old: str, now: datetime, by: str, waived: tuple[str, ...] = ()) -> Rotation:
    """A rotation before its first step."""
    return Rotation(
        id=rotation_id, stage=Stage.GENERATE, stage_since=now, started_at=now, by=by, old=old, waived=waived
    )


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
