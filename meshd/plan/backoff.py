"""How long something is left alone after it said no or failed: longer each time in a row, and not for ever. PURE."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from meshd.model.cooldown import Cooldown, CooldownCause, CooldownKey
from meshd.model.machine import FailureCause, Machine
from meshd.plan.failure_rules import counts_in_a_row
from meshd.runtime.backoff import backoff_s

FORGET_AFTER_S = 6 * 3600.0
"""So long after the end of a cool-down its strikes are forgotten."""

FAULTS_MOST = 5
"""A cloud that stumbled so often in a row, with a pause after each, counts as one that says no."""

FAULT_MOST_S = 600.0
"""And it is left alone for so long at most."""

DOUBLINGS_MOST = 4
"""A pool's breaker: its cool-down doubles so often at most."""


def remembered(cooldown: Cooldown, now: datetime) -> bool:
    """Whether a cooldown, in force or over, still counts."""
    return now < cooldown.until + timedelta(seconds=FORGET_AFTER_S)


def refused(
    previous: Cooldown | None,
    key: CooldownKey,
    now: datetime,
    *,
    base_s: float,
    most_s: float,
    reason: str,
    cause: CooldownCause = CooldownCause.REFUSED,
) -> Cooldown:
    """The cooldown that follows from a refusal.

    Several refusals of one burst are one strike: while the last cooldown of the same cause is in force, it stays.

    Args:
        previous: the last one of this key, whatever became of it.
        key: what is left alone.
        now: UTC.
        base_s: how long the first time; it doubles with each further strike.
        most_s: how long at most; never less than base_s.
        reason: in the words of who refused.
        cause: of what kind.
    """
    same = previous is not None and previous.cause is cause and remembered(previous, now)
    if previous is None or not same:
        first = Cooldown(key, now + timedelta(seconds=base_s), reason, 1, cause)
        return previous if previous is not None and previous.until > first.until else first
    if previous.until > now:
        return previous
    strikes = previous.strikes + 1
    wait_s = backoff_s(strikes, base_s, most_s)
    return Cooldown(key, now + timedelta(seconds=wait_s), reason, strikes, cause)


def paused(
    previous: Cooldown | None, key: CooldownKey, now: datetime, *, wait_s: float, reason: str, fault: bool
) -> Cooldown:
    """The cooldown of a provider that is asked again in a moment.

    Args:
        previous: the last one of this key.
        key: a provider's.
        now: UTC.
        wait_s: until then orders keep their place.
        reason: in the cloud's words.
        fault: it stumbled: after FAULTS_MOST in a row it is a refusal, longer each time. A rate limit is no fault.
    """
    until = now + timedelta(seconds=wait_s)
    known = previous is not None and previous.cause is not CooldownCause.BOOTS and remembered(previous, now)
    if previous is None or not known:
        return Cooldown(key, until, reason, int(fault), CooldownCause.PAUSE)
    if previous.until > now:
        return replace(previous, until=max(until, previous.until))
    strikes = previous.strikes + fault
    if not fault or strikes <= FAULTS_MOST:
        return Cooldown(key, until, reason, strikes, CooldownCause.PAUSE)
    wait_s = backoff_s(strikes - FAULTS_MOST + 1, wait_s, FAULT_MOST_S)
    return Cooldown(key, now + timedelta(seconds=wait_s), reason, strikes, CooldownCause.REFUSED)


@dataclass(frozen=True, slots=True)
class BootPolicy:
    """When machines that fail stop what they were rented from.

    Attributes:
        failures: so many in a row.
        cooldown_s: for so long the first time.
        offer_cooldown_most_s: an offer's longest cool-down.
    """

    failures: int
    cooldown_s: float
    offer_cooldown_most_s: float


def failures_in_row(rented: Sequence[Machine], since: datetime) -> list[Machine]:
    """The machines that failed since the last one that was READY, newest first, rented after `since`.

    `rented` are newest first; those that are still on their way neither count nor break the row, nor do those whose
    failure says itself what it is about.
    """
    failed: list[Machine] = []
    for machine in rented:
        if machine.ready_at is not None or machine.created_at < since:
            break
        if machine.failure and counts_in_a_row(machine.failure_cause):
            failed.append(machine)
    return failed


def tripped(
    key: CooldownKey,
    rented: Sequence[Machine],
    since: datetime,
    previous: Cooldown | None,
    now: datetime,
    policy: BootPolicy,
    part: Callable[[Machine], str] | None = None,
) -> Cooldown | None:
    """The breaker of an offer, a place or a pool: the cooldown to set now, None when there is nothing to set.

    After a cool-down one failure is enough, and the next one is twice as long.

    Args:
        key: as in Block.
        rented: the machines that were rented for or from it, newest first.
        since: what failed before counts no more.
        previous: the last cooldown of this key.
        now: UTC.
        policy: the limits.
        part: which part of it a machine belongs to: failures of one part alone do not trip the whole.
    """
    if previous is not None and previous.until > now:
        return None
    half_open = previous is not None and previous.cause is CooldownCause.BOOTS and remembered(previous, now)
    limit = policy.failures
    if previous is not None and half_open:
        since, limit = max(since, previous.until), 1
    failed = failures_in_row(rented, since)
    if failed and failed[0].failure_cause is FailureCause.NO_IPV4:
        limit, part = 1, None  # no other machine would fare better
    if len(failed) < limit or (part is not None and not half_open and len({part(m) for m in failed}) < 2):
        return None
    most_s = policy.offer_cooldown_most_s if key.is_offer else policy.cooldown_s * 2**DOUBLINGS_MOST
    reason = f"a machine failed: {failed[0].failure}"
    if len(failed) > 1:
        reason = f"{len(failed)} machines failed one after another, the last: {failed[0].failure}"
    return refused(
        previous, key, now, base_s=policy.cooldown_s, most_s=most_s, reason=reason, cause=CooldownCause.BOOTS
    )
