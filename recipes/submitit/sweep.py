#!/usr/bin/env python3
"""Four things that submitit does, as the user's own Python on the head: call, array, several tasks, checkpoint."""

import argparse
import os
import sys
import time
from pathlib import Path

import submitit

FOLDER = Path("log_submitit")


def square(number: int) -> int:
    return number * number


def rank_of_task() -> tuple[int, int, str]:
    env = submitit.JobEnvironment()
    return env.global_rank, env.num_tasks, os.environ["SLURMD_NODENAME"]


class Training:
    """Counts up to `steps`. When Slurm ends the job early (time limit, preemption), it goes on where it was."""

    def __init__(self, steps: int, step_s: float) -> None:
        self.steps, self.step_s, self.step, self.starts = steps, step_s, 0, 0

    def __call__(self) -> tuple[int, int]:
        self.starts += 1
        while self.step < self.steps:
            time.sleep(self.step_s)
            self.step += 1
            print(f"step {self.step} of {self.steps}", flush=True)
        return self.step, self.starts

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        """Called on Slurm's signal: what to submit in this job's place, with what it knows so far."""
        return submitit.helpers.DelayedSubmission(self)


def executor(**parameters: object) -> submitit.SlurmExecutor:
    """Jobs of this Python, whose records and results are in FOLDER."""
    made = submitit.AutoExecutor(folder=FOLDER, slurm_max_num_timeout=3)
    made.update_parameters(timeout_min=5, **parameters)
    return made


def wait_for(result: Path, timeout_s: float = 600) -> None:
    """Wait for the file. Between two starts Slurm's records may show the job as failed for a moment."""
    end = time.monotonic() + timeout_s
    while not result.exists() and time.monotonic() < end:
        time.sleep(1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requeue", action="store_true", help="also interrupt a job, as a preemption does")
    args = parser.parse_args()

    job = executor(name="call").submit(square, 12)
    print(f"one call: job {job.job_id}, 12 * 12 = {job.result()}")

    jobs = executor(name="array", slurm_array_parallelism=2).map_array(square, range(5))
    print(f"an array: jobs {jobs[0].job_id} to {jobs[-1].job_id}: {[job.result() for job in jobs]}")

    job = executor(name="tasks", nodes=2, tasks_per_node=2).submit(rank_of_task)
    for rank, tasks, node in job.results():
        print(f"task {rank} of {tasks} on {node}")

    if args.requeue:
        job = executor(name="training").submit(Training(steps=12, step_s=0.5))
        while "step 3 " not in (job.stdout() or ""):
            time.sleep(0.5)
        job._interrupt(timeout=False)  # sends the signal that Slurm sends before it ends a job
        wait_for(job.paths.result_pickle)
        steps, starts = job.result()
        print(f"training: {steps} steps in {starts} starts of job {job.job_id}")
        if starts < 2:
            sys.exit("it was not interrupted")


if __name__ == "__main__":
    main()
