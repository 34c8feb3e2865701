"""Tells Slurm what follows for slots without a machine, and for jobs that cannot have theirs.

What is to be done is decided by `meshd/plan/slots.py` from what Slurm says. It is looked at once more right before it
is done, since a job may have got a slot in between. Free slots are drained before a job is sent back, so that it does
not get the next ones at once; and a slot that powers up for nobody is closed before it is powered down by force, so
that no job gets it meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from datetime import datetime
from typing import Protocol

import structlog
from ClusterShell.NodeSet import NodeSet

from meshd.api.schema import ProblemView
from meshd.codes import EventKind, ProblemCode
from meshd.config import Settings
from meshd.daemon.controller import Controller
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.observe.source import Observed
from meshd.daemon.reporting import problem
from meshd.errors import SlurmError
from meshd.model.machine import Phase
from meshd.model.observed import Fresh, SlurmView
from meshd.model.plan import Plan
from meshd.plan.slots import (
    NOBODY,
    SendBack,
    SlotChanges,
    SlotPool,
    silent_with_jobs,
    slot_changes,
    to_close,
    unwanted_now,
)
from meshd.plan.waiting import Wait, WaitingJob
from meshd.runtime.clock import Clock
from meshd.store.journal import Journal

log = structlog.get_logger(__name__)

LOOK_S = 5.0
NAMES_MAX = 100
EARLY_MAX = 1000
STRAY_S = 60.0
"""A slot that is up without a machine may belong to one that the journal lost, and that is found again soon."""
OFF_STRAY_S = 10.0
"""No machine can be behind one that is off. A resume leaves it NOT_RESPONDING, often for a moment only."""
STUCK_S = 180.0
"""After this long people are told that a slot does not come back. Slurm takes up to 10 s, and SuspendTimeout."""


class Slurm(Protocol):
    """What is asked of Slurm."""

    async def view(self) -> SlurmView:
        """Nodes and jobs now. Raises SlurmError."""
        ...

    async def drain_slots(self, slots: Collection[str], reason: str) -> None:
        """No new jobs on these. Raises SlurmError."""
        ...

    async def resume_slots(self, slots: Collection[str]) -> None:
        """Jobs may come again. Raises SlurmError."""
        ...

    async def power_down(self, slots: Collection[str], reason: str = "", *, force: bool = False) -> None:
        """Slurm switches them off. Raises SlurmError."""
        ...

    async def requeue(self, job: str) -> None:
        """Put a batch job back into the queue. Raises SlurmError."""
        ...

    async def update_job(
        self, job: str, *, wait_s: float | None = None, admin_comment: str | None = None, requeue: bool | None = None
    ) -> None:
        """Change a job. Raises SlurmError."""
        ...

    async def tell(self, job: str, message: str) -> None:
        """Show a line to who waits for it. Raises SlurmError."""
        ...

    async def cancel(self, job: str) -> None:
        """End a job. Raises SlurmError."""
        ...


class SlotController(Controller):
    """Brings Slurm's states of free slots to what the plan says.

    Args:
        live: the settings.
        journal: the machines, and the events.
        slurm: Slurm's commands.
        clock: time.
        seen: what Slurm said last.
        plan: the last plan; None before the first tick.
        waiting: the jobs that wait, and why in short: what a job is told that cannot have its machines.
        changed: called after something was changed: Slurm is to be read again.
    """

    name = "slurm_slots"

    def __init__(
        self,
        live: LiveSettings,
        journal: Journal,
        slurm: Slurm,
        clock: Clock,
        seen: Observed[SlurmView],
        *,
        plan: Callable[[], Plan | None],
        waiting: Callable[[], Iterable[WaitingJob]],
        changed: Callable[[], None],
    ) -> None:
        super().__init__(clock)
        self._live = live
        self._journal = journal
        self._slurm = slurm
        self._seen = seen
        self._plan = plan
        self._waiting = waiting
        self._changed = changed
        self._since_s: dict[str, float] = {}
        self._error = ""
        #: By job that was let start early, the comment with which it had been sent back: once for each.
        self._early: dict[str, str] = {}

    async def reconcile(self) -> float:
        """Make one pass. It is woken after each tick."""
        plan, seen = self._plan(), self._seen.current
        if plan is None or not isinstance(seen, Fresh):
            return LOOK_S
        changes = self._decide(plan, seen.value)
        self._remember(changes)
        if self._due(changes).none:
            self._error = ""
            return LOOK_S
        try:
            await self._carry_out(self._due(self._decide(plan, await self._slurm.view())))
            self._error = ""
        except SlurmError as error:
            if str(error) != self._error:
                log.warning("slots_not_changed", reason=str(error))
            self._error = str(error)
        finally:
            self._changed()
        return LOOK_S

    def problems(self) -> Iterable[ProblemView]:
        """The slots that do not come back, and Slurm's refusal."""
        now_s = self._clock.monotonic_s()
        stuck = sorted(slot for slot, since_s in self._since_s.items() if now_s - since_s > STUCK_S)
        if stuck:
            text = f"no job can use {_names(stuck)}: Slurm does not bring the slots back to idle~"
            text += f" ({self._error})" if self._error else ""
            cure = "see `sinfo -R` and slurmctld's log; `scontrol update nodename=SLOT state=power_down_force`"
            yield problem(ProblemCode.SLOTS_STUCK, "warning", text, cure)
        elif self._error:
            cure = "meshd tries again; see slurmctld's log"
            yield problem(ProblemCode.SLOTS_STUCK, "warning", f"Slurm does not change slots: {self._error}", cure)

    def _decide(self, plan: Plan, view: SlurmView) -> SlotChanges:
        machines, gone = self._journal.machines(), {}
        for slot in silent_with_jobs(machines, view):
            (last, *_) = self._journal.machines_of_slot(slot, 1) or (None,)
            if last is not None and last.phase is Phase.GONE and last.tailnet_ip:
                gone[slot] = last.tailnet_ip
        return slot_changes(slot_pools(self._live.settings), machines, view, plan, gone)

    def _remember(self, changes: SlotChanges) -> None:
        """Since when each slot has been in a state that it must not stay in."""
        now_s = self._clock.monotonic_s()
        self._since_s = {slot: self._since_s.get(slot, now_s) for slot in (*changes.power_down, *changes.strays)}

    def _due(self, changes: SlotChanges) -> SlotChanges:
        """Without the strays that may still be somebody's, and the jobs that were let start early before.

        A job may ask for what meshd does not know of it, and so go past the idle nodes.
        """
        now_s = self._clock.monotonic_s()
        strays = tuple(
            slot for slot in changes.strays if now_s - self._since_s.get(slot, now_s) >= self._patience_s(slot)
        )
        early = {job: comment for job, comment in changes.start_early.items() if self._early.get(job) != comment}
        return replace(changes, strays=strays, start_early=early)

    def _patience_s(self, stray: str) -> float:
        seen = self._seen.current
        node = seen.value.nodes.get(stray) if isinstance(seen, Fresh) else None
        return OFF_STRAY_S if node is not None and node.powered_down else STRAY_S

    async def _carry_out(self, changes: SlotChanges) -> None:
        for reason, slots in changes.drain.items():
            await self._slurm.drain_slots(slots, reason)
            self._note(EventKind.SLOTS, f"{_names(slots)} drained: {reason}")
        for one in self._in_short(changes.send_back):
            await self._send_back(one)
        await self._close(changes.unwanted)
        await self._power_down(changes.power_down, "no job could use it")
        await self._power_down(changes.strays, "it has no machine")
        for job in changes.start_now:
            await self._slurm.update_job(job, wait_s=0, admin_comment="")
            self._note(EventKind.QUEUE, f"job {job} may start again")
        for job, comment in changes.start_early.items():
            self._early = {**dict(list(self._early.items())[-EARLY_MAX:]), job: comment}
            await self._slurm.update_job(job, wait_s=0, admin_comment="")
            self._note(EventKind.QUEUE, f"job {job} may start: enough nodes are idle")
        if changes.resume:
            await self._slurm.resume_slots(changes.resume)
            self._note(EventKind.SLOTS, f"{_names(changes.resume)} resumed: machines can be had again")
        try:
            await self._slurm.resume_slots(changes.off_now)
        except SlurmError as error:  # Slurm has switched one off meanwhile, or does so within SuspendTimeout
            log.info("slots_not_hastened", reason=str(error))

    async def _close(self, slots: Collection[str]) -> None:
        """Power down slots that power up for nobody: close them, look once more, and leave those that a job has got."""
        if not slots:
            return
        await self._slurm.power_down(to_close(slots, await self._slurm.view()), NOBODY)
        await self._power_down(unwanted_now(slots, await self._slurm.view()), "nobody waits for it")

    async def _power_down(self, slots: Collection[str], why: str) -> None:
        if slots:
            await self._slurm.power_down(slots, f"meshd: {why}", force=True)
            self._note(EventKind.SLOTS, f"{_names(slots)} powered down: {why}")

    def _in_short(self, jobs: Collection[SendBack]) -> list[SendBack]:
        """With the sentence that `meshctl status` has: who has none, not each offer with its cloud's words."""
        if not jobs:
            return []
        said = {one.job: one.text for one in self._waiting() if one.wait is Wait.REFUSED}
        return [replace(one, why=said.get(one.job, one.why)) for one in jobs]

    async def _send_back(self, one: SendBack) -> None:
        """Put a batch job back until the next try; end the allocation of who waits at a terminal, and say why."""
        try:
            if not one.batch:
                await self._slurm.tell(one.job, one.comment)
                await self._slurm.cancel(one.job)
                self._note(EventKind.QUEUE, f"job {one.job} was ended: {one.comment}")
                return
            if not one.may_requeue:
                await self._slurm.update_job(one.job, requeue=True)
            await self._requeue(one.job)
            wait_s = max(0.0, (one.until - self._now()).total_seconds())
            requeue = None if one.may_requeue else False
            await self._slurm.update_job(one.job, wait_s=wait_s, admin_comment=one.comment, requeue=requeue)
            self._note(EventKind.QUEUE, f"job {one.job} is back in the queue: {one.comment}")
        except SlurmError as error:
            # It may have ended meanwhile: the others go on, and what is still true is tried again.
            log.warning("job_not_sent_back", job=one.job, reason=str(error))

    async def _requeue(self, job: str) -> None:
        """Put a job back; one that Slurm has put back itself meanwhile is no error."""
        try:
            await self._slurm.requeue(job)
        except SlurmError:
            if not any(one.id == job and one.state == "PENDING" for one in (await self._slurm.view()).jobs):
                raise

    def _now(self) -> datetime:
        return self._clock.now()

    def _note(self, kind: EventKind, text: str) -> None:
        log.info("slots", what=kind.value, text=text)
        self._journal.event(self._now(), kind, text)


def _names(slots: Collection[str]) -> str:
    """A host list for people: it may be cut."""
    text = str(NodeSet.fromlist(slots))
    return text if len(text) <= NAMES_MAX else f"{text[:NAMES_MAX]}..."


def slot_pools(settings: Settings) -> list[SlotPool]:
    """The pools of the settings, as `meshd.plan.slots` looks at them."""
    return [SlotPool(name, pool.max_nodes, pool.partition or name) for name, pool in settings.pools.items()]
