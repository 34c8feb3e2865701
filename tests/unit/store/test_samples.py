from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from meshd.plan.samples import DAY_S, KEPT, MINUTE_S, QUARTER_S, Figure, Mean, begin
from meshd.store.journal import Journal
from meshd.store.samples import Samples
from tests.unit.worlds import NOW

RUN = Figure.JOBS_RUNNING
LONG = timedelta(days=4000)


def test_a_minute_counts_in_its_quarter_and_its_day(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.db")
    samples, first = Samples(journal), begin(NOW, DAY_S)
    assert samples.last(NOW) is None
    for minute in range(30):
        samples.add(first + timedelta(minutes=minute), {RUN: Mean(float(minute))})
    assert samples.last(NOW) == first + timedelta(minutes=29)
    quarters = samples.read(QUARTER_S, first, NOW)
    assert [(one.at, one.means[RUN].value) for one in quarters] == [(first, 7.0), (first + timedelta(minutes=15), 22.0)]
    (day,) = samples.read(DAY_S, first, NOW)
    assert day.means[RUN] == Mean(435.0, 30)
    journal.close()


def test_the_rows_are_bounded_and_the_newest_stay(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.db")
    samples = Samples(journal)
    begun = NOW - LONG
    with journal.together():
        for number in range(KEPT[MINUTE_S] + 5):
            samples.add(begun + timedelta(minutes=number), {RUN: Mean(1.0)})
        for number in range(KEPT[DAY_S] + 5):
            samples.add(begun + timedelta(days=number + 2), {RUN: Mean(1.0)})
    assert dict(journal.rows("SELECT step_s, count(*) FROM samples GROUP BY step_s")) == {
        MINUTE_S: KEPT[MINUTE_S], QUARTER_S: 97 + KEPT[DAY_S] + 5, DAY_S: KEPT[DAY_S],
    }  # fmt: skip
    assert samples.last(NOW) == begin(begun + timedelta(days=KEPT[DAY_S] + 6), MINUTE_S)
    journal.close()


def test_samples_of_a_clock_that_was_wrong_go(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.db")
    samples = Samples(journal)
    samples.add(NOW, {RUN: Mean(1.0)})
    samples.add(NOW + LONG, {RUN: Mean(9.0)})
    assert samples.last(NOW) == begin(NOW, MINUTE_S)
    samples.add(NOW + timedelta(minutes=1), {RUN: Mean(3.0)})
    for step_s in KEPT:
        assert max(one.at for one in samples.read(step_s, NOW - LONG, NOW + 2 * LONG)) < NOW + timedelta(days=1)
    assert len(samples.read(MINUTE_S, NOW - LONG, NOW)) == 1
    journal.close()
