"""How long something cools down after a refusal or failure: longer each time in a row, up to a limit. PURE."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from meshd.model.cooldown import Cooldown, CooldownCause, CooldownKey
from meshd.model.machine import FailureCause, Machine
from meshd.plan.failure_rules import counts_in_a_row
from meshd.runtime.backoff import backoff_s

FORGET_AFTER_S = 6 * 3600.0
"""How long after the end of a cooldown its strikes still count."""

FAULTS_MOST = 5
"""After this many consecutive faults, each with a pause, a provider counts as one that refuses."""

FAULT_MOST_S = 600.0
"""The longest cooldown after faults."""

DOUBLINGS_MOST = 4
"""How many times the cooldown of a pool's breaker doubles at most."""


def remembered(cooldown: Cooldown, now: datetime) -> bool:
    """Whether a cooldown, in force or expired, still counts."""
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
    """The cooldown after a refusal.

    Several refusals of one burst are one strike: a cooldown of the same cause that is in force stays as it is.

    Args:
        previous: the last cooldown of this key, in force or expired.
        key: what cools down.
        now: UTC.
        base_s: the length of the first cooldown; it doubles with each further strike.
        most_s: the longest one; at least base_s.
        reason: in the words of the one that refused.
        cause: why it cools down.
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
    """The pause of a provider or pool, during which orders keep their place.

    Args:
        previous: the last cooldown of this key, in force or expired.
        key: what pauses.
        now: UTC.
        wait_s: the length of the pause.
        reason: in the cloud's words.
        fault: whether it is a fault. After FAULTS_MOST in a row it becomes a refusal, longer each time. A rate limit
            is no fault.
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
    """When consecutive failures of machines start a cooldown.

    Attributes:
        failures: how many in a row.
        cooldown_s: the length of the first cooldown.
        offer_cooldown_most_s: the longest one of an offer.
    """

    failures: int
    cooldown_s: float
    offer_cooldown_most_s: float


def failures_in_row(rented: Sequence[Machine], since: datetime) -> list[Machine]:
    """The machines rented after `since` that failed after the last one that was READY, newest first.

    `rented` are newest first. Machines that are not READY yet neither count nor end the row, and neither do those
    whose failure the cloud explained.
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
    """The breaker of an offer, a place or a pool: the cooldown to set now, or None.

    After an expired cooldown one failure is enough, and the next cooldown is twice as long.

    Args:
        key: what cools down.
        rented: the machines that were rented for or from it, newest first.
        since: earlier failures do not count.
        previous: the last cooldown of this key.
        now: UTC.
        policy: the limits.
        part: the part of it that a machine belongs to. Failures of one part alone do not trip the whole.
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
    if all(machine.failure_cause is FailureCause.SETTINGS for machine in failed[:limit]):
        part = None  # all machines of the pool have the same settings
    if len(failed) < limit or (part is not None and not half_open and len({part(m) for m in failed}) < 2):
        return None
    most_s = policy.offer_cooldown_most_s if key.is_offer else policy.cooldown_s * 2**DOUBLINGS_MOST
    reason = f"a machine failed: {failed[0].failure}"
    if len(failed) > 1:
        reason = f"{len(failed)} machines failed one after another, the last: {failed[0].failure}"
    return refused(
        previous, key, now, base_s=policy.cooldown_s, most_s=most_s, reason=reason, cause=CooldownCause.BOOTS
    )
