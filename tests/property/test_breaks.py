"""Each rule of trust, deliberately broken, is found by the simulation within a few histories.

The only place where meshd's own code is broken on purpose: a rule's function is replaced by one that forgets the rule.
A simulation that finds nothing wrong is worth something only if it finds these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from meshd.daemon.machines.create_calls import CreateCalls
from meshd.daemon.machines.node_steps import NodeSteps
from meshd.errors import MeshdError, SlurmError
from meshd.model.machine import Machine, Phase
from meshd.model.observed import Fresh, SlurmView, Snapshot
from meshd.model.plan import Move, TerminateOrphan
from meshd.plan import budget, lifecycle, orphans, planner, room
from meshd.plan.plan_input import PlanInput
from tests.property.queue_sim import live_with_queue
from tests.property.sim import Setting, live_through

SEEDS_MOST = 20
"""Each break is found within so many histories."""

Break = Callable[[pytest.MonkeyPatch], None]


def create_before_journal(patch: pytest.MonkeyPatch) -> None:
    """The call goes out first, and is written down with its answer: a kill in between forgets it."""
    asked, launched, failed = CreateCalls._asked, CreateCalls.launched, CreateCalls._launch_failed
    later: dict[str, tuple[Any, ...]] = {}

    def send_first(self: CreateCalls, machines: list[Machine], user_data: Any) -> list[Machine]:
        later.update({machine.name: (machine, user_data) for machine in machines})
        return machines

    def write(self: CreateCalls, name: str) -> Machine:
        machine, user_data = later[name]
        return asked(self, [machine], user_data)[0]

    def write_answer(self: CreateCalls, machine: Machine, *answer: Any) -> None:
        launched(self, write(self, machine.name) if machine.name in later else machine, *answer)

    def write_refusal(self: CreateCalls, machines: list[Machine], error: Any) -> None:
        failed(self, [write(self, machine.name) for machine in machines], error)

    patch.setattr(CreateCalls, "_asked", send_first)
    patch.setattr(CreateCalls, "launched", write_answer)
    patch.setattr(CreateCalls, "_launch_failed", write_refusal)


def unknown_taken_for_absent(patch: pytest.MonkeyPatch) -> None:
    """What cannot be read is taken for empty: no machines, no nodes, no jobs. In the plan, and in the last looks."""
    index, looks = PlanInput.of, NodeSteps.__init__
    nothing = SlurmView("24.11.5", {}, ())

    def of(snapshot: Snapshot, policy: Any, now: datetime, cooldowns: Any) -> PlanInput:
        listed = {name: s if isinstance(s, Fresh) else Fresh((), now) for name, s in snapshot.instances.items()}
        slurm = snapshot.slurm if isinstance(snapshot.slurm, Fresh) else Fresh(nothing, now)
        return index(replace(snapshot, instances=listed, slurm=slurm), policy, now, cooldowns)

    class Credulous:
        def __init__(self, slurm: Any) -> None:
            self._slurm = slurm

        def __getattr__(self, name: str) -> Any:
            return getattr(self._slurm, name)

        async def view(self) -> SlurmView:
            try:
                return await self._slurm.view()
            except SlurmError:
                return nothing

    def credulous(self: NodeSteps, store: Any, slurm: Any, *others: Any) -> None:
        looks(self, store, Credulous(slurm), *others)

    patch.setattr(PlanInput, "of", staticmethod(of))
    patch.setattr(NodeSteps, "__init__", credulous)


def terminate_without_drain(patch: pytest.MonkeyPatch) -> None:
    """A machine that is given up ends at once, whatever runs on it."""

    async def ends(_self: NodeSteps, _machine: Machine) -> str:
        return ""

    def draining(machine: Machine, _given: PlanInput) -> Move:
        return Move(machine.name, machine.reason, Phase.TERMINATING)

    patch.setitem(lifecycle._BY_PHASE, Phase.DRAINING, draining)
    patch.setattr(NodeSteps, "at_work", ends)


def orphan_ended_although_adopted(patch: pytest.MonkeyPatch) -> None:
    """A machine that the journal does not know is ended, although Slurm has it as the node of its slot."""

    def look(self: orphans._Decisions, orphan: Any) -> None:
        if orphan.old:
            self.found.steps.append(TerminateOrphan(orphan.instance.id, "nobody knows it", orphan.instance))

    patch.setattr(orphans._Decisions, "look", look)


def budget_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    """Machines are rented whatever they cost."""

    def no_order(*_: Any) -> Iterator[Move]:
        return iter(())

    patch.setattr(room, "budget_room", lambda *_: None)
    patch.setattr(planner, "withdrawn", no_order)
    patch.setattr(budget, "used", lambda *_: iter(()))


async def machines_alone(seed: int, directory: Path) -> None:
    await live_through(seed, directory, setting=Setting(restless=0.3))


async def with_lost_journals(seed: int, directory: Path) -> None:
    await live_through(seed, directory, setting=Setting(restless=0.3, loses=1.0))


async def with_queue(seed: int, directory: Path) -> None:
    await live_with_queue(3 * seed + 1, directory)  # of these seeds each has a budget


@dataclass(frozen=True)
class Case:
    rule: Break
    history: Callable[[int, Path], Any]
    words: str


CASES = (
    Case(create_before_journal, machines_alone, "rented twice"),
    Case(unknown_taken_for_absent, machines_alone, "under job"),
    Case(terminate_without_drain, machines_alone, "was ended under job"),
    Case(orphan_ended_although_adopted, with_lost_journals, "was ended under job"),
    Case(budget_not_looked_at, with_queue, "and the limit is"),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule.__name__)
async def test_a_rule_that_is_broken_is_found(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case.rule(monkeypatch)
    for seed in range(SEEDS_MOST):
        try:
            with suppress(MeshdError):
                await case.history(seed, tmp_path)
        except AssertionError as error:
            assert case.words in str(error)
            return
    raise AssertionError(f"no history of {SEEDS_MOST} finds it")
