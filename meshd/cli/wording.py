"""Long texts of clouds made short for people: what many zones say alike is said once. `--verbose` shows all. No I/O."""

from __future__ import annotations

import re
from collections.abc import Sequence

from meshd.api.schema import AttemptRow, ProblemView

TEXT_MAX = 240
WORDS_MAX = 120
_NAMES_SHOWN = 3
_ALIKE_MIN = 20
"""So long the words of a cloud are before they are worth saying once."""

_PLACES = re.compile(r"\b[a-z]{2,}(-[a-z]+)+-?\d+(-?[a-z])?\b|\b[A-Z]{2}-[A-Z]{2}-\d\b|\b\d{2}:\d{2}:\d{2}\b")
_IDS = re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b[a-z]+-[0-9a-f]{8,}\b|\b[0-9a-f]{16,}\b")


def short(text: str, limit: int = TEXT_MAX) -> str:
    """The beginning of a text, cut between two words."""
    if len(text) <= limit:
        return text
    head = text[:limit].rpartition(" ")[0] or text[:limit]
    return f"{head.rstrip(',;:.')} ..."


def alike(words: str) -> str:
    """A cloud's words without what differs from zone to zone and from call to call."""
    return _IDS.sub("ID", _PLACES.sub("PLACE", words))


def once(text: str) -> str:
    """A list of `subject: words; ...` in which words that are alike stand once, behind all their subjects."""
    subjects: dict[str, list[str]] = {}
    first: dict[str, str] = {}
    for part in text.split("; "):
        subject, colon, words = part.partition(": ")
        key = alike(words) if colon and len(words) >= _ALIKE_MIN else part
        subjects.setdefault(key, []).append(subject if colon else part)
        first.setdefault(key, part)
    parts = [
        first[key] if len(named) == 1 else f"{_some(named)}: {first[key].partition(': ')[2]}"
        for key, named in subjects.items()
    ]
    return "; ".join(parts)


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def same_problems(problems: Sequence[ProblemView]) -> list[ProblemView]:
    """Problems of which those that differ in the machine alone are one, with the others' names."""
    groups: dict[tuple[str, ...], list[ProblemView]] = {}
    for problem in problems:
        name = problem.machine
        about = (problem.text.replace(name, "*"), problem.cure.replace(name, "*")) if name else (problem.text, "")
        key = (problem.severity, problem.pool, alike(about[0]), about[1], "" if name else problem.text)
        groups.setdefault(key, []).append(problem)
    return [found[0] if len(found) == 1 else _with_others(found) for found in groups.values()]


def _with_others(found: Sequence[ProblemView]) -> ProblemView:
    others = [problem.machine for problem in found[1:]]
    return found[0].model_copy(update={"text": f"{found[0].text}; the same for {_some(others)}"})


def same_rungs(rungs: Sequence[AttemptRow]) -> list[AttemptRow]:
    """Offers tried one after the other to which a cloud said the same, as one row."""
    rows: list[AttemptRow] = []
    counts: list[int] = []
    for rung in rungs:
        last = rows[-1] if rows else None
        same = last is not None and (last.provider, last.outcome) == (rung.provider, rung.outcome)
        if last is not None and same and rung.words and alike(last.words) == alike(rung.words):
            counts[-1] += 1
        else:
            rows.append(rung)
            counts.append(1)
    return [
        row if count == 1 else row.model_copy(update={"offer": f"{row.offer} and {count - 1} more"})
        for row, count in zip(rows, counts, strict=True)
    ]
