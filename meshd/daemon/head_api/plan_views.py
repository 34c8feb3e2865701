"""A plan as the API's document, with the offers that were considered. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from meshd.api import schema as s
from meshd.model.desired import Desired, Pool, Target
from meshd.model.machine import Machine, Phase
from meshd.model.observed import Snapshot
from meshd.model.plan import Plan, RequestMachine
from meshd.plan.alternatives import OfferRule, Selection, considered
from meshd.plan.plan_input import PlanInput
from meshd.plan.plan_summary import overshoot_gpus, summary_of
from meshd.plan.prices import is_stale
from meshd.plan.scale import growth_of
from meshd.provider_api import Offer


def plan_view(
    plan: Plan, machines: Sequence[Machine], snapshot: Snapshot, desired: Desired, now: datetime
) -> s.PlanView:
    """The document for a plan that was made from `machines`, with the offers that were considered."""
    requests = [step for step in plan.steps if isinstance(step, RequestMachine)]
    chosen = {step.offer.key for step in requests}
    offers = alternatives({step.pool for step in requests}, chosen, snapshot, desired, now, machines)
    return document(plan, machines, desired, offers)


def document(
    plan: Plan, machines: Sequence[Machine], desired: Desired, offers: Sequence[s.AlternativeRow] = ()
) -> s.PlanView:
    """The document for a plan.

    Args:
        plan: what would be done.
        machines: the plan was made from them.
        desired: and from this.
        offers: the plan considered them.
    """
    summary = summary_of(plan, machines)
    return s.PlanView(
        steps=[s.StepRow(action=row.action, subject=row.subject, reason=row.reason) for row in summary.rows],
        usd_per_hour_before=summary.usd_per_hour_before,
        usd_per_hour_after=summary.usd_per_hour_after,
        adds=len(summary.adds),
        removes=list(summary.removes),
        machines=[_planned(step, desired) for step in summary.adds],
        overshoot_gpus=overshoot_gpus(plan, machines, desired),
        alternatives=list(offers),
        warnings=list(summary.warnings),
        findings=[
            s.PlanFinding(code=warn.code, subject=warn.subject, text=warn.reason, cure=warn.cure)
            for warn in plan.warnings
        ],
    )


def _planned(step: RequestMachine, desired: Desired) -> s.PlannedRow:
    """A machine that would be rented."""
    offer, pod_limits = step.offer, desired.policy.pod_limits
    return s.PlannedRow(
        slot=step.subject, pool=step.pool, offer=offer.key, provider=offer.provider, region=offer.zone or offer.region,
        instance_type=offer.instance_type, gpu=offer.gpu, gpus=offer.gpus, spot=offer.spot,
        pod=offer.provider in pod_limits, limits=pod_limits.get(offer.provider, ""),
        usd_per_hour=offer.usd_per_hour, usd_per_gpu_hour=round(offer.usd_per_gpu_hour, 4),
    )  # fmt: skip


def alternatives(
    pools: Iterable[str],
    chosen: Iterable[str],
    snapshot: Snapshot,
    desired: Desired,
    now: datetime,
    machines: Sequence[Machine] = (),
) -> list[s.AlternativeRow]:
    """The offers that would do, best first, and the nearest of those that would not, each with the rule that decided.

    `machines` are those that the choice was made beside.
    """
    given = PlanInput.of(snapshot, desired.policy, now, desired.cooldowns)
    offers = snapshot.known_offers
    taken = set(chosen)
    found = [
        (pool, desired.target(pool) or Target(pool.name, 0)) for pool in map(desired.pools.__getitem__, sorted(pools))
    ]
    return [
        _alternative(offer, taken, rule, note, stale=is_stale(offer, now, desired.policy.price_stale_after_s))
        for pool, target in found
        for offer, rule, note in considered(
            offers, pool, target, desired.cooldowns, taken, now, _choice(desired, pool, machines, snapshot, given)
        )
    ]


def _choice(
    desired: Desired, pool: Pool, machines: Sequence[Machine], snapshot: Snapshot, given: PlanInput
) -> Selection | None:
    alive = [m for m in machines if m.pool == pool.name and m.phase is not Phase.GONE]
    growth = growth_of(desired, pool, alive, snapshot, given)
    return growth.selection() if growth is not None else None


def _alternative(offer: Offer, chosen: set[str], rule: OfferRule, note: str, *, stale: bool) -> s.AlternativeRow:
    return s.AlternativeRow(
        offer=offer.key, provider=offer.provider, region=offer.zone or offer.region, instance_type=offer.instance_type,
        gpu=offer.gpu, gpus=offer.gpus, usd_per_hour=offer.usd_per_hour,
        usd_per_gpu_hour=round(offer.usd_per_gpu_hour, 4), chosen=offer.key in chosen, note=note, rule=rule.value,
        price_stale=stale,
    )  # fmt: skip
