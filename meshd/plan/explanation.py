"""Explains a machine from its record: what it does, what it waits for, and what came of its offer. PURE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from meshd.model.cooldown import Cooldown
from meshd.model.desired import Policy, Pool, Target
from meshd.model.machine import COUNTS_AS_SUPPLY, Machine, Phase
from meshd.model.observed import SlurmView
from meshd.plan.fitness import Unfit
from meshd.plan.gang import is_gang
from meshd.plan.placement import node_gpus, overshoot_most, pod_policy, price_limit, spot_policy, total_limit
from meshd.plan.plan_input import LONG_AGO
from meshd.plan.prices import has_budget
from meshd.plan.unclear_launch import settled_at, was_unclear

_REFUSALS = {"no_capacity": "no_capacity", "not_found": "no_capacity", "quota_exceeded": "quota"}
"""By the kind of the cloud's error. NotFound on a create call means that the offer does not exist any more."""


def outcome(machine: Machine) -> str:
    """What came of the create call for this machine's offer, as one of the words of the API's schema."""
    if machine.refusal:
        return _REFUSALS.get(machine.refusal, "refused")
    if machine.instance_id:
        if machine.failure:
            return "failed"
        return "adopted" if was_unclear(machine) or machine.launch_attempts == 0 else "rented"
    if machine.phase in COUNTS_AS_SUPPLY or machine.phase is Phase.TERMINATING:
        return "unclear" if was_unclear(machine) else "waiting"
    if not machine.failure:
        return "skipped"
    return "unclear" if was_unclear(machine) else "refused"


def words(machine: Machine) -> str:
    """Why the outcome is what it is, in the cloud's own words where there are any."""
    match outcome(machine):
        case "unclear":
            return machine.vendor_words or machine.failure or machine.reason
        case "adopted":
            return f"{machine.vendor_words or 'meshd did not know of it'}; it was found by its name"
        case "rented":
            return f"{machine.instance_id}; {machine.reason}" if machine.removal else machine.instance_id
    return machine.vendor_words or machine.failure or machine.reason


def attempts(machines: Sequence[Machine], subject: str, since: datetime | None) -> list[Machine]:
    """The machines that explain a slot's present state, oldest first.

    Args:
        machines: all that were made for the slot, newest first.
        subject: the name of a machine that is always among them.
        since: when the pool's target was set. Of earlier machines only those after the last one that was rented count:
            their failures are why the next offer was tried.
    """
    shown: list[Machine] = []
    for machine in machines:
        before = machine.created_at < (since or LONG_AGO)
        if before and machine.name != subject and machine.phase is Phase.GONE and machine.instance_id:
            break
        shown.append(machine)
    return shown[::-1]


@dataclass(frozen=True, slots=True)
class Context:
    """What a sentence about a machine needs besides its record.

    Attributes:
        slurm: None when Slurm cannot be read.
        provider_cooldown: the cooldown in force of the machine's provider; None for none.
        order_held: why its order waits for its turn; "" when it does not.
        unfit: why the node is unfit; None when it is fit or that is not known.
        path_fault: why its path to the head keeps slurmd from starting; "" when it does not.
    """

    policy: Policy
    slurm: SlurmView | None
    provider_cooldown: Cooldown | None = None
    order_held: str = ""
    unfit: Unfit | None = None
    path_fault: str = ""


def doing(machine: Machine, context: Context) -> str:
    """One sentence: what the machine does, what it waits for, and until when."""
    what = _DOING[machine.phase](machine, context)
    if machine.problem and machine.phase in {Phase.JOINING, Phase.CONFIGURING, Phase.TESTING}:
        return f"{what}. What hinders it: {machine.problem}"
    return what


def _until(machine: Machine, timeout_s: float) -> str:
    return f"until {machine.phase_since + timedelta(seconds=timeout_s):%H:%M:%S} UTC"


def _requested(m: Machine, context: Context) -> str:
    if context.provider_cooldown is not None:
        cooldown = context.provider_cooldown
        return f"{m.provider} is asked for {m.offer.key} at {cooldown.until:%H:%M:%S} UTC: {cooldown.reason}"
    if context.order_held:
        return f"its order at {m.provider} for {m.offer.key} waits: {context.order_held}"
    return f"{m.provider} is about to be asked for {m.offer.key}: {m.reason}"


def _launching(m: Machine, context: Context) -> str:
    if not was_unclear(m):
        return f"{m.provider} was asked for {m.offer.key} and has not answered yet"
    known_at = f"{settled_at(m, context.policy):%H:%M:%S} UTC"
    unclear = f"whether {m.provider} made it is not clear ({m.vendor_words}): meshd looks for its name in listings"
    if m.refusal:
        return (
            f"{m.provider} refuses it now ({m.vendor_words}), and whether an earlier create call made it is not clear: "
            f"meshd looks for its name in listings, and gives it up when it is not listed by {known_at}"
        )
    if m.provider in context.policy.idempotent_launch and m.launch_attempts < context.policy.launch_attempts_max:
        return f"{unclear}, and repeats the create call, which makes no second machine"
    return f"{unclear}; nothing else is rented in its place until {known_at}, when it is settled"


def _booting(m: Machine, context: Context) -> str:
    return (
        f"it boots: {m.provider} has it as {m.instance_id}; meshd waits for it on the tailnet "
        f"{_until(m, context.policy.boot_timeout_s)}"
    )


def _joining(m: Machine, context: Context) -> str:
    return (
        f"it is on the tailnet as {m.tailnet_ip}; meshd waits for its node agent to ask to join "
        f"{_until(m, context.policy.join_timeout_s)}"
    )


def _configuring(m: Machine, context: Context) -> str:
    waits = "munge to be proved" if not m.munge_ok else "Slurm to take its line" if not m.line_published else "slurmd"
    return f"the head accepted it, and it waits for {waits} {_until(m, context.policy.configure_timeout_s)}"


def _testing(m: Machine, context: Context) -> str:
    if not m.may_run_jobs:
        waits = f"slurmd starts when its path to the head is direct, {_until(m, context.policy.test_timeout_s)}"
        return f"{waits} ({context.path_fault})" if context.path_fault else waits
    shown = _states(m, context.slurm)
    return (
        f"slurmd was started; Slurm must show the node up {_until(m, context.policy.test_timeout_s)} (it shows {shown})"
    )


def _ready(m: Machine, context: Context) -> str:
    gone = m.device_gone_since
    if gone is not None:
        how = "it holds no auth key to come back with" if m.own_key and not m.spare_key else "its agent logs in again"
        return (
            f"its tailnet device was deleted at {gone:%H:%M:%S} UTC, so nobody reaches it: {how}, and nothing is ended "
            "for that"
        )
    if context.slurm is None:
        return "it works, as far as is known: Slurm cannot be read"
    jobs = context.slurm.jobs_on(m.slot)
    if context.unfit is not None:
        on_it = f"job {', '.join(jobs)} is on it" if jobs else "no job is on it"
        return f"it is not fit since {context.unfit.since:%H:%M:%S} UTC: {context.unfit.words}; {on_it}"
    return f"it works: Slurm shows {_states(m, context.slurm)}, " + (
        f"job {', '.join(jobs)} on it" if jobs else "no job on it"
    )


def _draining(m: Machine, context: Context) -> str:
    why = m.failure or m.reason
    if context.slurm is None:
        return f"it is to leave ({why}), and waits until Slurm can be read: whether it has jobs is not known"
    jobs = context.slurm.running_on(m.slot)
    waits = f"waits for job {', '.join(jobs)} to end" if jobs else "is about to leave Slurm"
    return f"it takes no new jobs ({why}) and {waits}"


def _terminating(m: Machine, context: Context) -> str:
    why = m.failure or m.reason
    if not m.terminate_calls:
        return f"{m.provider} is about to be asked to end it ({why})"
    times = "once" if m.terminate_calls == 1 else f"{m.terminate_calls} times"
    return f"{m.provider} was asked {times} to end it ({why}), and has not said that it is gone"


def _lost(m: Machine, context: Context) -> str:
    handle = m.instance_id or m.name
    return (
        f"{m.provider} does not end it, asked {m.terminate_calls} times, and it costs {m.usd_per_hour:.2f} USD per "
        f"hour: end {handle} in {m.provider}'s console; meshd keeps asking"
    )


def _gone(m: Machine, context: Context) -> str:
    at = f" since {m.gone_at:%Y-%m-%d %H:%M:%S} UTC" if m.gone_at else ""
    return f"it is gone{at}: {m.failure or m.reason}"


_DOING = {
    Phase.REQUESTED: _requested,
    Phase.LAUNCHING: _launching,
    Phase.BOOTING: _booting,
    Phase.JOINING: _joining,
    Phase.CONFIGURING: _configuring,
    Phase.TESTING: _testing,
    Phase.READY: _ready,
    Phase.DRAINING: _draining,
    Phase.TERMINATING: _terminating,
    Phase.LOST: _lost,
    Phase.GONE: _gone,
}


def _states(machine: Machine, slurm: SlurmView | None) -> str:
    node = slurm.nodes.get(machine.slot) if slurm else None
    return "+".join(sorted(node.states)) if node else "nothing"


def constraints(pool: Pool, target: Target | None) -> list[str]:
    """What an offer must meet to be rented for the pool, one line each, in the terms of the settings."""
    narrow = target or Target(pool.name, 0)
    limit, total, overshoot = price_limit(pool, narrow), total_limit(pool, narrow), overshoot_most(pool, narrow)
    regions = [place for place in pool.regions if not narrow.regions or place in narrow.regions] or narrow.regions
    lines = [
        _gpus(pool, narrow),
        f"{pool.arch}, at least {_least(pool)}",
        f"provider: {narrow.provider}" if narrow.provider else f"providers: {', '.join(pool.providers) or 'none'}",
        f"regions: {', '.join(regions)}" if regions else "",
        f"spot: {spot_policy(pool, narrow)}",
        f"pods: {pod_policy(pool, narrow)}",
        f"at most {limit:.2f} USD per GPU-hour" if limit is not None else "",
        f"at most {total:.2f} USD per hour in all" if total is not None else "",
        f"prices of {pool.prices_since:%Y-%m-%d} or newer" if pool.prices_since and has_budget(pool, target) else "",
        f"at most {overshoot} GPUs more than wanted" if overshoot is not None else "",
        f"at most {pool.max_nodes} machines",
    ]
    if target is not None and pool.gpu:
        gang = "all machines of one provider and region (--spread lifts it)"
        lines.append(gang if is_gang(pool, target) else "machines may be of several providers and regions (--spread)")
    return [line for line in lines if line]


def _least(pool: Pool) -> str:
    """The CPUs and memory of the smallest machine that is rented."""
    promise = pool.promise
    cpus = max(pool.cpus_min, promise.cpus) if promise else pool.cpus_min
    memory_mib = max(pool.memory_min_mib, promise.memory_mib) if promise else pool.memory_min_mib
    return f"{cpus} CPUs and {memory_mib} MiB" + (", as each slot promises" if promise else "")


def _gpus(pool: Pool, target: Target) -> str:
    if pool.cpu_only:
        return "machines without GPUs"
    few, many = node_gpus(pool, target)
    each = f"{few}" if few == many else f"{few} to {many}"
    memory = f", at least {pool.gpu_memory_min_gib} GB each" if pool.gpu_memory_min_gib else ""
    return f"{each} {'GPU' if each == '1' else 'GPUs'} per machine, {target.gpu or pool.gpu}{memory}"
