"""Shortens long and repeated messages, e.g. the same one from many zones. `--verbose` shows all. No I/O."""

from __future__ import annotations

import re
from collections.abc import Sequence

from meshd.api.schema import AttemptRow, ProblemView

TEXT_MAX = 240
MESSAGE_MAX = 120
_NAMES_MAX = 3
_MERGE_MIN = 20
"""Shorter messages are not worth merging."""

_PLACES = re.compile(r"\b[a-z]{2,}(-[a-z]+)+-?\d+(-?[a-z])?\b|\b[A-Z]{2}-[A-Z]{2}-\d\b|\b\d{2}:\d{2}:\d{2}\b")
_IDS = re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b[a-z]+-[0-9a-f]{8,}\b|\b[0-9a-f]{16,}\b")


def shorten(text: str, limit: int = TEXT_MAX) -> str:
    """The beginning of a text, cut between two words."""
    if len(text) <= limit:
        return text
    head = text[:limit].rpartition(" ")[0] or text[:limit]
    return f"{head.rstrip(',;:.')} ..."


def normalise(message: str) -> str:
    """A cloud's message without what differs from zone to zone and from call to call."""
    return _IDS.sub("ID", _PLACES.sub("PLACE", message))


def merge_messages(text: str) -> str:
    """Merge the equal messages in a list `subject: message; ...`: each message once, after all its subjects."""
    subjects: dict[str, list[str]] = {}
    first: dict[str, str] = {}
    for part in text.split("; "):
        subject, colon, message = part.partition(": ")
        key = normalise(message) if colon and len(message) >= _MERGE_MIN else part
        subjects.setdefault(key, []).append(subject if colon else part)
        first.setdefault(key, part)
    parts = [
        first[key] if len(named) == 1 else f"{_first_names(named)}: {first[key].partition(': ')[2]}"
        for key, named in subjects.items()
    ]
    return "; ".join(parts)


def _first_names(names: Sequence[str]) -> str:
    more = len(names) - _NAMES_MAX
    return ", ".join(names[:_NAMES_MAX]) + (f" and {more} more" if more > 0 else "")


def merge_problems(problems: Sequence[ProblemView]) -> list[ProblemView]:
    """Merge problems that differ only in the machine: one problem, which names the other machines."""
    groups: dict[tuple[str, ...], list[ProblemView]] = {}
    for problem in problems:
        name = problem.machine
        about = (problem.text.replace(name, "*"), problem.cure.replace(name, "*")) if name else (problem.text, "")
        key = (problem.severity, problem.pool, normalise(about[0]), about[1], "" if name else problem.text)
        groups.setdefault(key, []).append(problem)
    return [found[0] if len(found) == 1 else _with_others(found) for found in groups.values()]


def _with_others(found: Sequence[ProblemView]) -> ProblemView:
    others = [problem.machine for problem in found[1:]]
    return found[0].model_copy(update={"text": f"{found[0].text}; the same for {_first_names(others)}"})


def merge_attempts(attempts: Sequence[AttemptRow]) -> list[AttemptRow]:
    """Merge consecutive attempts at one provider that got the same answer: one row, which counts the other offers."""
    rows: list[AttemptRow] = []
    counts: list[int] = []
    for attempt in attempts:
        last = rows[-1] if rows else None
        same = last is not None and (last.provider, last.outcome) == (attempt.provider, attempt.outcome)
        if last is not None and same and attempt.words and normalise(last.words) == normalise(attempt.words):
            counts[-1] += 1
        else:
            rows.append(attempt)
            counts.append(1)
    return [
        row if count == 1 else row.model_copy(update={"offer": f"{row.offer} and {count - 1} more"})
        for row, count in zip(rows, counts, strict=True)
    ]
