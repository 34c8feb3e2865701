"""What cools down after each kind of failure, and how the kind is read from a cloud's words. PURE.

A failure that the cloud explains (no capacity, quota, a broken image) starts a cooldown at once. After all others the
offer cools down when several follow in a row. Something wider cools down only when the failures span two narrower
parts: two offers of a region, two regions of a provider, two providers. The widest is the pool.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from meshd.model.machine import FailureCause
from meshd.provider_api import InstanceState

QUOTA_S = 1800.0
"""The cooldown of an offer for which the account has no quota. It is long, since waiting seldom helps."""


class Scope(StrEnum):
    """What cools down."""

    NOTHING = "nothing"
    OFFER = "offer"
    REGION = "region"
    """All offers of a provider's region, for one pool, since they share an image."""


class Wait(StrEnum):
    """The length of the first cooldown; it doubles with each further one in a row."""

    NO_CAPACITY = "no_capacity_cooldown_s"
    QUOTA = "quota"
    BREAKER = "breaker_cooldown_s"


@dataclass(frozen=True, slots=True)
class FailureRule:
    """What follows from a failure of one kind.

    Attributes:
        scope: what cools down.
        at_once: after one failure. False: after `timing.breaker_failures` in a row, and wider if they span offers.
        wait: the length of the first cooldown.
    """

    scope: Scope
    at_once: bool
    wait: Wait = Wait.BREAKER


_IN_A_ROW = FailureRule(Scope.OFFER, at_once=False)

RULES: Mapping[FailureCause, FailureRule] = {
    FailureCause.NONE: FailureRule(Scope.NOTHING, at_once=False),
    FailureCause.NO_CAPACITY: FailureRule(Scope.OFFER, at_once=True, wait=Wait.NO_CAPACITY),
    FailureCause.QUOTA: FailureRule(Scope.OFFER, at_once=True, wait=Wait.QUOTA),
    FailureCause.PREEMPTED: FailureRule(Scope.OFFER, at_once=True, wait=Wait.NO_CAPACITY),
    FailureCause.IMAGE: FailureRule(Scope.REGION, at_once=True),
    FailureCause.AUTH_KEY: FailureRule(Scope.NOTHING, at_once=False),  # nothing is rented while the key is dead
    FailureCause.SCRIPT: _IN_A_ROW,
    FailureCause.TAILNET: _IN_A_ROW,
    FailureCause.NO_IPV4: _IN_A_ROW,  # the first one counts for all: `backoff.tripped`
    FailureCause.AGENT: _IN_A_ROW,
    FailureCause.ADMISSION: _IN_A_ROW,
    FailureCause.CONFIGURE: _IN_A_ROW,
    FailureCause.SETTINGS: _IN_A_ROW,  # when all of a row are such, the pool cools down: `cooldowns.tripped`
    FailureCause.PATH: _IN_A_ROW,
    FailureCause.TEST: _IN_A_ROW,
    FailureCause.UNFIT: FailureRule(Scope.NOTHING, at_once=False),  # `meshd.plan.replace` spaces the replacements
    FailureCause.AWAY: FailureRule(Scope.NOTHING, at_once=False),
    FailureCause.ENDED: _IN_A_ROW,
    FailureCause.UNKNOWN: _IN_A_ROW,
}


def rule_of(cause: FailureCause) -> FailureRule:
    """What follows from a failure of this kind."""
    return RULES[cause]


def counts_in_a_row(cause: FailureCause) -> bool:
    """Whether failures of this kind count towards a breaker. One that the cloud explains says nothing about others."""
    return cause is FailureCause.NONE or RULES[cause] is _IN_A_ROW


# -- the cause in a cloud's words -------------------------------------------------------------------------------------

_WORDS: tuple[tuple[FailureCause, re.Pattern[str]], ...] = (
    # EC2: StateReason codes of the API reference; GCE: operation errors; RunPod, Lambda, Paperspace: words that their
    # users have reported. Each adapter puts code and text of the vendor into `Instance.reason`.
    (
        FailureCause.NO_CAPACITY,
        re.compile(
            r"insufficient[\w -]{0,40}capacity|unfulfillable ?capacity|resource_pool_exhausted|stock_?out|"
            r"out of (stock|capacity)|sold out|no (longer any|more|free|available)? ?(instances|capacity|machines)\b|"
            r"not? have (enough|sufficient)|not enough (resources|capacity|free|gpus)|capacity (is )?(not|un)available|"
            r"could not be placed|spotmaxpricetoolow|min_count_not_reached",
            re.I,
        ),
    ),
    (
        FailureCause.QUOTA,
        re.compile(r"quota|limit_?exceeded|limit (was |is |has been )?exceeded|spend(ing)? limit", re.I),
    ),
    (FailureCause.PREEMPTED, re.compile(r"preempt|spotinstance(termination|shutdown)|took the spot", re.I)),
    (
        FailureCause.IMAGE,
        re.compile(
            r"invalid(snapshot|ami|ebs|kms)|client\.internalerror|image[\w ':/.-]{0,80}(not found|not exist|cannot|"
            r"could not|fail)|(pull|unpack)[\w ]{0,20} image|imagepull|manifest unknown",
            re.I,
        ),
    ),
)
_POWERED_OFF = re.compile(r"instanceinitiatedshutdown", re.I)


def cause_of_words(words: str) -> FailureCause:
    """The kind of failure that a cloud's words name; ENDED when they name none. Of several the first one counts."""
    found = [(match.start(), cause) for cause, pattern in _WORDS if (match := pattern.search(words)) is not None]
    return min(found, key=lambda one: one[0])[1] if found else FailureCause.ENDED


def cause_of_end(state: InstanceState, words: str, *, joined: bool) -> FailureCause:
    """Why a cloud ended a machine.

    Args:
        state: the instance's state.
        words: the cloud's own words.
        joined: whether the machine had joined. If so, its start script is not the cause of powering off.
    """
    if state is InstanceState.PREEMPTED:
        return FailureCause.PREEMPTED
    cause = cause_of_words(words)
    stopped = state is InstanceState.STOPPED or _POWERED_OFF.search(words) is not None
    if cause is FailureCause.ENDED and stopped and not joined:
        return FailureCause.SCRIPT
    return cause
