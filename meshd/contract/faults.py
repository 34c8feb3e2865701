"""What goes wrong in a cloud, in which call, and when: the words for it, and the engine that a stand-in asks."""

from __future__ import annotations

import random
import threading
from collections import Counter
from dataclasses import dataclass, replace
from enum import StrEnum


class Kind(StrEnum):
    """What can go wrong. `seconds` of the fault means what the comment says."""

    NO_CAPACITY = "no_capacity"
    QUOTA = "quota"
    THROTTLED = "throttled"  # seconds: Retry-After; 0 for none
    AUTH = "auth"  # the credential is wrong, or may not do this
    EXPIRED = "expired"  # the credential was right once
    INVALID = "invalid"
    ERROR_BEFORE = "error_before"  # a 5xx, and nothing happened
    ERROR_AFTER = "error_after"  # a 5xx, but it happened
    CUT_BEFORE = "cut_before"  # the connection breaks, and nothing happened
    CUT_AFTER = "cut_after"  # the connection breaks, but it happened
    HTML = "html"  # an HTML page from something in between, and nothing happened
    HTML_AFTER = "html_after"  # an HTML page with status 200, but it happened
    SLOW = "slow"  # seconds: real time until the answer; it happens at once
    UNKNOWN_FIELDS = "unknown_fields"
    UNKNOWN_STATE = "unknown_state"
    REGRESSED = "regressed"  # a machine that runs is shown as it was while it booted
    SMALL_PAGES = "small_pages"  # a list comes two at a time
    PAGE_FAILS = "page_fails"  # so it does, and every page but the first is answered with a 5xx
    LIST_LAG = "list_lag"  # seconds: how long lists miss the new machine
    FRESH_NOT_FOUND = "fresh_not_found"  # seconds: how long its id is denied
    NEVER_BOOTS = "never_boots"
    NO_ADDRESS = "no_address"
    DIES = "dies"  # seconds: after launch
    NEVER_ENDS = "never_ends"
    DUPLICATE = "duplicate"  # a second machine with the same name
    DENIED = "denied"  # the credential lacks the permission `operation`, in the vendor's words, until cleared


FATES = frozenset(
    {
        Kind.LIST_LAG,
        Kind.FRESH_NOT_FOUND,
        Kind.NEVER_BOOTS,
        Kind.NO_ADDRESS,
        Kind.DIES,
        Kind.NEVER_ENDS,
        Kind.DUPLICATE,
    }
)
LOOKS = frozenset({Kind.UNKNOWN_FIELDS, Kind.UNKNOWN_STATE, Kind.REGRESSED, Kind.SMALL_PAGES, Kind.PAGE_FAILS})
AFTER = frozenset({Kind.ERROR_AFTER, Kind.CUT_AFTER, Kind.HTML_AFTER, Kind.SLOW})
CUTS = frozenset({Kind.CUT_BEFORE, Kind.CUT_AFTER})


class When(StrEnum):
    """How often a fault strikes."""

    NEXT = "next"  # the next `times` calls
    ALWAYS = "always"
    RANDOM = "random"  # each call with `probability`


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong.

    Attributes:
        operation: launch, get, list, terminate, offers, prices, check, other; "*" for any. Faults of a machine's life
            always belong to launch. For Kind.DENIED the vendor's name of a permission.
        status: HTTP status of error_before and error_after.
        skip: so many calls that it applies to are let through first.
    """

    kind: Kind
    operation: str = "*"
    when: When = When.NEXT
    times: int = 1
    probability: float = 1.0
    seconds: float = 0.0
    status: int = 500
    skip: int = 0

    def applies(self, operation: str) -> bool:
        """Whether a call of this operation can be struck."""
        if self.kind is Kind.DENIED:
            return False
        if self.kind in FATES:
            return operation == "launch"
        return self.operation in ("*", operation)


@dataclass(frozen=True, slots=True)
class Struck:
    """The faults that strike one call: at most one that spoils the answer, and any of the others."""

    answer: Fault | None = None
    looks: frozenset[Kind] = frozenset()
    fates: tuple[Fault, ...] = ()

    @property
    def before(self) -> Fault | None:
        """The fault that takes the place of the call's effect."""
        return self.answer if self.answer and self.answer.kind not in AFTER else None

    @property
    def after(self) -> Fault | None:
        """The fault that spoils the answer of a call that has had its effect."""
        return self.answer if self.answer and self.answer.kind in AFTER else None

    def fate(self, kind: Kind) -> Fault | None:
        """The fate of this kind for the machine that the call makes; None when it is spared."""
        return next((fault for fault in self.fates if fault.kind is kind), None)


class FaultEngine:
    """Holds the faults of one cloud. Safe to use from several threads.

    Args:
        seed: of the dice for `When.RANDOM`, so that a run can be repeated.
    """

    def __init__(self, seed: int = 0) -> None:
        self._dice = random.Random(seed)  # noqa: S311  no secret
        self._faults: list[Fault] = []
        self._seen: Counter[str] = Counter()
        self._struck: Counter[Kind] = Counter()
        self._lock = threading.Lock()

    def inject(self, fault: Fault) -> None:
        """Add a fault."""
        with self._lock:
            self._faults.append(fault)

    def reseed(self, seed: int) -> None:
        """Throw the dice anew from a seed."""
        with self._lock:
            self._dice.seed(seed)

    def clear(self) -> None:
        """Drop all faults. Machines keep the fate that they were born with."""
        with self._lock:
            self._faults.clear()

    def all(self) -> list[Fault]:
        """The faults that can still strike."""
        with self._lock:
            return list(self._faults)

    def seen(self, operation: str) -> int:
        """How many calls of this operation have come so far."""
        with self._lock:
            return self._seen[operation]

    def denied(self, *permissions: str) -> str:
        """The first of these permissions that the credential lacks; "" when it has them all."""
        with self._lock:
            lacking = {fault.operation for fault in self._faults if fault.kind is Kind.DENIED}
        return next((permission for permission in permissions if permission in lacking), "")

    def struck(self, kind: Kind) -> int:
        """How many calls a fault of this kind has struck so far."""
        with self._lock:
            return self._struck[kind]

    def take(self, operation: str) -> Struck:
        """What strikes this call; uses up the faults of `When.NEXT`."""
        with self._lock:
            self._seen[operation] += 1
            answer: Fault | None = None
            looks: set[Kind] = set()
            fates: list[Fault] = []
            kept: list[Fault] = []
            for fault in self._faults:
                if fault.skip and fault.applies(operation):
                    kept.append(replace(fault, skip=fault.skip - 1))
                    continue
                spoils = fault.kind not in FATES and fault.kind not in LOOKS
                hit = fault.applies(operation) and not (spoils and answer) and self._strikes(fault)
                if hit and fault.kind in LOOKS:
                    looks.add(fault.kind)
                elif hit and fault.kind in FATES:
                    fates.append(fault)
                elif hit:
                    answer = fault
                kept += _rest(fault, hit)
                self._struck[fault.kind] += hit
            self._faults = kept
            return Struck(answer, frozenset(looks), tuple(fates))

    def _strikes(self, fault: Fault) -> bool:
        return fault.when is not When.RANDOM or self._dice.random() < fault.probability


def _rest(fault: Fault, hit: bool) -> list[Fault]:
    if not hit or fault.when is not When.NEXT:
        return [fault]
    return [replace(fault, times=fault.times - 1)] if fault.times > 1 else []
