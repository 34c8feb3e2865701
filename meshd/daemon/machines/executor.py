"""Carries out the steps of a plan: bounded, one at a time for each machine, and always back to the journal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

import structlog

from meshd.codes import EventKind
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.machine_store import MachineStore
from meshd.daemon.machines.cloud_steps import CloudSteps
from meshd.daemon.machines.launch_queue import LaunchQueue
from meshd.daemon.machines.node_steps import NodeSteps
from meshd.errors import MeshdError
from meshd.model import plan as p
from meshd.model.machine import Phase
from meshd.runtime.backoff import backoff_s
from meshd.runtime.clock import Clock

log = structlog.get_logger(__name__)

RETRY_FIRST_S = 2.0
RETRY_MAX_S = 60.0
ORPHAN_AGAIN_S = 15.0
SLURM_AT_ONCE = 16

SHOWN_BY_SLURM = (p.Drain, p.Undrain, p.RequeueJobs, p.RequeueLostJobs)
"""Only Slurm's next answer shows that they are done: the planner would have them again in each tick until then."""


class Executor:
    """Begins steps and keeps account of which are in flight.

    Steps that only change the journal are done before `begin` returns. The others run as tasks, at most
    `max_concurrent_calls` for each provider, and `SLURM_AT_ONCE` for Slurm. While one runs, its machine is in `busy`
    and the planner leaves it alone. A step that fails is not repeated here: the next tick plans again, after a pause
    for its subject that grows with each failure.
    """

    def __init__(
        self,
        machine_store: MachineStore,
        cloud: CloudSteps,
        nodes: NodeSteps,
        clock: Clock,
        wake: Callable[[], None],
        live: LiveSettings,
    ) -> None:
        self._machine_store = machine_store
        self._cloud = cloud
        self._nodes = nodes
        self._clock = clock
        self._wake = wake
        self._note_fitness = nodes.repairs.note
        self._live = live
        self._limits: dict[str, asyncio.Semaphore] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._pauses: dict[str, tuple[int, float]] = {}
        self._problems: dict[str, str] = {}
        self._changed_in_slurm: dict[str, datetime] = {}
        self._launches = LaunchQueue(
            cloud.rates,
            clock,
            machine=machine_store.journal.machine,
            paused_s=cloud.paused_s,
            free=lambda subject: subject not in self._tasks,
            begin=self._start,
            at_once_most=self._at_once_most,
        )
        self._handlers: dict[type[p.Step], Callable[[Any], Awaitable[None]]] = {
            p.Launch: cloud.launch,
            p.Adopt: cloud.adopt,
            p.Terminate: cloud.terminate,
            p.AskCloud: cloud.ask,
            p.AdoptOrphan: cloud.adopt_orphan,
            p.TerminateOrphan: cloud.terminate_orphan,
            p.StartSlurmd: nodes.start_slurmd,
            p.MarkReady: nodes.mark_ready,
            p.CancelRemoval: nodes.cancel_removal,
            p.Drain: nodes.drain,
            p.SignalJobs: nodes.preemption.signal,
            p.RequeueJobs: nodes.preemption.requeue,
            p.Leave: nodes.leave,
            p.RemoveDevice: nodes.remove_device,
            p.DisableKeyExpiry: nodes.disable_key_expiry,
            p.RestartSlurmd: nodes.repairs.restart_slurmd,
            p.ReloadSlurmd: nodes.repairs.reload_slurmd,
            p.Undrain: nodes.repairs.undrain,
            p.RequeueLostJobs: nodes.repairs.requeue_lost,
            p.Replace: nodes.repairs.replace,
        }

    def _at_once_most(self, lane: str) -> int:
        provider = self._live.settings.providers.get(lane)
        return provider.max_concurrent_calls if provider is not None else SLURM_AT_ONCE

    @property
    def busy(self) -> frozenset[str]:
        """Subjects with a step in flight, or resting after a failed one."""
        now_s = self._clock.monotonic_s()
        resting = {subject for subject, (_, until_s) in self._pauses.items() if until_s > now_s}
        return frozenset(self._tasks) | resting

    def not_shown(self, slurm_at: datetime | None) -> frozenset[str]:
        """Subjects whose last step has changed what Slurm was last read to say.

        Args:
            slurm_at: when that reading began; None: Slurm does not answer, and nobody waits for that.
        """
        if slurm_at is None:
            return frozenset()
        now = self._clock.now()  # after the clock was set back, a time that is yet to come holds nobody up
        self._changed_in_slurm = {
            subject: at for subject, at in self._changed_in_slurm.items() if slurm_at <= at <= now
        }  # fmt: skip
        return frozenset(self._changed_in_slurm)

    @property
    def at_rest(self) -> bool:
        """Whether no step is under way; orders may wait for their turn."""
        return not self._tasks

    async def abandon(self) -> None:
        """Stop at once, wherever each step is, as a kill does. For simulations: nobody asks whether that is safe."""
        self._launches.close()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def in_flight(self) -> int:
        """How many steps are under way, or wait for their turn with a cloud."""
        return len(set(self._tasks.values())) + len(self._launches)

    @property
    def problems(self) -> dict[str, str]:
        """By subject: why its last step failed; cleared by one that succeeds, or once none is planned any more."""
        return dict(self._problems)

    def forget_all_but(self, subjects: Collection[str]) -> None:
        """Forget why a step failed that is neither planned again nor resting: its cause is gone, or its subject."""
        for subject in self._problems.keys() - set(subjects) - self.busy:
            del self._problems[subject]

    def begin(self, step: p.Step) -> None:
        """Begin a step. Raises StoreError when the journal cannot be written; the step is then not begun."""
        match step:
            case p.Move():
                self._move(step)
            case p.RecordPeer():
                self._note_peer(step)
            case p.RecordDevice():
                self._note_device(step)
            case p.AskAgent():
                self._ask_agent(step)
            case p.RecordFitness():
                self._note_fitness(step)
            case p.RecordPublished():
                self._machine_store.change(step.subject, EventKind.PUBLISHED, step.reason, line_published=True)
            case p.Remove():
                self._machine_store.change(
                    step.subject, EventKind.REMOVE, step.reason, removal=step.removal, reason=step.reason
                )
            case p.RequestMachine():
                self.request([step])
            case p.Launch():
                self._launches.add(step)
            case _:
                self._start(step)

    def request(self, steps: Sequence[p.RequestMachine]) -> None:
        """Write new machines down. Raises StoreError as `begin` does."""
        self._cloud.request(steps)

    def _start(self, step: p.Step) -> None:
        task = asyncio.create_task(self._carry_out(step), name=f"{step.action} {step.subject}")
        self._tasks.update(dict.fromkeys(step.subjects, task))
        task.add_done_callback(partial(self._ended, step))

    def _move(self, step: p.Move) -> None:
        machine = self._machine_store.get(step.subject)
        if step.failure:
            self._cloud.failed(machine, step.cause, step.vendor_words or step.failure)
        self._machine_store.move(
            machine.name, step.to, step.reason, failure=step.failure, cause=step.cause,
            vendor_words=step.vendor_words or machine.vendor_words,
        )  # fmt: skip

    def _note_peer(self, step: p.RecordPeer) -> None:
        machine = self._machine_store.get(step.subject)
        facts: dict[str, Any] = {"tailnet_ip": step.tailnet_ip, "tailnet_id": step.tailnet_id, "path": step.path}
        if machine.phase is Phase.BOOTING:
            self._machine_store.move(machine.name, Phase.JOINING, step.reason, **facts)
        else:
            # It may change with every packet: it is worth no line in the journal.
            self._machine_store.journal.note(replace(machine, path=step.path))

    def note_turns(self, launches: Iterable[p.Launch], held: Iterable[str]) -> None:
        """Note whose order may go out, and whose has to wait, in memory only."""
        journal, now = self._machine_store.journal, self._machine_store.now()
        for name in (name for step in launches for name in step.machines):
            machine = journal.machine(name)
            if machine is not None and machine.turn_since is None:
                journal.note(replace(machine, turn_since=now))
        for name in held:
            machine = journal.machine(name)
            if machine is not None and machine.turn_since is not None:
                journal.note(replace(machine, turn_since=None))

    def _ask_agent(self, step: p.AskAgent) -> None:
        """It is worth no line in the journal."""
        if self._nodes.ask_agent(step.subject):
            machine = self._machine_store.get(step.subject)
            self._machine_store.journal.note(replace(machine, agent_asked_at=self._machine_store.now()))

    def _note_device(self, step: p.RecordDevice) -> None:
        since = self._machine_store.now() if step.gone else None
        self._machine_store.change(step.subject, EventKind.DEVICE, step.reason, device_gone_since=since)

    async def _carry_out(self, step: p.Step) -> None:
        try:
            async with self._limit(step):
                await self._handlers[type(step)](step)
        except MeshdError as error:
            self._failed(step, error)
        else:
            for subject in step.subjects:
                self._pauses.pop(subject, None)
                self._problems.pop(subject, None)
            if isinstance(step, SHOWN_BY_SLURM):
                self._changed_in_slurm[step.subject] = self._clock.now()
            if isinstance(step, p.TerminateOrphan):  # no record keeps the time at which it was asked for
                self._pauses[step.subject] = (0, self._clock.monotonic_s() + ORPHAN_AGAIN_S)

    def _limit(self, step: p.Step) -> AbstractAsyncContextManager[Any]:
        """Who waits for a node agent, maybe for minutes, must not keep others from Slurm."""
        if isinstance(step, p.StartSlurmd | p.RestartSlurmd | p.ReloadSlurmd | p.Leave | p.Launch):
            return nullcontext()
        lane = "slurm"
        if isinstance(step, p.TerminateOrphan):
            lane = step.instance.provider
        elif isinstance(step, p.Terminate | p.AskCloud):
            machine = self._machine_store.journal.machine(step.subject)
            lane = machine.provider if machine else lane
        return self._limits.setdefault(lane, asyncio.Semaphore(self._at_once_most(lane)))

    def _failed(self, step: p.Step, error: BaseException) -> None:
        failures = self._pauses.get(step.subject, (0, 0.0))[0] + 1
        pause_s = backoff_s(failures, RETRY_FIRST_S, RETRY_MAX_S)
        text = f"{step.action}: {error}"
        if self._problems.get(step.subject) != text:
            log.warning("step_failed", step=step.action, subject=step.subject, reason=str(error), again_in_s=pause_s)
        for subject in step.subjects:
            self._pauses[subject] = (failures, self._clock.monotonic_s() + pause_s)
            self._problems[subject] = text

    def _ended(self, step: p.Step, task: asyncio.Task[None]) -> None:
        """Free the subject. Log a fault of our own, and pause the subject as after any other failure."""
        for subject in step.subjects:
            self._tasks.pop(subject, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("step_broke", step=task.get_name(), exc_info=error)
            self._failed(step, error)
        if not task.cancelled():  # who is being ended begins nothing more
            self._launches.ended(step.subject)
        self._wake()

    async def aclose(self, grace_s: float) -> None:
        """Let the steps in flight end, for at most `grace_s` seconds; the journal knows about the rest."""
        self._launches.close()
        if self._tasks:
            await asyncio.wait(set(self._tasks.values()), timeout=grace_s)
        for task in set(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*set(self._tasks.values()), return_exceptions=True)
