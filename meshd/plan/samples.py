"""PURE: samples of the cluster over time: how they are made coarser, and what a plot of some span is made of.

Every figure is a mean that remembers of how many values it is, so that samples can be joined in any order. A figure
that nobody knew at the time has no mean: unknown is not 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

MINUTE_S: Final = 60
QUARTER_S: Final = 900
DAY_S: Final = 86_400
KEPT: Final[Mapping[int, int]] = {MINUTE_S: 1440, QUARTER_S: 2976, DAY_S: 731}
"""How many samples are kept, by their length in seconds: a day, 31 days, two years."""
POINTS_MAX: Final = 240
"""The most points of a plot."""


class Figure(StrEnum):
    """What is sampled.

    JOIN_S is how long machines took from their create call until they were READY, in seconds.
    """

    GPUS_WANTED = "gpus_wanted"
    GPUS_READY = "gpus_ready"
    GPUS_BUSY = "gpus_busy"
    JOBS_RUNNING = "jobs_running"
    JOBS_PENDING = "jobs_pending"
    USD_PER_HOUR = "usd_per_hour"
    JOIN_S = "join_s"


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean of `count` values that are `total` together."""

    total: float
    count: int = 1

    @property
    def value(self) -> float:
        """The mean."""
        return self.total / self.count

    def __add__(self, other: Mean) -> Mean:
        return Mean(self.total + other.total, self.count + other.count)


Means = Mapping[Figure, Mean]


@dataclass(frozen=True, slots=True)
class Sample:
    """What was known of a stretch of time that begins at `at`."""

    at: datetime
    means: Means


@dataclass(frozen=True, slots=True)
class Span:
    """A span of time that a plot shows, until now.

    Attributes:
        step_s: the length of the samples that it is made of, in seconds.
    """

    name: str
    title: str
    length: timedelta
    step_s: int


SPANS: Final = (
    Span("hour", "the last hour", timedelta(hours=1), MINUTE_S),
    Span("day", "the last day", timedelta(days=1), MINUTE_S),
    Span("week", "the last week", timedelta(days=7), QUARTER_S),
    Span("month", "the last month", timedelta(days=31), QUARTER_S),
    Span("year", "the last year", timedelta(days=366), DAY_S),
    Span("two-years", "the last two years", timedelta(days=731), DAY_S),
)


def begin(at: datetime, step_s: int) -> datetime:
    """When the stretch of `step_s` seconds began in which a time lies."""
    return datetime.fromtimestamp(int(at.timestamp()) // step_s * step_s, UTC)


def joined(one: Means, other: Means) -> Means:
    """Both together."""
    return {
        figure: one[figure] + other[figure] if figure in one and figure in other else one.get(figure) or other[figure]
        for figure in Figure
        if figure in one or figure in other
    }


def points(samples: Iterable[Sample], span: Span, now: datetime, most: int = POINTS_MAX) -> list[Sample]:
    """What a plot shows: samples joined to `most` at most, oldest first.

    Args:
        samples: of the span's step, in any order; those outside of the span are left out.
        span: what is shown.
        now: its end.
        most: points.
    """
    step_s = width_s(span, most)
    first, found = begin(now - span.length, step_s), dict[datetime, Means]()
    for sample in samples:
        at = begin(sample.at, step_s)
        if first < at <= now:
            found[at] = joined(found.get(at, {}), sample.means)
    return [Sample(at, found[at]) for at in sorted(found)]


def width_s(span: Span, most: int = POINTS_MAX) -> int:
    """How many seconds a point of a plot stands for."""
    steps = int(span.length.total_seconds()) // span.step_s
    return span.step_s * max(1, -(-steps // most))


def runs(points_: Sequence[Sample], figure: Figure, step_s: int) -> list[list[tuple[datetime, float]]]:
    """The stretches in which a figure is known, each for a line of its own: there is none across a gap."""
    found: list[list[tuple[datetime, float]]] = []
    for point in points_:
        if (mean := point.means.get(figure)) is None:
            continue
        if not found or point.at - found[-1][-1][0] > timedelta(seconds=1.5 * step_s):
            found.append([])
        found[-1].append((point.at, mean.value))
    return found
