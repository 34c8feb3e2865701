"""A create call without a clear answer: how long it may still make a machine, and the steps until then. PURE.

Until that is settled, the machine stays LAUNCHING and counts as supply, and nothing is rented in its place. A listing
settles it that shows the machine, or that is late enough to show one if there were one.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from meshd.model.cooldown import CooldownCause, CooldownKey
from meshd.model.desired import Policy
from meshd.model.machine import FailureCause, Machine, Phase
from meshd.model.plan import Adopt, Launch, Move, Step
from meshd.plan.placement import cooldown_of
from meshd.plan.plan_input import PlanInput
from meshd.provider_api import Instance
from meshd.runtime.backoff import backoff_s

REPEAT_AFTER_S = 5.0
REPEAT_AFTER_MAX_S = 60.0
"""The pause before a create call is repeated: it grows from the first value to the second."""


def was_unclear(machine: Machine) -> bool:
    """Whether the last create call had no clear answer."""
    return _unclear_at(machine) is not None


def settled_at(machine: Machine, policy: Policy) -> datetime:
    """The time after which a listing that does not show the machine proves that no create call made it.

    A call ends with its unclear answer, or at its own deadline when meshd died during it. It may take effect for
    another `launch_settle_s`, and a new machine may be missing from listings for `listing_lag_s`.
    """
    called = machine.launch_called_at or machine.created_at
    over = _unclear_at(machine) or called + timedelta(seconds=policy.launch_timeout_s)
    return over + timedelta(seconds=policy.launch_settle_s + policy.listing_lag_s)


def _unclear_at(machine: Machine) -> datetime | None:
    """When the last create call ended without a clear answer; None when it did not."""
    unclear, called = machine.create_unclear_at, machine.launch_called_at
    return unclear if unclear is not None and called is not None and unclear >= called else None


def made(machine: Machine, given: PlanInput) -> Instance | None:
    """The listed instance with the machine's name, the oldest if there are several; None when there is none."""
    found = given.by_token.get((machine.provider, machine.name), ())
    return min(found, key=lambda i: (i.launched_at is None, i.launched_at, i.id), default=None)


def surely_not_made(machine: Machine, given: PlanInput) -> bool:
    """Whether it is proved that no create call made the machine, or will make it."""
    at = given.listed_at.get(machine.provider)
    return at is not None and at > settled_at(machine, given.policy) and made(machine, given) is None


def launching(machine: Machine, given: PlanInput) -> Step | None:
    """The next step for a machine whose create call is unclear. No call of this meshd is in flight for it."""
    found = made(machine, given)
    if found is not None:
        return Adopt(machine.name, "the unclear create call did make it", found)
    if surely_not_made(machine, given):
        return _settled(machine, given.policy)
    age_s = (given.now - machine.phase_since).total_seconds()
    if age_s > given.policy.boot_timeout_s and given.now > settled_at(machine, given.policy):
        failure = f"{machine.provider} did not show within {given.policy.boot_timeout_s:g} s what became of it"
        return Move(machine.name, failure, Phase.TERMINATING, failure, FailureCause.UNKNOWN)
    if _may_be_repeated(machine, given):
        reason = f"{machine.provider} makes no second machine of the same name, and its answer tells what became of it"
        return Launch(machine.name, reason)
    return None


def _settled(machine: Machine, policy: Policy) -> Step:
    if machine.removal:
        return Move(machine.name, "no longer needed; nothing was rented", Phase.GONE)
    if machine.refusal:
        failure = f"nothing was rented: {machine.vendor_words}"
        return Move(machine.name, failure, Phase.GONE, failure, FailureCause.UNKNOWN)
    if machine.head_reached_at is not None:
        # Its name and its join token are used: another machine with this name could never join.
        failure = f"the create call made it, and it ended before {machine.provider} listed it"
        return Move(machine.name, failure, Phase.GONE, failure, FailureCause.ENDED)
    if machine.launch_attempts >= policy.launch_attempts_max:
        failure = f"{machine.provider} gave no clear answer to {machine.launch_attempts} create calls"
        return Move(machine.name, failure, Phase.GONE, failure, FailureCause.UNKNOWN)
    return Move(machine.name, "the create call had no effect", Phase.REQUESTED)


def _may_be_repeated(machine: Machine, given: PlanInput) -> bool:
    """Whether the same create call may go out again now: only where that cannot make a second machine."""
    if machine.provider not in given.policy.idempotent_launch or machine.removal or machine.refusal:
        return False
    if machine.launch_attempts >= given.policy.launch_attempts_max:
        return False
    pause = given.cooldowns.get(CooldownKey.of_provider(machine.provider))
    paused = pause is not None and pause.until > given.now and pause.cause is CooldownCause.PAUSE
    if paused or cooldown_of(machine.offer, given.cooldowns, given.now, machine.pool) is not None:
        return False
    asked = max(at for at in (machine.create_repeated_at, machine.launch_called_at, machine.created_at) if at)
    pause_s = backoff_s(machine.launch_attempts, REPEAT_AFTER_S, REPEAT_AFTER_MAX_S)
    return given.now >= asked + timedelta(seconds=pause_s)
