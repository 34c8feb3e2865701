"""What each kind of step does to machines: whether it rents one, ends one, or neither. PURE."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from meshd.model import plan as p


class Effect(Enum):
    """What a step does to a machine or to what belongs to it.

    Attributes:
        NONE: it reads, writes down, or changes what can be changed back.
        RENTS: it rents a machine, or leads to that.
        ENDS: it ends or deletes something for good, or leads to that.
    """

    NONE = auto()
    RENTS = auto()
    ENDS = auto()


EFFECTS: Final[Mapping[type[p.Step], Effect]] = {
    p.RequestMachine: Effect.RENTS,
    p.Launch: Effect.RENTS,
    p.Adopt: Effect.NONE,
    p.Move: Effect.NONE,
    p.AskCloud: Effect.NONE,
    p.RecordPeer: Effect.NONE,
    p.RecordDevice: Effect.NONE,
    p.AskAgent: Effect.NONE,
    p.RecordFitness: Effect.NONE,
    p.RestartSlurmd: Effect.NONE,
    p.ReloadSlurmd: Effect.NONE,
    p.Undrain: Effect.NONE,
    p.Replace: Effect.ENDS,
    p.RecordPublished: Effect.NONE,
    p.StartSlurmd: Effect.NONE,
    p.MarkReady: Effect.NONE,
    p.Remove: Effect.ENDS,
    p.CancelRemoval: Effect.NONE,
    p.Drain: Effect.NONE,
    p.SignalJobs: Effect.NONE,
    p.RequeueJobs: Effect.NONE,
    p.RequeueLostJobs: Effect.NONE,
    p.Leave: Effect.ENDS,
    p.Terminate: Effect.ENDS,
    p.AdoptOrphan: Effect.NONE,
    p.TerminateOrphan: Effect.ENDS,
    p.RemoveDevice: Effect.ENDS,
    p.DisableKeyExpiry: Effect.NONE,
    p.Warn: Effect.NONE,
}
"""By class; a test says that each is here. What holds steps back asks `effect_of`."""


def effect_of(step: p.Step) -> Effect:
    """What this step does. A machine that its cloud has ended already is not ended by leaving Slurm."""
    if isinstance(step, p.Leave) and step.dead:
        return Effect.NONE
    return EFFECTS[type(step)]
