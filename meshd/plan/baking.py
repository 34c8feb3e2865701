"""The next step of a machine from which an image is made. It never joins, and never enters Slurm. PURE.

It is rented and ended by the same rules as any other machine. Between, it installs, and powers itself off: who makes
the image gives it back then.
"""

from __future__ import annotations

from collections.abc import Callable

from meshd.model.machine import FailureCause, Machine, Phase
from meshd.model.plan import AskCloud, Move, Step
from meshd.plan import arriving, leaving, unclear_launch
from meshd.plan.plan_input import PlanInput
from meshd.provider_api import InstanceState

_OFF_OR_SOON = frozenset({InstanceState.STOPPED, InstanceState.STOPPING, InstanceState.TERMINATING})
"""Some clouds use one word for a machine that powers itself off and for one that is ended."""


def next_step(machine: Machine, given: PlanInput) -> Step | None:
    """The step that it needs now."""
    return _BY_PHASE[machine.phase](machine, given)


def _there(machine: Machine, given: PlanInput) -> Step | None:
    if machine.removal:
        return Move(machine.name, machine.reason or "no longer needed", Phase.TERMINATING)
    instance = given.instance(machine)
    if instance is not None and instance.state in _OFF_OR_SOON:
        return None  # it is complete, or gave up, or a later listing says that it is gone
    step = leaving.ended_step(machine, given, "while its image was made")
    if isinstance(step, Move):
        return Move(machine.name, step.reason, Phase.TERMINATING, step.reason, FailureCause.ENDED)
    return step if isinstance(step, AskCloud) else None


_BY_PHASE: dict[Phase, Callable[[Machine, PlanInput], Step | None]] = {
    **dict.fromkeys(Phase, _there),
    Phase.REQUESTED: arriving.requested,
    Phase.LAUNCHING: unclear_launch.launching,
    Phase.TERMINATING: leaving.terminating,
    Phase.LOST: leaving.terminating,
    Phase.GONE: leaving.gone,
}
