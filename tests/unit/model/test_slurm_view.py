"""Which jobs each slot has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from meshd.model.observed import SlurmJob, SlurmView

RUNS = SlurmJob("1", "ann", "h100", "RUNNING", ("h100-1", "h100-2"))
COMES = SlurmJob("2", "ann", "h100", "CONFIGURING", ("h100-2",))
WAITS = SlurmJob("3", "ann", "h100", "PENDING")


class Read(tuple[SlurmJob, ...]):
    """Jobs that count how often they are gone through."""

    times = 0

    def __iter__(self) -> Iterator[SlurmJob]:
        type(self).times += 1
        return super().__iter__()


def test_the_jobs_of_a_slot() -> None:
    view = SlurmView("24.11.5", {}, (RUNS, COMES, WAITS))
    assert [view.jobs_on(slot) for slot in ("h100-1", "h100-2", "h100-3")] == [("1",), ("1", "2"), ()]
    assert [view.running_on(slot) for slot in ("h100-1", "h100-2", "h100-3")] == [("1",), ("1",), ()]
    assert view == SlurmView("24.11.5", {}, (RUNS, COMES, WAITS)), "what it keeps is no part of it"
    assert replace(view, jobs=(COMES,)).jobs_on("h100-2") == ("2",)


def test_jobs_are_gone_through_once_however_many_slots_are_asked_for() -> None:
    jobs = Read(SlurmJob(str(n), "ann", "h100", "RUNNING", (f"h100-{n % 1000}",)) for n in range(5000))
    view = SlurmView("24.11.5", {}, jobs)
    assert sum(len(view.jobs_on(f"h100-{n}")) + len(view.running_on(f"h100-{n}")) for n in range(1000)) == 10000
    assert Read.times == 1
