"""PURE: plots of samples as lines in a drawing, with the same in words and in a table for who cannot see them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from meshd.plan.samples import Figure, Sample, Span, points, runs, width_s

WIDTH, HEIGHT = 520, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 24, 10, 26
TABLE_ROWS_MAX: Final = 24
_TICKS: Final = {
    "hour": (600, "%H:%M"), "day": (4 * 3600, "%H:%M"), "week": (86_400, "%a %d"), "month": (5 * 86_400, "%d %b"),
    "year": (61 * 86_400, "%b %Y"), "two-years": (122 * 86_400, "%b %Y"),
}  # fmt: skip
"""By the name of the span: seconds between two ticks, and how their times are written."""


@dataclass(frozen=True, slots=True)
class Line:
    """A figure of a chart; `per` divides it, e.g. seconds into minutes."""

    figure: Figure
    label: str
    per: float = 1.0


@dataclass(frozen=True, slots=True)
class Chart:
    """What a plot shows.

    Attributes:
        dots: each value is a dot of its own: between two there is nothing.
        whole: there are no parts of it, so its axis has none.
    """

    id: str
    title: str
    unit: str
    lines: tuple[Line, ...]
    dots: bool = False
    whole: bool = False


CHARTS: Final = (
    Chart("gpus", "GPUs", "", (
        Line(Figure.GPUS_READY, "ready"), Line(Figure.GPUS_WANTED, "wanted"), Line(Figure.GPUS_BUSY, "busy"),
    ), whole=True),
    Chart("queue", "Queue", "jobs", (Line(Figure.JOBS_RUNNING, "running"), Line(Figure.JOBS_PENDING, "waiting")),
          whole=True),
    Chart("cost", "Cost", "USD per hour", (Line(Figure.USD_PER_HOUR, "all machines"),)),
    Chart("joins", "Join times", "minutes", (Line(Figure.JOIN_S, "from the order to ready", 60.0),), dots=True),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark of an axis: where it is in the drawing, and what it says."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Drawn:
    """A figure in the drawing.

    Attributes:
        number: from 1 on: its style.
        paths: for `path`, one for each stretch without a gap.
        dots: (x, y) of each value that stands alone.
        says: in words.
    """

    label: str
    number: int
    paths: tuple[str, ...]
    dots: tuple[tuple[float, float], ...]
    says: str


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot, ready to be drawn.

    Attributes:
        describes: all of it in words.
        known: whether there is anything to show.
        rows: for the table: the time, and the value of each line.
    """

    id: str
    title: str
    unit: str
    describes: str
    known: bool
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    lines: tuple[Drawn, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = _LEFT
    right: int = WIDTH - _RIGHT
    top: int = _TOP
    bottom: int = HEIGHT - _BOTTOM
    width: int = WIDTH
    height: int = HEIGHT


def plot(chart: Chart, samples: Sequence[Sample], span: Span, now: datetime) -> Plot:
    """Draw a chart of a span that ends now. `samples` are of the span's step."""
    shown, step_s = points(samples, span, now), width_s(span)
    found = [(line, [[(at, v / line.per) for at, v in run] for run in runs(shown, line.figure, step_s)])
             for line in chart.lines]  # fmt: skip
    values = [value for _, stretches in found for run in stretches for _, value in run]
    top, step = scale(max(values, default=0.0), whole=chart.whole)
    begin = now - span.length

    def x_of(at: datetime) -> float:
        return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * ((at - begin) / span.length), 1)

    def y_of(value: float) -> float:
        return round(HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * (value / top), 1)

    drawn = []
    for number, (line, stretches) in enumerate(found, 1):
        at = [[(x_of(when), y_of(value)) for when, value in run] for run in stretches]
        drawn.append(
            Drawn(
                line.label, number, tuple(_path(run) for run in at if len(run) > 1 and not chart.dots),
                tuple(dot for run in at if len(run) == 1 or chart.dots for dot in run),
                _words(line.label, [value for run in stretches for _, value in run]),
            )
        )  # fmt: skip
    ticks_s, form = _TICKS[span.name]
    first = -(-int(begin.timestamp()) // ticks_s) * ticks_s
    times = (datetime.fromtimestamp(at, UTC) for at in range(first, int(now.timestamp()) + 1, ticks_s))
    unit = f" ({chart.unit})" if chart.unit else ""
    return Plot(
        chart.id, chart.title, chart.unit,
        f"{chart.title}{unit} in {span.title}: {'; '.join(one.says for one in drawn)}.",
        bool(values), tuple(Tick(x_of(at), f"{at:{form}}") for at in times),
        tuple(Tick(y_of(n * step), number_of(n * step)) for n in range(round(top / step) + 1)),
        tuple(drawn), _table(chart, samples, span, now),
    )  # fmt: skip


def scale(most: float, *, whole: bool = False) -> tuple[float, float]:
    """The top of an axis that begins at 0, and the step between its marks: 1, 2 or 5 times a power of ten.

    Args:
        most: the greatest value.
        whole: the step is at least 1.
    """
    if most <= 0:
        return 1.0, 1.0
    rough = most / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    step = max(step, 1.0) if whole else step
    return step * max(1, math.ceil(most / step - 1e-9)), step


def number_of(value: float) -> str:
    """A number as short as it can be read: `0`, `1.5`, `240`."""
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.2g}" if value < 1 else f"{value:.1f}"


def _path(run: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in run)


def _words(label: str, values: Sequence[float]) -> str:
    if not values:
        return f"{label}: not known"
    return (
        f"{label}: {number_of(values[-1])} at the end, between {number_of(min(values))} and {number_of(max(values))}, "
        f"{number_of(sum(values) / len(values))} on average"
    )


def _table(chart: Chart, samples: Sequence[Sample], span: Span, now: datetime) -> tuple[tuple[str, ...], ...]:
    form = "%Y-%m-%d" if span.length > timedelta(days=60) else "%Y-%m-%d %H:%M"
    rows = []
    for point in points(samples, span, now, TABLE_ROWS_MAX):
        means = [(line, point.means.get(line.figure)) for line in chart.lines]
        if any(mean for _, mean in means):
            cells = (number_of(mean.value / line.per) if mean else "-" for line, mean in means)
            rows.append((f"{point.at:{form}}", *cells))
    return tuple(rows)
