from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from meshd.plan.samples import KEPT, SPANS, Figure, Mean, Means, Sample, begin, joined, points, runs, width_s
from tests.unit.worlds import NOW

RUN, READY = Figure.JOBS_RUNNING, Figure.GPUS_READY
DAY = next(span for span in SPANS if span.name == "day")
HOUR = next(span for span in SPANS if span.name == "hour")
MEANS = st.dictionaries(
    st.sampled_from(Figure), st.builds(Mean, st.integers(0, 1000).map(float), st.integers(1, 9)), max_size=4
)


def at(minute: int, value: float = 1.0) -> Sample:
    return Sample(begin(NOW, 60) - timedelta(minutes=minute), {RUN: Mean(value)})


@given(MEANS, MEANS, MEANS)
def test_samples_are_joined_in_any_order(one: Means, other: Means, third: Means) -> None:
    assert joined(one, other) == joined(other, one)
    assert joined(joined(one, other), third) == joined(one, joined(other, third))


def test_what_nobody_knew_counts_for_nothing() -> None:
    assert joined({RUN: Mean(4.0)}, {READY: Mean(2.0)}) == {RUN: Mean(4.0), READY: Mean(2.0)}
    assert joined({RUN: Mean(4.0)}, {RUN: Mean(2.0)})[RUN].value == 3.0


def test_a_plot_has_few_points_and_each_is_the_mean_of_its_samples() -> None:
    day = points((at(minute, float(minute % 6)) for minute in range(1440)), DAY, NOW)
    assert width_s(DAY) == 360 and 235 <= len(day) <= 240
    assert all(sample.means[RUN].value == 2.5 for sample in day[1:-1])
    hour = points((at(minute) for minute in range(1440)), HOUR, NOW)
    assert len(hour) == 60 and hour[-1].at == begin(NOW, 60)


def test_there_is_no_line_across_a_gap() -> None:
    found = runs(points([at(50), at(49), at(20), at(19), at(18)], HOUR, NOW), RUN, 60)
    assert [len(run) for run in found] == [2, 3]
    assert runs(points([at(3)], HOUR, NOW), READY, 60) == []


def test_every_span_fits_into_what_is_kept() -> None:
    assert all(span.length.total_seconds() <= KEPT[span.step_s] * span.step_s for span in SPANS)
