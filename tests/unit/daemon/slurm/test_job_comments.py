"""What is written into the AdminComment of jobs that wait."""

from __future__ import annotations

from dataclasses import replace

from meshd.daemon.slurm.job_comments import AT_ONCE, JobComments
from meshd.errors import SlurmError
from meshd.model.observed import Fresh, Observation, SlurmJob, SlurmView
from meshd.plan.waiting import Wait, WaitingJob
from tests.clocks import HandClock
from tests.sources import Given
from tests.unit.worlds import GONE_DARK, NOW

JOB = SlurmJob("1", "u", "gpu", "CONFIGURING", ("h100-1",))
WAITS = WaitingJob("1", "u", "h100", 1, 0, Wait.BOOT, None, "1 machine boots at aws r1", True)


class Jobs:
    """Slurm's jobs; some have ended meanwhile."""

    def __init__(self, count: int, ended: tuple[str, ...] = ()) -> None:
        self.jobs = {str(i): replace(JOB, id=str(i)) for i in range(count)}
        self.ended = ended
        self.calls = 0

    async def update_job(
        self, job: str, *, wait_s: float | None = None, admin_comment: str | None = None, requeue: bool | None = None
    ) -> None:
        self.calls += 1
        if job in self.ended:
            raise SlurmError(f"Invalid job id specified for job {job}")
        assert (wait_s, requeue) == (None, None)
        self.jobs[job] = replace(self.jobs[job], admin_comment=admin_comment or "")

    def seen(self) -> Observation[SlurmView]:
        return Fresh(SlurmView("24.11.5", {}, tuple(self.jobs.values())), NOW)


def controller(jobs: Jobs) -> JobComments:
    waiting = tuple(replace(WAITS, job=name) for name in jobs.jobs)
    return JobComments(jobs, HandClock(), Given(jobs.seen), lambda: waiting)


async def test_all_get_theirs_once_and_one_that_ended_stops_nobody() -> None:
    jobs = Jobs(3, ended=("0",))
    comments = controller(jobs)
    await comments.reconcile()
    assert [job.admin_comment for job in jobs.jobs.values()] == ["", WAITS.comment, WAITS.comment]
    before = jobs.calls
    await comments.reconcile()
    assert jobs.calls == before + 1, "only the one that could not be written"


async def test_many_are_written_in_several_passes() -> None:
    jobs = Jobs(AT_ONCE + 5)
    comments = controller(jobs)
    await comments.reconcile()
    assert jobs.calls == AT_ONCE
    await comments.reconcile()
    assert all(job.admin_comment for job in jobs.jobs.values())


async def test_while_slurm_cannot_be_read_nothing_is_written() -> None:
    jobs = Jobs(1)
    silent = Given(lambda: GONE_DARK)
    await JobComments(jobs, HandClock(), silent, lambda: (WAITS,)).reconcile()
    assert jobs.calls == 0
