"""Which unfit node of a pool is replaced. PURE.

A pool replaces one node at a time. After each replacement it waits, longer each time in a row, until a node that was
rented after it has stayed fit. So a pool whose nodes all become unfit for one cause, such as a wrong slurm.conf or a
bad image, is not rented again and again.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from meshd.model.cooldown import Cooldown, CooldownKey
from meshd.model.desired import Desired, Pool
from meshd.model.machine import COUNTS_AS_SUPPLY, Machine, Phase
from meshd.model.plan import Replace
from meshd.plan.fitness import REPLACEABLE, Unfit, is_ready, unfit
from meshd.plan.plan_input import ClusterView, PlanInput
from meshd.plan.scale import supply_gpus
from meshd.runtime.backoff import backoff_s

DOUBLINGS_MOST = 5
"""How many times the wait between two replacements doubles."""

STRIKES_TOLD = 3
"""After this many replacements in a row a problem says that the cause is not the machines."""

PROOF_S = 3600.0
"""How long a node must have been READY to show that replacing helps."""


def replacement(desired: Desired, pool: Pool, machines: Sequence[Machine], given: PlanInput) -> Replace | None:
    """The node of a pool to replace now; None for none. `machines` are those of the pool that are not GONE."""
    if not pool.replace_unfit or why_not(desired, pool, machines, given.now):
        return None
    due = [
        (found.since, machine.name, machine, found)
        for machine in machines
        if not machine.offer.standing
        and machine.unfit_reason is not None  # a node that is due was recorded as unfit long ago
        and (found := unfit(machine, given.view)) is not None
        and _is_due(machine, found, given)
    ]
    if not due:
        return None
    _, _, machine, found = min(due, key=lambda one: one[:2])
    return Replace(machine.name, f"unfit: {found.words}", machine.slot, pool.name)


def why_not(desired: Desired, pool: Pool, machines: Sequence[Machine], now: datetime) -> str:
    """Why no node of the pool is replaced at this time; "" when one may be."""
    if desired.freeze is not None:
        return desired.freeze.words
    target = desired.target(pool)
    if target is None:
        return "the pool has no target, so nothing is rented for it"
    for key in (CooldownKey.of_pool(pool.name), CooldownKey.of_replacements(pool.name)):
        cooldown = desired.cooldowns.get(key)
        if cooldown is not None and cooldown.until > now:
            return f"{cooldown.reason}; the next one at {cooldown.until:%H:%M:%S} UTC"
    if any(m.phase in COUNTS_AS_SUPPLY and m.phase is not Phase.READY for m in machines):
        return "another node is on its way in"
    if supply_gpus(machines) < target.gpus:
        return "the pool is short of nodes already"
    return ""


def due_at(machine: Machine, found: Unfit, view: ClusterView) -> datetime | None:
    """When an unfit node may be replaced at the earliest; None when its reason never causes a replacement."""
    if found.why not in REPLACEABLE:
        return None
    # For a node that the head could not reach while it was off the tailnet, the time counts from its return.
    return max(found.since, view.tailnet_since) + timedelta(seconds=view.policy.replace_unfit_after_s)


def cooldown_most_s(first_s: float) -> float:
    """The longest wait between a pool's replacements, when the first one is `first_s`."""
    return first_s * 2.0**DOUBLINGS_MOST


def proved(cooldown: Cooldown, machines: Sequence[Machine], view: ClusterView) -> bool:
    """Whether a node that was rented after the last replacement has been READY for PROOF_S and is fit."""
    if view.slurm is None:
        return False
    first_s = view.policy.replace_cooldown_s
    waited_s = backoff_s(cooldown.strikes, first_s, cooldown_most_s(first_s))
    since = cooldown.until - timedelta(seconds=waited_s)
    return any(
        m.created_at >= since
        and m.ready_at is not None
        and (view.now - m.ready_at).total_seconds() >= PROOF_S
        and is_ready(m, view)
        for m in machines
    )


def _is_due(machine: Machine, found: Unfit, given: PlanInput) -> bool:
    due = due_at(machine, found, given.view)
    report = given.view.report(machine)
    at_work = not given.idle(machine) or (report is not None and report.jobs > 0)
    restarted = machine.slurmd_restarted_at
    if restarted is not None and (given.now - restarted).total_seconds() < given.policy.unfit_grace_s:
        return False  # the result of the restart does not show yet
    return machine.phase is Phase.READY and not machine.removal and due is not None and due <= given.now and not at_work
