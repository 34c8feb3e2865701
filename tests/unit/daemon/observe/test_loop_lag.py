"""A head that was late itself hears its nodes from then on, and calls none silent for it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from meshd.daemon.observe.loop_lag import LATE_S, LoopLag
from meshd.model.machine import Phase
from meshd.model.observed import Fresh, Unavailable
from meshd.model.plan import RecordFitness
from meshd.plan.planner import plan
from tests.clocks import HandClock
from tests.unit.daemon.small import Small
from tests.unit.worlds import FACTS, NOW, ago, machine, snapshot, tailnet


def test_silence_is_counted_from_when_the_head_was_late_last() -> None:
    clock = HandClock()
    pulse = LoopLag(clock)
    seen = Fresh(tailnet(), NOW, since=ago(3600))
    pulse.beat(LATE_S - 0.1)
    assert pulse.heard(seen) is seen
    clock.t_s += 100
    pulse.beat(LATE_S + 40)
    late = pulse.heard(seen)
    assert isinstance(late, Fresh) and late.since == clock.now()
    away = Unavailable("tailscaled is away", NOW)
    assert pulse.heard(away) is away
    clock.t_s += 10
    back = Fresh(tailnet(), NOW, since=clock.now() - timedelta(seconds=5))
    assert pulse.heard(back) is back


@pytest.mark.parametrize("step", [timedelta(hours=1), timedelta(hours=-1)])
def test_silence_is_counted_from_when_the_clock_was_set_last(step: timedelta) -> None:
    clock = HandClock(NOW)
    pulse = LoopLag(clock)
    seen = Fresh(tailnet(), NOW, since=ago(60))
    clock.t_s += 100
    assert pulse.heard(seen) is seen
    clock.shift = step
    for _ in range(2):
        clock.t_s += 1
        set_ = pulse.heard(seen)
        assert isinstance(set_, Fresh) and set_.since == NOW + step + timedelta(seconds=101)


async def test_it_measures_how_late_it_is_itself() -> None:
    class Slow(HandClock):
        """A sleep takes ten seconds longer than asked for; the fourth one never ends."""

        async def sleep(self, delay_s: float) -> None:
            if len(self.slept) == 3:
                raise RuntimeError("enough")
            await super().sleep(delay_s)
            self.t_s += 10.0

    pulse = LoopLag(Slow())
    with pytest.raises(RuntimeError):
        await pulse.run()
    assert pulse.steady_since is not None


async def test_the_notes_of_one_tick_are_one_write(tmp_path: Path) -> None:
    """The disk takes tens of milliseconds for each on a busy head, and nobody is heard meanwhile."""
    small = Small(tmp_path)
    for index in range(1, 9):
        one = machine(Phase.READY, index=index, facts=FACTS, heartbeat_at=ago(45), line_published=True)
        small.journal.put(one, "phase", "given", NOW)
    small.seen = replace(snapshot(), tailnet=Fresh(tailnet(), NOW, since=ago(3600)))
    planned = plan(small.desired(), small.journal.machines(), small.seen, NOW).steps
    assert len([step for step in planned if isinstance(step, RecordFitness)]) == 8
    commits = 0

    def trace(statement: str) -> None:
        nonlocal commits
        commits += statement == "COMMIT"

    small.journal._db.set_trace_callback(trace)
    small.reconciler.tick()
    small.journal._db.set_trace_callback(None)
    assert commits == 1
    await small.executor.aclose(1)
    small.journal.close()
