"""What follows from a cloud's notice that it takes a spot machine back. PURE.

From the notice on the machine counts no longer as supply, so another one is rented while it still runs. It takes no new
jobs. A job on it that asked for a signal (`--signal`) is sent it, in time for a checkpoint. One that Slurm may requeue
is requeued REQUEUE_BEFORE_S before the end: `scontrol requeue` sends SIGTERM to its steps, and SIGKILL after KillWait
(30 s by default), so it can still write a checkpoint, and goes on elsewhere. All others keep the machine to its end. A
machine without a job is given back at once. A notice that is withdrawn lifts the drain.

Slurm knows no job's `--signal` from outside, so it is read from the `#SBATCH` lines of its script. A job that asked for
none gets no other signal than that of the requeue: SIGTERM would end a program that does not expect it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from meshd.model.machine import FailureCause, Machine, Phase
from meshd.model.plan import Drain, RequeueJobs, SignalJobs, Step
from meshd.plan.leaving import fail
from meshd.plan.plan_input import PlanInput

ENDS = frozenset({"preempted", "maintenance"})
"""Kinds of notices after which the machine ends. `rebalance` only says that the risk is higher."""

NO_TIME_S = 30.0
"""The time to the end where a notice tells none: the shortest that any cloud gives (GCE)."""

SIGNAL_BEFORE_S = 130.0
"""A notice may come an hour ahead. Jobs are not disturbed before this long before the end: EC2 gives 120 s."""

REQUEUE_BEFORE_S = 60.0
"""Twice Slurm's default of KillWait."""

REQUEUE_FIRST_S = 15.0
"""From then on jobs are requeued even if they were not told: a script that cannot be read must not hold them."""

NOTICED = frozenset({Phase.READY, Phase.DRAINING})


def end_told(notices: Iterable[tuple[str, float | None]], now: datetime) -> datetime | None:
    """When the machine ends, as (kind, seconds to the end) of its notices say; None: none of them is about its end."""
    left_s = [NO_TIME_S if seconds is None else seconds for kind, seconds in notices if kind in ENDS]
    return now + timedelta(seconds=min(left_s)) if left_s else None


def words(ends_at: datetime) -> str:
    """For people."""
    return f"its cloud takes it back at {ends_at:%H:%M:%S} UTC"


def noticed(machine: Machine, given: PlanInput) -> Step | None:
    """The step of a machine with a notice; None when it has to wait, or Slurm cannot be read."""
    if machine.preempted_at is None:
        return None
    if machine.phase not in NOTICED:
        return fail(machine, words(machine.preempted_at), FailureCause.PREEMPTED)
    node = given.node(machine)
    if given.slurm is None or given.slurm_at is None or node is None:
        return None  # unknown is not idle
    if node.up and not node.drained:
        return Drain(machine.name, words(machine.preempted_at), machine.slot)
    if machine.phase is Phase.READY and given.idle(machine) and _read_since(machine, given.slurm_at):
        return fail(machine, words(machine.preempted_at), FailureCause.PREEMPTED)
    return _jobs_step(machine, machine.preempted_at, given)


def _read_since(machine: Machine, slurm_at: datetime) -> bool:
    """Whether Slurm was read after the machine was READY and drained, so that no job has slipped in between."""
    return slurm_at > machine.phase_since and (machine.drained_at is None or slurm_at > machine.drained_at)


def _jobs_step(machine: Machine, ends_at: datetime, given: PlanInput) -> Step | None:
    """What is done for the jobs on it."""
    there = given.slurm.by_slot.get(machine.slot, ()) if given.slurm else ()
    running = [job for job in there if job.state == "RUNNING"]
    left_s = (ends_at - given.now).total_seconds()
    back = tuple(job.id for job in running if job.batch and job.requeue) if left_s <= REQUEUE_BEFORE_S else ()
    untold = running and machine.jobs_signalled_at is None and left_s <= SIGNAL_BEFORE_S
    if untold and not (back and left_s <= REQUEUE_FIRST_S):
        batch = tuple(job.id for job in running if job.batch)
        return SignalJobs(machine.name, words(ends_at), machine.slot, batch)
    return RequeueJobs(machine.name, words(ends_at), machine.slot, back) if back else None
