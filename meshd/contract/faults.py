"""The faults that a cloud's stand-in can inject, and the engine that decides which of them hit a call."""

from __future__ import annotations

import random
import threading
from collections import Counter
from dataclasses import dataclass, replace
from enum import StrEnum


class FaultKind(StrEnum):
    """What can go wrong. A comment says what `CloudFault.seconds` means for this kind."""

    NO_CAPACITY = "no_capacity"
    QUOTA = "quota"
    THROTTLED = "throttled"  # seconds: the Retry-After header; 0 for no header
    AUTH = "auth"  # the credential is wrong, or lacks a permission
    EXPIRED = "expired"  # the credential was valid once
    INVALID = "invalid"
    ERROR_BEFORE = "error_before"  # a 5xx; the call had no effect
    ERROR_AFTER = "error_after"  # a 5xx; the call had its effect
    CUT_BEFORE = "cut_before"  # the connection breaks; the call had no effect
    CUT_AFTER = "cut_after"  # the connection breaks; the call had its effect
    HTML = "html"  # an HTML page from a gateway; the call had no effect
    HTML_AFTER = "html_after"  # an HTML page with status 200; the call had its effect
    SLOW = "slow"  # seconds: real time until the answer; the effect is immediate
    UNKNOWN_FIELDS = "unknown_fields"
    UNKNOWN_STATE = "unknown_state"
    REGRESSED = "regressed"  # a running machine is shown as booting
    SMALL_PAGES = "small_pages"  # a list has two items per page
    PAGE_FAILS = "page_fails"  # two items per page, and every page after the first is a 5xx
    LIST_LAG = "list_lag"  # seconds: how long lists do not show the new machine
    LIST_PART = "list_part"  # seconds: how long lists show only the first of the machines that one call made
    FRESH_NOT_FOUND = "fresh_not_found"  # seconds: how long its id is answered with "not found"
    NEVER_BOOTS = "never_boots"
    NO_ADDRESS = "no_address"
    DIES = "dies"  # seconds: after the launch
    NEVER_ENDS = "never_ends"
    DUPLICATE = "duplicate"  # the cloud makes a second machine with the same name
    TOO_FEW = "too_few"  # one call makes one machine fewer than asked, and says nothing
    TOO_MANY = "too_many"  # one call makes one machine more than asked
    PART_REFUSED = "part_refused"  # one call makes half of the machines, and is refused then; they stay
    NEVER_DONE = "never_done"  # one call makes half of the machines, and its operation never ends
    SHOWN_TWICE = "shown_twice"  # the answer shows the first machine in the place of the last, too
    OTHERS_SHOWN = "others_shown"  # the answer is that of another call
    UNTAGGED = "untagged"  # the new machines have none of their tags
    IMAGE_FAILS = "image_fails"  # the image that the call begins to make fails
    DENIED = "denied"  # the credential lacks the permission named in `operation`, until cleared


#: Faults that belong to what a launch makes, and to its answer.
LIFECYCLE_FAULTS = frozenset(
    {
        FaultKind.LIST_LAG,
        FaultKind.LIST_PART,
        FaultKind.FRESH_NOT_FOUND,
        FaultKind.NEVER_BOOTS,
        FaultKind.NO_ADDRESS,
        FaultKind.DIES,
        FaultKind.NEVER_ENDS,
        FaultKind.DUPLICATE,
        FaultKind.TOO_FEW,
        FaultKind.TOO_MANY,
        FaultKind.PART_REFUSED,
        FaultKind.NEVER_DONE,
        FaultKind.SHOWN_TWICE,
        FaultKind.OTHERS_SHOWN,
        FaultKind.UNTAGGED,
    }
)
#: Faults that change what an answer shows, not whether there is one.
CONTENT_FAULTS = frozenset(
    {
        FaultKind.UNKNOWN_FIELDS,
        FaultKind.UNKNOWN_STATE,
        FaultKind.REGRESSED,
        FaultKind.SMALL_PAGES,
        FaultKind.PAGE_FAILS,
        FaultKind.IMAGE_FAILS,
    }
)
#: Faults that replace the answer of a call that had its effect.
AFTER_EFFECT = frozenset({FaultKind.ERROR_AFTER, FaultKind.CUT_AFTER, FaultKind.HTML_AFTER, FaultKind.SLOW})
CUT_FAULTS = frozenset({FaultKind.CUT_BEFORE, FaultKind.CUT_AFTER})


class When(StrEnum):
    """Which calls a fault hits."""

    NEXT = "next"  # the next `times` calls
    ALWAYS = "always"
    RANDOM = "random"  # each call with `probability`


@dataclass(frozen=True, slots=True)
class CloudFault:
    """One fault to inject.

    Attributes:
        operation: launch, get, list, terminate, offers, prices, check, console, create_image, images,
            delete_image or other; "*" for any. Lifecycle faults
            always hit launches. For FaultKind.DENIED, the vendor's name of a permission.
        status: HTTP status of error_before and error_after.
        skip: how many matching calls to let through first.
    """

    kind: FaultKind
    operation: str = "*"
    when: When = When.NEXT
    times: int = 1
    probability: float = 1.0
    seconds: float = 0.0
    status: int = 500
    skip: int = 0

    def applies(self, operation: str) -> bool:
        """Whether the fault can hit a call of this operation."""
        if self.kind is FaultKind.DENIED:
            return False
        if self.kind in LIFECYCLE_FAULTS:
            return operation == "launch"
        return self.operation in ("*", operation)


@dataclass(frozen=True, slots=True)
class CallFaults:
    """The faults that hit one call.

    Attributes:
        answer: the one that replaces the answer.
        content: those that change what the answer shows.
        lifecycle: those of the machine that the call makes.
    """

    answer: CloudFault | None = None
    content: frozenset[FaultKind] = frozenset()
    lifecycle: tuple[CloudFault, ...] = ()

    @property
    def before(self) -> CloudFault | None:
        """The fault that takes the place of the call's effect."""
        return self.answer if self.answer and self.answer.kind not in AFTER_EFFECT else None

    @property
    def after(self) -> CloudFault | None:
        """The fault that replaces the answer after the call had its effect."""
        return self.answer if self.answer and self.answer.kind in AFTER_EFFECT else None

    def lifecycle_fault(self, kind: FaultKind) -> CloudFault | None:
        """The lifecycle fault of this kind; None when the machine has none."""
        return next((fault for fault in self.lifecycle if fault.kind is kind), None)

    def has(self, kind: FaultKind) -> bool:
        """Whether the machine has a lifecycle fault of this kind."""
        return self.lifecycle_fault(kind) is not None


class FaultEngine:
    """The faults of one cloud. Thread-safe.

    Args:
        seed: for `When.RANDOM`, so that a run can be repeated.
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)  # noqa: S311  no secret
        self._faults: list[CloudFault] = []
        self._calls: Counter[str] = Counter()
        self._hits: Counter[FaultKind] = Counter()
        self._lock = threading.Lock()

    def inject(self, fault: CloudFault) -> None:
        """Add a fault."""
        with self._lock:
            self._faults.append(fault)

    def reseed(self, seed: int) -> None:
        """Start the random sequence of `When.RANDOM` from a seed."""
        with self._lock:
            self._random.seed(seed)

    def clear(self) -> None:
        """Remove all faults. Machines keep the lifecycle faults that they were launched with."""
        with self._lock:
            self._faults.clear()

    def pending(self) -> list[CloudFault]:
        """The faults that can still hit a call."""
        with self._lock:
            return list(self._faults)

    def calls(self, operation: str) -> int:
        """How many calls of this operation there were so far."""
        with self._lock:
            return self._calls[operation]

    def hits(self, kind: FaultKind) -> int:
        """How many calls a fault of this kind has hit so far."""
        with self._lock:
            return self._hits[kind]

    def denied(self, *permissions: str) -> str:
        """The first of these permissions that the credential lacks; "" when it has all."""
        with self._lock:
            lacking = {fault.operation for fault in self._faults if fault.kind is FaultKind.DENIED}
        return next((permission for permission in permissions if permission in lacking), "")

    def take(self, operation: str) -> CallFaults:
        """Count a call and return the faults that hit it; uses up faults of `When.NEXT`."""
        with self._lock:
            self._calls[operation] += 1
            answer: CloudFault | None = None
            content: set[FaultKind] = set()
            lifecycle: list[CloudFault] = []
            kept: list[CloudFault] = []
            for fault in self._faults:
                if fault.skip and fault.applies(operation):
                    kept.append(replace(fault, skip=fault.skip - 1))
                    continue
                replaces_answer = fault.kind not in LIFECYCLE_FAULTS and fault.kind not in CONTENT_FAULTS
                hit = fault.applies(operation) and not (replaces_answer and answer) and self._by_chance(fault)
                if hit and fault.kind in CONTENT_FAULTS:
                    content.add(fault.kind)
                elif hit and fault.kind in LIFECYCLE_FAULTS:
                    lifecycle.append(fault)
                elif hit:
                    answer = fault
                kept += _remaining(fault, hit)
                self._hits[fault.kind] += hit
            self._faults = kept
            return CallFaults(answer, frozenset(content), tuple(lifecycle))

    def _by_chance(self, fault: CloudFault) -> bool:
        return fault.when is not When.RANDOM or self._random.random() < fault.probability


def _remaining(fault: CloudFault, hit: bool) -> list[CloudFault]:
    if not hit or fault.when is not When.NEXT:
        return [fault]
    return [replace(fault, times=fault.times - 1)] if fault.times > 1 else []
