"""A plan as the API's document."""

from __future__ import annotations

from collections.abc import Sequence

from meshd.api.schema import AlternativeRow, PlanView, StepRow
from meshd.model.machine import Machine
from meshd.model.plan import Plan
from meshd.plan.render import rendered


def plan_view(plan: Plan, machines: Sequence[Machine], alternatives: Sequence[AlternativeRow] = ()) -> PlanView:
    """The document for a plan that was made from `machines`."""
    shown = rendered(plan, machines)
    return PlanView(
        steps=[StepRow(action=row.action, subject=row.subject, reason=row.reason) for row in shown.rows],
        usd_per_hour_before=shown.usd_per_hour_before,
        usd_per_hour_after=shown.usd_per_hour_after,
        adds=shown.adds,
        removes=list(shown.removes),
        alternatives=list(alternatives),
        warnings=list(shown.warnings),
    )
