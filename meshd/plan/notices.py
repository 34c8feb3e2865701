"""What is told to whom, and when. PURE.

A receiver is told of a problem once it has lasted, again when it grows or does not end, and of its end only when it was
told of the problem. A problem that comes and goes is one problem until it stays away. What lasted long enough waits a
little for others, so that one cause makes one message. At its limit per hour a receiver waits; nothing is forgotten
meanwhile: the next message has what is true then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

ENTRIES_MAX: Final = 200
"""Problems that are remembered for one receiver; those beyond are told when there is room."""
SEVERITIES: Final = ("info", "warning", "error")
RATE_WINDOW: Final = timedelta(hours=1)
FIRST_PAUSE_S: Final = 10.0
LONGEST_PAUSE_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Alert:
    """Problems of one kind that are there now, as one: of one code, pool and machine.

    Attributes:
        key: which one it is, whatever its text says.
        code: a stable code (docs/codes.md).
        severity: one of SEVERITIES.
        text, cure: for people.
        since: when it began, where that is known.
        pool, machine: what it is about; "" for none.
        count: how many problems it stands for.
    """

    key: str
    code: str
    severity: str
    text: str
    cure: str = ""
    since: datetime | None = None
    pool: str = ""
    machine: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """What is remembered of an alert for one receiver.

    Attributes:
        alert: as it was seen last.
        seen_at: when meshd first saw it.
        clear_at: since when it is away; None while it is there.
        told_at: when the receiver was last told that it is there; None: never.
        told_count: the highest count that it was told.
    """

    alert: Alert
    seen_at: datetime
    clear_at: datetime | None = None
    told_at: datetime | None = None
    told_count: int = 0


@dataclass(frozen=True, slots=True)
class Told:
    """What one receiver was told; it is in the journal.

    Attributes:
        entries: by the alert's key.
        sent_at: when messages were delivered, those of the last hour.
        failures: deliveries that failed since the last one that did not.
        failed_at: when the last of them failed.
        fault: why, for people.
    """

    entries: Mapping[str, Entry]
    sent_at: tuple[datetime, ...] = ()
    failures: int = 0
    failed_at: datetime | None = None
    fault: str = ""


NOTHING: Final = Told({})


@dataclass(frozen=True, slots=True)
class Rules:
    """How a receiver wants to be told; see the settings `[notify.NAME]`."""

    min_severity: str = "warning"
    after_s: float = 60.0
    group_s: float = 30.0
    repeat_s: float = 86400.0
    resolved_after_s: float = 300.0
    max_per_hour: int = 20


class State(StrEnum):
    """How it stands with a problem in a message."""

    BEGUN = "begun"
    GROWN = "grown"
    STILL = "still"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True)
class Item:
    """One problem of a message; `at` is when it began, `ended_at` when it was over."""

    state: State
    alert: Alert
    at: datetime
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Notice:
    """A message to be sent. `id` is the same for the same content: a receiver knows a repeated delivery by it."""

    id: str
    at: datetime
    items: tuple[Item, ...]


def alert_key(code: str, pool: str = "", machine: str = "", about: str = "") -> str:
    """Which problem it is; the words are free of the separator."""
    return "|".join(word.replace("|", " ")[:80] for word in (code, pool, machine, about))


def merged(alerts: Iterable[Alert]) -> tuple[Alert, ...]:
    """One alert for each key, the worst and first of them with the count of all; worst first."""
    found: dict[str, Alert] = {}
    for alert in alerts:
        known = found.get(alert.key)
        if known is None:
            found[alert.key] = alert
            continue
        worst = alert if SEVERITIES.index(alert.severity) > SEVERITIES.index(known.severity) else known
        since = min((one for one in (alert.since, known.since) if one is not None), default=None)
        found[alert.key] = replace(worst, count=known.count + alert.count, since=since)
    return tuple(sorted(found.values(), key=lambda one: (-SEVERITIES.index(one.severity), one.key)))


def restarted(told: Told) -> Told:
    """What was told, for a new life of meshd: how long something was away while nobody looked is unknown."""
    return replace(told, entries={key: replace(one, clear_at=None) for key, one in told.entries.items()})


def looked(told: Told, alerts: Iterable[Alert], rules: Rules, now: datetime) -> Told:
    """What is remembered after a look at the alerts of now (`merged`)."""
    wanted = SEVERITIES.index(rules.min_severity)
    seen = {one.key: one for one in alerts if SEVERITIES.index(one.severity) >= wanted}
    entries: dict[str, Entry] = {}
    for key, entry in told.entries.items():
        if key in seen:
            entries[key] = replace(entry, alert=seen.pop(key), clear_at=None)
        elif entry.told_at is not None or not _over(entry, rules, now):
            entries[key] = entry if entry.clear_at is not None else replace(entry, clear_at=now)
    for key, alert in seen.items():
        if len(entries) < ENTRIES_MAX:
            entries[key] = Entry(alert, now)
    return replace(told, entries=entries, sent_at=tuple(at for at in told.sent_at if now - RATE_WINDOW < at <= now))


def due(told: Told, rules: Rules, now: datetime, receiver: str = "") -> Notice | None:
    """The message that is to be sent now; None: none yet. `told` is what `looked` made of now's alerts."""
    if len(told.sent_at) >= rules.max_per_hour or not _may_try(told, now):
        return None
    items = [item for entry in told.entries.values() if (item := _item(entry, rules, now)) is not None]
    if not items or not any(_waited(told.entries[item.alert.key], item, rules, now) for item in items):
        return None
    items.sort(key=lambda one: (one.state is State.RESOLVED, -SEVERITIES.index(one.alert.severity), one.alert.key))
    return Notice(_id(receiver, told, items), now, tuple(items))


def delivered(told: Told, notice: Notice, now: datetime) -> Told:
    """What is remembered once the receiver has taken the message."""
    entries = dict(told.entries)
    for item in notice.items:
        entry = entries.get(item.alert.key)
        if entry is None:
            continue
        if item.state is State.RESOLVED:
            # It may have come back while the message was on its way: then it is a new one.
            if entry.clear_at is None:
                entries[item.alert.key] = Entry(entry.alert, now)
            else:
                del entries[item.alert.key]
        else:
            count = max(entry.told_count, item.alert.count)
            entries[item.alert.key] = replace(entry, told_at=now, told_count=count)
    return replace(
        told, entries=entries, sent_at=(*told.sent_at, now)[-1000:], failures=0, failed_at=None, fault=""
    )  # fmt: skip


def failed(told: Told, fault: str, now: datetime) -> Told:
    """What is remembered once a delivery has failed: nothing of it was told."""
    return replace(told, failures=told.failures + 1, failed_at=now, fault=fault)


def pause_s(failures: int) -> float:
    """How long to wait after so many failures before the next try, in seconds."""
    return min(FIRST_PAUSE_S * 2.0 ** min(max(failures - 1, 0), 10), LONGEST_PAUSE_S)


def _may_try(told: Told, now: datetime) -> bool:
    """Whether the pause after a failure is over. A clock that was set back ends it."""
    if told.failed_at is None or now < told.failed_at:
        return True
    return now - told.failed_at >= timedelta(seconds=pause_s(told.failures))


def _over(entry: Entry, rules: Rules, now: datetime) -> bool:
    return entry.clear_at is not None and now - entry.clear_at >= timedelta(seconds=rules.resolved_after_s)


def _item(entry: Entry, rules: Rules, now: datetime) -> Item | None:
    """What there is to tell of an entry now."""
    at = entry.alert.since or entry.seen_at
    if entry.clear_at is not None:
        told = entry.told_at is not None and _over(entry, rules, now)
        return Item(State.RESOLVED, entry.alert, at, entry.clear_at) if told else None
    if entry.told_at is None:
        lasted = now - entry.seen_at >= timedelta(seconds=rules.after_s)
        return Item(State.BEGUN, entry.alert, at) if lasted else None
    if entry.alert.count > entry.told_count:
        quiet = now - entry.told_at >= timedelta(seconds=rules.after_s)
        return Item(State.GROWN, entry.alert, at) if quiet else None
    again = now - entry.told_at >= timedelta(seconds=rules.repeat_s)
    return Item(State.STILL, entry.alert, at) if again else None


def _waited(entry: Entry, item: Item, rules: Rules, now: datetime) -> bool:
    """Whether an item has waited for others for `group_s`; only what begins does."""
    if item.state is not State.BEGUN:
        return True
    return now - entry.seen_at >= timedelta(seconds=rules.after_s + rules.group_s)


def _id(receiver: str, told: Told, items: Iterable[Item]) -> str:
    """A number of the content, without the words that may change from one try to the next."""
    parts = [receiver]
    for item in items:
        entry = told.entries[item.alert.key]
        parts += [item.state, item.alert.key, entry.seen_at.isoformat(), str(entry.told_at), str(item.alert.count)]
    return hashlib.sha256("\n".join(parts).encode("utf-8", "replace")).hexdigest()[:24]
