"""A plan for people: rows, what it costs, what it adds and takes away. PURE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshd.model.machine import Machine, Phase
from meshd.model.plan import NotePeer, NotePublished, Plan, Remove, RequestMachine, Step

_BOOKKEEPING = (NotePeer, NotePublished)


@dataclass(frozen=True, slots=True)
class Row:
    """One step."""

    action: str
    subject: str
    reason: str


@dataclass(frozen=True, slots=True)
class Rendered:
    """A plan as it is shown.

    Attributes:
        rows: the steps without mere bookkeeping.
        adds: machines that would be rented.
        removes: machines that would be given back; those already on their way out are not among them.
        usd_per_hour_before: of all machines that are not GONE.
        usd_per_hour_after: the same, once the new ones are there and the removed ones are gone.
        warnings: what cannot be done, with its cure.
    """

    rows: tuple[Row, ...]
    adds: int
    removes: tuple[str, ...]
    usd_per_hour_before: float
    usd_per_hour_after: float
    warnings: tuple[str, ...]


def rendered(plan: Plan, machines: Sequence[Machine]) -> Rendered:
    """The plan as it is shown. `machines` are the records that it was made from."""
    prices: dict[str, float] = {m.name: m.usd_per_hour for m in machines if m.phase is not Phase.GONE}
    new = [step for step in plan.steps if isinstance(step, RequestMachine)]
    removes = tuple(step.subject for step in plan.steps if isinstance(step, Remove))
    before = sum(prices.values())
    return Rendered(
        rows=tuple(_row(step) for step in plan.steps if not isinstance(step, _BOOKKEEPING)),
        adds=len(new),
        removes=removes,
        usd_per_hour_before=before,
        usd_per_hour_after=before + sum(s.offer.usd_per_hour for s in new) - sum(prices.get(n, 0.0) for n in removes),
        warnings=tuple(
            f"{warn.subject}: {warn.reason}" + (f" ({warn.cure})" if warn.cure else "") for warn in plan.warnings
        ),
    )


def _row(step: Step) -> Row:
    if isinstance(step, RequestMachine):
        offer = step.offer
        price = f"{offer.gpus}x {offer.gpu or 'CPU'} at ${offer.usd_per_hour:.2f} per hour from {offer.key}"
        return Row(step.action, step.subject, f"{step.reason}; {price}")
    return Row(step.action, step.subject, step.reason)
