"""Which jobs Slurm believes to run on a machine where nothing of them runs. PURE.

A slurmctld that is killed just after a job ended, or just before it told slurmd to start one, has it saved as running:
it saves its state each five seconds. It looks for such a job only when the job's first node registers, which nodes do
when it starts, and then at every 20th ping: about half an hour later by Slurm's defaults. At its own start it takes no
job for missing, since it has just read them all (job_mgr.c, `_purge_missing_jobs` and `time_last_active`; seen on
24.11.5). meshd has the node register once more. What becomes of the job is Slurm's decision.

After a boot of the machine that is not enough: with power saving in force slurmctld waits for ResumeTimeout more, an
hour by meshd's settings (also `_purge_missing_jobs`). Until then nobody could use the node, so meshd requeues such jobs
itself. Both times count by the head's clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from meshd.model.machine import Machine
from meshd.model.observed import AgentReport, SlurmJob
from meshd.model.plan import ReloadSlurmd, RequeueLostJobs
from meshd.plan.plan_input import PlanInput

MARGIN = timedelta(seconds=10)
"""A job that started this shortly before the boot may have started after it: readings are some seconds old."""

UNSEEN_FOR = timedelta(seconds=180)
"""A batch job has a slurmstepd on its first node from its start on, or from the end of the node's Prolog on. slurmctld
itself takes it for missing after 20 s (BatchStartTimeout and 10 s more), also after its own start."""

AGAIN_AFTER = timedelta(seconds=30)
"""slurmctld hears a node in vain when it has itself just been started."""


def lost_jobs(machine: Machine, given: PlanInput) -> RequeueLostJobs | None:
    """Requeue the lost batch jobs that allow it; None when there are none.

    Others end when slurmctld notices.
    """
    report = _report_without_jobs(machine, given)
    if report is None or report.uptime_s <= 0:
        return None
    started_before = report.at - timedelta(seconds=report.uptime_s) - MARGIN
    lost = tuple(job.id for job, began in _begun(machine, given) if job.requeue and began < started_before)
    if not lost:
        return None
    reason = "its machine has booted since it started"
    return RequeueLostJobs(machine.name, reason, machine.slot, lost, started_before)


def unseen_jobs(machine: Machine, given: PlanInput) -> ReloadSlurmd | None:
    """Have the first node of a batch job register again when the job has long had no process there."""
    report, before = _report_without_jobs(machine, given), machine.slurmd_reloaded_at
    if report is None or (before is not None and given.now - before < AGAIN_AFTER):
        return None
    unseen = [
        job.id
        for job, began in _begun(machine, given)
        if job.nodes[0] == machine.slot and report.at - began >= UNSEEN_FOR
    ]
    if not unseen:
        return None
    return ReloadSlurmd(machine.name, f"Slurm has job {', '.join(unseen[:3])} running, and no process of it is there")


def _report_without_jobs(machine: Machine, given: PlanInput) -> AgentReport | None:
    """Its agent's report, where that shows no process of a job and is older than Slurm's view, which may know more."""
    report, slurm_at = given.view.report(machine), given.slurm_at
    if report is None or slurm_at is None or report.jobs or slurm_at <= report.at:
        return None
    return report


def _begun(machine: Machine, given: PlanInput) -> Iterator[tuple[SlurmJob, datetime]]:
    """The batch jobs that Slurm believes to run there, and when each began."""
    if given.slurm is None or given.slurm_at is None:
        return
    for job in given.slurm.by_slot.get(machine.slot, ()):
        if job.batch and job.run_s is not None:
            yield job, given.slurm_at - timedelta(seconds=job.run_s)
