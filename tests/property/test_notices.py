"""What is told to a receiver: no problem is told twice without a reason, none that lasts is forgotten, and the end only
of what was told; across failed deliveries and restarts too, with what the real journal keeps.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from meshd.plan.notices import (
    NOTHING,
    Alert,
    Notice,
    Rules,
    State,
    alert_key,
    delivered,
    due,
    failed,
    looked,
    merged,
    restarted,
)
from meshd.store.journal import Journal
from meshd.store.notices import ToldReceivers
from tests.tiers import bounded

BEGIN = datetime(2026, 1, 31, 22, tzinfo=UTC)
KINDS = ("slurm_unreadable", "node_unfit", "provider_unreadable")

actions = st.one_of(
    st.tuples(st.just("there"), st.sampled_from(KINDS), st.integers(0, 3)),
    st.tuples(st.just("wait"), st.integers(1, 900)),
    st.tuples(st.just("refuse"), st.booleans()),
    st.tuples(st.just("restart")),
)


class History:
    """A receiver that takes or refuses, and a meshd that looks every few seconds."""

    def __init__(self, directory: Path, rules: Rules) -> None:
        self.path, self.rules, self.now = directory / "journal.db", rules, BEGIN
        self.counts = dict.fromkeys(KINDS, 0)
        self.refuses = False
        self.taken: list[Notice] = []
        self.open_as: dict[str, tuple[datetime, int]] = {}
        self.looks: dict[str, list[tuple[datetime, bool]]] = {kind: [] for kind in KINDS}
        self.open()

    def open(self) -> None:
        self.journal = Journal(self.path)
        self.store = ToldReceivers(self.journal)
        self.told = restarted(self.store.all().get("ops", NOTHING))

    def restart(self) -> None:
        self.journal.close()
        self.open()

    def alerts(self) -> tuple[Alert, ...]:
        return merged(
            Alert(alert_key(kind), kind, "error", f"number {n} at {self.now}")
            for kind, count in self.counts.items()
            for n in range(count)
        )

    def look(self) -> None:
        for kind, count in self.counts.items():
            self.looks[kind].append((self.now, count > 0))
        self.told = looked(self.told, self.alerts(), self.rules, self.now)
        notice = due(self.told, self.rules, self.now, "ops")
        if notice is not None:
            if self.refuses:
                self.told = failed(self.told, "HTTP 503", self.now)
            else:
                self.check(notice)
                self.told = delivered(self.told, notice, self.now)
        self.store.put("ops", self.told)

    def check(self, notice: Notice) -> None:
        """That each item of a message has its reason."""
        assert len({item.alert.key for item in notice.items}) == len(notice.items)
        for item in notice.items:
            kind, known = item.alert.code, self.open_as.get(item.alert.code)
            if item.state is State.BEGUN:
                assert known is None, "it was told already"
                assert self.counts[kind], "it is there now"
            elif item.state is State.GROWN:
                assert known is not None and item.alert.count > known[1]
            elif item.state is State.STILL:
                assert known is not None and self.now - known[0] >= timedelta(seconds=self.rules.repeat_s)
            else:
                assert known is not None, "its begin was told"
                away = [at for at, there in self.looks[kind] if there]
                assert self.now - away[-1] >= timedelta(seconds=self.rules.resolved_after_s)
            if item.state is State.RESOLVED:
                del self.open_as[kind]
            else:
                self.open_as[kind] = (self.now, max(item.alert.count, known[1] if known else 0))
        self.taken.append(notice)
        lately = [one for one in self.taken if self.now - one.at < timedelta(hours=1)]
        assert len(lately) <= self.rules.max_per_hour

    def run(self, seconds: int, step_s: int = 20) -> None:
        for _ in range(-(-seconds // step_s)):
            self.now += timedelta(seconds=step_s)
            self.look()


@given(steps=st.lists(actions, max_size=25), most=st.integers(1, 4), after_s=st.sampled_from([0.0, 60.0]))
@example(
    steps=[("there", KINDS[0], 1), ("wait", 100), ("restart",), ("there", KINDS[0], 0), ("wait", 400)],
    most=3, after_s=60.0,
)  # fmt: skip
@settings(max_examples=bounded(40, nightly=1500), deadline=None)
def test_each_message_has_its_reason_and_nothing_is_forgotten(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, ...]], most: int, after_s: float
) -> None:
    # Beside the other tests' files, in memory: each look is a write that a disk would have to keep.
    with TemporaryDirectory(dir=tmp_path_factory.getbasetemp()) as directory:
        it = History(Path(directory), Rules("warning", after_s, 30.0, 7200.0, 300.0, most))
        for step in steps:
            match step:
                case ("there", kind, count):
                    it.counts[kind] = count
                case ("wait", seconds):
                    it.run(seconds)
                case ("refuse", refuses):
                    it.refuses = refuses
                case _:
                    it.restart()
        it.refuses = False
        it.run(3700)  # the receiver's limit and the longest pause after failures are over
        assert set(it.open_as) == {kind for kind, count in it.counts.items() if count}
        it.counts = dict.fromkeys(KINDS, 0)
        it.run(4000)
        assert not it.open_as, "the end of all that was told is told"
        taken = len(it.taken)
        it.restart()
        it.run(2000)
        assert len(it.taken) == taken, "and nothing more"
        it.journal.close()


def test_what_comes_and_goes_is_one_problem(tmp_path: Path) -> None:
    it = History(tmp_path, Rules())
    for there in (1, 0) * 20:
        it.counts[KINDS[0]] = there
        it.run(40)
    it.counts[KINDS[0]] = 0
    it.run(600)
    assert [[item.state for item in one.items] for one in it.taken] == [[State.BEGUN], [State.RESOLVED]]
    it.journal.close()


def test_what_begins_together_is_told_together_and_a_blink_is_not_told(tmp_path: Path) -> None:
    it = History(tmp_path, Rules())
    it.counts[KINDS[0]] = 1
    it.run(20)
    it.counts[KINDS[1]] = 2
    it.run(20)
    it.counts[KINDS[2]] = 1
    it.run(20)
    it.counts[KINDS[2]] = 0
    it.run(600)
    told = [{item.alert.code: item.alert.count for item in one.items} for one in it.taken]
    assert told == [{KINDS[0]: 1, KINDS[1]: 2}]
    it.journal.close()


def test_a_repeated_try_has_the_same_id_whatever_the_words(tmp_path: Path) -> None:
    it = History(tmp_path, Rules())
    it.counts[KINDS[0]] = 1
    it.run(200)
    (first,) = it.taken
    told = looked(NOTHING, it.alerts(), it.rules, BEGIN)
    ids = set()
    for seconds in (100, 200, 300):
        it.now = BEGIN + timedelta(seconds=seconds)
        told = looked(told, it.alerts(), it.rules, it.now)
        notice = due(told, it.rules, it.now, "ops")
        assert notice is not None
        ids.add(notice.id)
        told = failed(told, "no answer", it.now)
        assert due(told, it.rules, it.now, "ops") is None, "after a pause"
    assert len(ids) == 1 and ids != {first.id}, "another time it is another message"
    it.journal.close()


def test_little_is_kept_whatever_happens() -> None:
    alerts = merged(Alert(alert_key("node_unfit", machine=f"m{n}"), "node_unfit", "error", "x") for n in range(5000))
    told, rules = NOTHING, Rules(max_per_hour=1000, group_s=0, after_s=0)
    for minute in range(90):
        now = BEGIN + timedelta(minutes=minute)
        told = looked(told, alerts[minute * 50 :], rules, now)
        notice = due(told, rules, now, "ops")
        told = delivered(told, notice, now) if notice else told
    assert len(told.entries) <= 200 and len(told.sent_at) <= 60
