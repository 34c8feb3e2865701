"""The plan: one pure function of the desired state, the observed state and the time.

Invariant: from any state, carrying out any prefix of the plan and planning again leads to the same end. Three rules
make it so: each step follows from the journal and the snapshot alone, a machine has at most one step at a time, and no
step assumes that another step of the same plan was carried out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from meshd.model.desired import Desired
from meshd.model.ids import MachineName
from meshd.model.machine import HOLDS_SLOT, Machine, Phase, Removal
from meshd.model.observed import Snapshot
from meshd.model.plan import AdoptOrphan, Drain, Launch, Leave, Move, Plan, Remove, RequestMachine, Step, Warn
from meshd.plan.budget import kill_steps, withdrawn
from meshd.plan.freeze import allowed, taken_back
from meshd.plan.gang_orders import launched_together, with_calls
from meshd.plan.guards import leaving_room, orders
from meshd.plan.lifecycle import contradiction_warning, next_step
from meshd.plan.orphans import Known, Orphans, orphans_of
from meshd.plan.plan_input import PlanInput
from meshd.plan.pool_plan import pool_plan
from meshd.plan.prices import stale_warnings
from meshd.plan.replace import replacement
from meshd.plan.restored import unheld
from meshd.plan.room import Money


def plan(
    desired: Desired,
    machines: Sequence[Machine],
    snapshot: Snapshot,
    now: datetime,
    *,
    busy: Collection[str] = (),
    ended_ids: Collection[tuple[str, str]] = (),
    late_ids: Collection[tuple[str, str]] = (),
    first_seen: Mapping[tuple[str, str], datetime] | None = None,
) -> Plan:
    """The steps to begin now, and the warnings.

    Args:
        desired: pools, targets, policy and cooldowns.
        machines: each record of the journal that is not GONE, and the GONE ones whose device may still be listed.
        snapshot: what was observed.
        now: UTC.
        busy: machines with a step in flight. They get no step, and neither do those that are `held`.
        ended_ids: (provider, instance id) of listed instances that are GONE in the journal.
        late_ids: (provider, instance id) of listed instances with the name of a machine that has another instance or
            is GONE.
        first_seen: when meshd first saw each unknown instance.
    """
    sent = orders(desired.guards, desired.launches, machines, busy, now)
    busy = {*busy, *(machine.name for machine in machines if machine.held)}
    given = PlanInput.of(snapshot, desired.policy, now, desired.cooldowns)
    if desired.guards.max_launches is not None:
        given = replace(given, orders_guarded=True)
    by_pool: dict[str, list[Machine]] = {}
    for machine in machines:
        if machine.phase is not Phase.GONE and not machine.baking:
            by_pool.setdefault(machine.pool, []).append(machine)
    steps: list[Step] = [*taken_back(desired, machines, busy)]
    # A step that the freeze holds back must not stand in the way of another one of the same machine.
    steps += allowed(desired, (s for s in kill_steps(desired.budget, machines, given) if s.subject not in busy))
    if desired.freeze is None:
        steps += [step for step in withdrawn(desired, machines, now) if step.subject not in busy]
    of_name = {str(machine.name): machine for machine in machines}
    steps = unheld(desired, of_name, steps)
    ended = {step.subject for step in steps}
    money = Money(desired.budget, now)  # the pools share it
    pools = [
        pool_plan(desired, pool, by_pool.get(pool.name, []), snapshot, given, money) for pool in desired.pools.values()
    ]
    of_pools = (step for one in pools for step in one.steps if step.subject not in busy and step.subject not in ended)
    steps += unheld(desired, of_name, allowed(desired, of_pools))
    steps = with_calls(desired, steps)
    shrinking = {step.subject for step in steps if isinstance(step, Remove)}
    replacements = [step for step in _replacements(desired, by_pool, given, busy) if step.subject not in shrinking]
    replacements = unheld(desired, of_name, allowed(desired, replacements))
    steps += replacements[: leaving_room(desired.guards, machines, given.slurm)]
    steps += stale_warnings(desired, tuple(steps), now)
    orphans = _orphans(desired, machines, snapshot, given, busy, ended_ids, late_ids, first_seen or {})
    decided = {step.subject for step in steps}
    for machine in machines:
        warning = contradiction_warning(machine, given)
        if warning is not None:
            steps.append(warning)
        if machine.name not in busy and machine.name not in decided and machine.name not in sent.waiting:
            step = next_step(machine, given)
            if step is not None and not (machine.name in orphans.succeeded and isinstance(step, (Move, Leave, Drain))):
                steps += unheld(desired, of_name, allowed(desired, [step]))
    steps = _without_what_waits(steps, machines, orphans)
    steps += unheld(desired, of_name, allowed(desired, orphans.steps))
    steps = launched_together(steps, {machine.name: machine for machine in machines})
    steps += sent.warning(desired.guards)
    return Plan(
        tuple(step for step in steps if not isinstance(step, Warn)),
        tuple(step for step in steps if isinstance(step, Warn)),
        refused=tuple(refused for one in pools for refused in one.refused),
        open_slots={one.pool: one.open_slots for one in pools if one.open_slots is not None},
        bound_slots={slot: why for one in pools for slot, why in one.bound_slots.items()},
        unwanted_slots=tuple(slot for one in pools for slot in one.unwanted_slots),
        held_orders=dict.fromkeys(sent.waiting, sent.words(desired.guards)),
    )


def _orphans(
    desired: Desired,
    machines: Sequence[Machine],
    snapshot: Snapshot,
    given: PlanInput,
    busy: Collection[str],
    ended_ids: Collection[tuple[str, str]],
    late_ids: Collection[tuple[str, str]],
    first_seen: Mapping[tuple[str, str], datetime],
) -> Orphans:
    """What becomes of instances that the journal does not know, without those that a step in flight is about."""
    alive = [m for m in machines if m.phase is not Phase.GONE]
    known = Known(
        ids={(m.provider, m.instance_id) for m in alive if m.instance_id},
        names={m.name for m in alive},
        holders={m.slot: m for m in alive if m.phase in HOLDS_SLOT},
        busy=busy,
        ended_ids=ended_ids,
        late_ids=late_ids,
    )
    unsure = {m.name for m in alive if not m.instance_id}.union(busy)
    found = orphans_of(desired, snapshot, known, first_seen, given)
    found.steps = [s for s in found.steps if s.subject not in busy and s.instance.token not in unsure]
    return found


def _without_what_waits(steps: list[Step], machines: Sequence[Machine], orphans: Orphans) -> list[Step]:
    """The steps without those that rent, or move a gang, in pools that get a machine of ours that was not known.

    What such a pool lacks, and in which place, is known once it is adopted.
    """
    adopting = {step.pool for step in orphans.steps if isinstance(step, AdoptOrphan)}
    pools, pool_of = adopting | orphans.waiting, {machine.name: machine.pool for machine in machines}
    # No order goes out before such a machine counts: the limits in USD, of all pools, may allow fewer then.
    unsent = {m.name for m in machines if m.phase is Phase.REQUESTED and (adopting or m.pool in pools)}
    return [
        step
        for step in steps
        if not (
            (isinstance(step, RequestMachine) and step.pool in pools)
            or (isinstance(step, Launch) and step.subject in unsent)
            or (
                isinstance(step, Remove)
                and step.removal is Removal.GANG_MOVED
                and pool_of.get(MachineName(step.subject)) in pools
            )
        )
    ]


def _replacements(
    desired: Desired, by_pool: Mapping[str, Sequence[Machine]], given: PlanInput, busy: Collection[str]
) -> list[Step]:
    """The unfit nodes to give up now: at most one of each pool, and none that has a step in flight."""
    found = (replacement(desired, pool, by_pool.get(pool.name, ()), given) for pool in desired.pools.values())
    return [step for step in found if step is not None and step.subject not in busy]
