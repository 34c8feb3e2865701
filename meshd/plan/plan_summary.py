"""A plan for people: its steps, what it rents and gives back, and what it costs. PURE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshd.model.desired import Desired
from meshd.model.machine import Machine, Phase
from meshd.model.plan import (
    AskAgent,
    CancelRemoval,
    Plan,
    RecordDevice,
    RecordFitness,
    RecordPeer,
    RecordPublished,
    Remove,
    RequestMachine,
    Step,
)
from meshd.plan.scale import supply_gpus, units

_BOOKKEEPING = (AskAgent, RecordDevice, RecordFitness, RecordPeer, RecordPublished)


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step."""

    action: str
    subject: str
    reason: str


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """A plan as people see it.

    Attributes:
        rows: the steps, without those that only record something.
        adds: the steps that rent a machine.
        removes: names of the machines that the plan gives back; not those that are leaving already.
        usd_per_hour_before: of all machines that are not GONE.
        usd_per_hour_after: the same, once the new machines exist and the removed ones are gone.
        warnings: each with its cure.
    """

    rows: tuple[StepRow, ...]
    adds: tuple[RequestMachine, ...]
    removes: tuple[str, ...]
    usd_per_hour_before: float
    usd_per_hour_after: float
    warnings: tuple[str, ...]


def summary_of(plan: Plan, machines: Sequence[Machine]) -> PlanSummary:
    """The summary of a plan. `machines` are the records that it was made from."""
    prices: dict[str, float] = {m.name: m.usd_per_hour for m in machines if m.phase is not Phase.GONE}
    new = tuple(step for step in plan.steps if isinstance(step, RequestMachine))
    removes = tuple(step.subject for step in plan.steps if isinstance(step, Remove))
    before = sum(prices.values())
    return PlanSummary(
        rows=tuple(
            _step_row(step, subject)
            for step in plan.steps
            if not isinstance(step, _BOOKKEEPING)
            for subject in step.subjects
        ),
        adds=new,
        removes=removes,
        usd_per_hour_before=before,
        usd_per_hour_after=before + sum(s.offer.usd_per_hour for s in new) - sum(prices.get(n, 0.0) for n in removes),
        warnings=tuple(
            f"{warn.subject}: {warn.reason}" + (f" ({warn.cure})" if warn.cure else "") for warn in plan.warnings
        ),
    )


def overshoot_gpus(plan: Plan, machines: Sequence[Machine], desired: Desired) -> int:
    """How many GPUs beyond their targets the pools that rent would have; machines for a pool without GPUs."""
    renting = {step.pool for step in plan.steps if isinstance(step, RequestMachine) and not step.by_queue}
    kept = {step.subject for step in plan.steps if isinstance(step, CancelRemoval)}
    leaving = {step.subject for step in plan.steps if isinstance(step, Remove)}
    total = 0
    for pool in renting & desired.pools.keys():
        target = desired.target(desired.pools[pool])
        mine = [m for m in machines if m.pool == pool]
        new = sum(s.offer.gpus or 1 for s in plan.steps if isinstance(s, RequestMachine) and s.pool == pool)
        there = supply_gpus([m for m in mine if m.name not in leaving]) + sum(units(m) for m in mine if m.name in kept)
        total += max(there + new - target.gpus, 0) if target else 0
    return total


def _step_row(step: Step, subject: str) -> StepRow:
    if isinstance(step, RequestMachine):
        offer = step.offer
        price = f"{offer.gpus}x {offer.gpu or 'CPU'} at ${offer.usd_per_hour:.2f} per hour from {offer.key}"
        return StepRow(step.action, subject, f"{step.reason}; {price}")
    together = f"; one call rents {len(step.subjects)} machines" if len(step.subjects) > 1 else ""
    return StepRow(step.action, subject, step.reason + together)
