"""A plan as the API's document."""

from __future__ import annotations

from collections.abc import Sequence

from meshd.api.schema import AlternativeRow, PlannedRow, PlanView, StepRow
from meshd.model.machine import Machine
from meshd.model.plan import Plan, RequestMachine
from meshd.plan.plan_summary import summary_of


def plan_view(
    plan: Plan, machines: Sequence[Machine], alternatives: Sequence[AlternativeRow] = (), overshoot_gpus: int = 0
) -> PlanView:
    """The document for a plan that was made from `machines`."""
    summary = summary_of(plan, machines)
    return PlanView(
        steps=[StepRow(action=row.action, subject=row.subject, reason=row.reason) for row in summary.rows],
        usd_per_hour_before=summary.usd_per_hour_before,
        usd_per_hour_after=summary.usd_per_hour_after,
        adds=len(summary.adds),
        removes=list(summary.removes),
        machines=[planned_row(step) for step in summary.adds],
        overshoot_gpus=overshoot_gpus,
        alternatives=list(alternatives),
        warnings=list(summary.warnings),
    )


def planned_row(step: RequestMachine) -> PlannedRow:
    """A machine that would be rented."""
    offer = step.offer
    return PlannedRow(
        slot=step.subject, pool=step.pool, offer=offer.key, provider=offer.provider, region=offer.zone or offer.region,
        instance_type=offer.instance_type, gpu=offer.gpu, gpus=offer.gpus, spot=offer.spot,
        usd_per_hour=offer.usd_per_hour, usd_per_gpu_hour=round(offer.usd_per_gpu_hour, 4),
    )  # fmt: skip
