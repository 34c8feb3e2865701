"""What each kind of step does to machines."""

from __future__ import annotations

from meshd.model import plan as p
from meshd.plan.step_effects import EFFECTS, Effect, effect_of


def test_each_step_is_in_the_table() -> None:
    kinds = {kind for kind in vars(p).values() if isinstance(kind, type) and issubclass(kind, p.Step)}
    assert EFFECTS.keys() == kinds - {p.Step}
    assert {kind.__name__ for kind in p.Step.__subclasses__()} == {kind.__name__ for kind in EFFECTS}, "none elsewhere"


def test_what_rents_and_what_ends() -> None:
    kinds = {effect: {kind for kind, one in EFFECTS.items() if one is effect} for effect in Effect}
    assert kinds[Effect.RENTS] == {p.RequestMachine, p.Launch}
    assert kinds[Effect.ENDS] == {p.Remove, p.Replace, p.Leave, p.Terminate, p.TerminateOrphan, p.RemoveDevice}


def test_a_machine_that_is_dead_is_not_ended_by_leaving() -> None:
    assert effect_of(p.Leave("m", "why", "h100-1")) is Effect.ENDS
    assert effect_of(p.Leave("m", "why", "h100-1", dead=True)) is Effect.NONE
