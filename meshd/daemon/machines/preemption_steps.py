"""The steps for jobs on a machine that its cloud takes back: they get their signal, and are requeued."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import structlog

from meshd.codes import EventKind
from meshd.daemon.machine_store import MachineStore
from meshd.errors import SlurmError
from meshd.model.plan import RequeueJobs, SignalJobs
from meshd.slurm.job_signal import JobSignal

log = structlog.get_logger(__name__)


class Jobs(Protocol):
    """What is asked of Slurm."""

    async def own_signal(self, job: str) -> JobSignal | None:
        """The signal that a job asks for before its end; None for none. Raises SlurmError."""
        ...

    async def send_signal(self, job: str, signal: JobSignal) -> None:
        """Send a job a signal. Raises SlurmError."""
        ...

    async def requeue(self, job: str) -> None:
        """Put a job back into the queue. Raises SlurmError."""
        ...


class PreemptionSteps:
    """Carries out the steps. A job that has ended meanwhile keeps no other from its turn."""

    def __init__(self, machine_store: MachineStore, slurm: Jobs) -> None:
        self._machine_store = machine_store
        self._slurm = slurm

    async def signal(self, step: SignalJobs) -> None:
        """Send each job its signal, once: written down before it is sent, since some programs end on a second one.

        Raises:
            SlurmError: no job's script can be read. Nothing is written down, so it is tried again.
        """
        signals = await self._own_signals(step.jobs)
        now = self._machine_store.now()
        text = f"{step.reason}: jobs on it are told"
        self._machine_store.change(step.subject, EventKind.SPOT_NOTICE, text, jobs_signalled_at=now)
        for job, signal in signals.items():
            try:
                await self._slurm.send_signal(job, signal)
            except SlurmError as error:
                log.warning("job_not_signalled", job=job, reason=str(error))
                continue
            self._event(step.subject, f"job {job} got the signal that it asked for: {signal.name}")

    async def _own_signals(self, jobs: Sequence[str]) -> dict[str, JobSignal]:
        """By job, the signal that it asks for. Where Slurm tells that of one job, another without a script has ended.

        Raises:
            SlurmError: none can be read.
        """
        found: dict[str, JobSignal | None] = {}
        failed: SlurmError | None = None
        for job in jobs:
            try:
                found[job] = await self._slurm.own_signal(job)
            except SlurmError as error:
                log.warning("job_not_signalled", job=job, reason=str(error))
                failed = error
        if failed is not None and not found:
            raise failed
        return {job: signal for job, signal in found.items() if signal is not None}

    async def requeue(self, step: RequeueJobs) -> None:
        """Put the jobs back into the queue.

        Raises:
            SlurmError: one of them is not; the others are.
        """
        failed: SlurmError | None = None
        for job in step.jobs:
            try:
                await self._slurm.requeue(job)
            except SlurmError as error:
                failed = error
                continue
            self._event(step.subject, f"job {job} was requeued: {step.reason}")
        if failed is not None:
            raise failed

    def _event(self, machine: str, text: str) -> None:
        self._machine_store.journal.event(self._machine_store.now(), EventKind.SPOT_NOTICE, text, machine)
