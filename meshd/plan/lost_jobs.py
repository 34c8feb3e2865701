"""Which jobs Slurm believes to run on a machine that has booted since they started. PURE.

slurmctld finds a batch job missing when its node registers. With power saving in force it waits for ResumeTimeout
before that, if the node has booted since the job started: an hour by meshd's settings (job_mgr.c,
`_purge_missing_jobs`; seen on 24.11.5). Until then nobody could use the node. Both times count by the head's clock.
"""

from __future__ import annotations

from datetime import timedelta

from meshd.model.machine import Machine
from meshd.model.plan import RequeueLostJobs
from meshd.plan.plan_input import PlanInput

MARGIN = timedelta(seconds=10)
"""A job that started this shortly before the boot may have started after it: readings are some seconds old."""


def lost_jobs(machine: Machine, given: PlanInput) -> RequeueLostJobs | None:
    """Requeue the lost batch jobs that allow it; None when there are none.

    Others end when slurmctld notices.
    """
    report, slurm_at = given.view.report(machine), given.slurm_at
    if report is None or slurm_at is None or given.slurm is None or report.jobs or report.uptime_s <= 0:
        return None
    started_before = report.at - timedelta(seconds=report.uptime_s) - MARGIN
    if slurm_at <= report.at:
        return None  # Slurm may have noticed since
    lost = tuple(
        job.id
        for job in given.slurm.by_slot.get(machine.slot, ())
        if job.batch and job.requeue and job.run_s is not None
        and slurm_at - timedelta(seconds=job.run_s) < started_before
    )  # fmt: skip
    if not lost:
        return None
    reason = "its machine has booted since it started"
    return RequeueLostJobs(machine.name, reason, machine.slot, lost, started_before)
