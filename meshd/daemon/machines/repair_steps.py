"""The steps for nodes that are not fit: slurmd is started again, a drain of meshd's is lifted, a node is given up."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Protocol

import structlog

from meshd.api.node_schema import Verb
from meshd.codes import EventKind
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.machine_store import MachineStore
from meshd.model.cooldown import CooldownCause, CooldownKey
from meshd.model.machine import FailureCause, Phase
from meshd.model.observed import SlurmView
from meshd.model.plan import RecordFitness, ReloadSlurmd, Replace, RequeueLostJobs, RestartSlurmd, Undrain
from meshd.plan.fitness import OURS
from meshd.plan.replace import cooldown_most_s

log = structlog.get_logger(__name__)

RESTART_TIMEOUT_MAX_S = 60.0
"""The longest that an agent may take to restart or reload slurmd; less where `timing.configure_timeout_s` is less."""


class Slurm(Protocol):
    """What is asked of Slurm."""

    async def view(self) -> SlurmView:
        """Nodes and jobs now. Raises SlurmError."""
        ...

    async def node_settings(self) -> Mapping[str, str]:
        """Settings of slurmd that a machine's kernel may not allow. Raises SlurmError."""
        ...

    async def resume(self, slot: str) -> None:
        """Jobs may come again. Raises SlurmError."""
        ...

    async def requeue(self, job: str) -> None:
        """Put a batch job back into the queue. Raises SlurmError."""
        ...


class Agents(Protocol):
    """What is asked of the node agents."""

    async def command(self, machine: str, verb: Verb, args: Mapping[str, Any], timeout_s: float) -> str:
        """Have the agent carry out a verb; returns "" or why it failed."""
        ...


class NodeRepairs:
    """Carries out the steps. Each looks once more before it acts: what was seen may be over."""

    def __init__(self, machine_store: MachineStore, slurm: Slurm, agents: Agents, live: LiveSettings) -> None:
        self._machine_store = machine_store
        self._slurm = slurm
        self._agents = agents
        self._live = live

    def note(self, step: RecordFitness) -> None:
        """Journal the verdict."""
        found = step.unfit_reason
        self._machine_store.change(
            step.subject, EventKind.UNFIT if found else EventKind.FIT, step.reason, unfit_reason=found,
            unfit_since=step.since if found else None,
        )  # fmt: skip

    async def restart_slurmd(self, step: RestartSlurmd) -> None:
        """Have the agent restart slurmd. Once for each trouble: what a restart does not mend, a second one does not."""
        args = {"slurm_settings": await self._slurm.node_settings()}
        now = self._machine_store.now()
        text = f"slurmd is restarted: {step.reason}"
        self._machine_store.change(step.subject, EventKind.SLURMD_RESTARTED, text, slurmd_restarted_at=now)
        await self._order(step, "restart_slurmd", args, EventKind.SLURMD_RESTARTED)

    async def reload_slurmd(self, step: ReloadSlurmd) -> None:
        """Have the agent send slurmd SIGHUP."""
        now = self._machine_store.now()
        text = f"slurmd registers again: {step.reason}"
        self._machine_store.change(step.subject, EventKind.SLURMD_RELOADED, text, slurmd_reloaded_at=now)
        await self._order(step, "reload_slurmd", {}, EventKind.SLURMD_RELOADED)

    async def _order(
        self, step: RestartSlurmd | ReloadSlurmd, verb: Verb, args: Mapping[str, Any], kind: EventKind
    ) -> None:
        timeout_s = min(RESTART_TIMEOUT_MAX_S, self._live.settings.timing.configure_timeout_s)
        why = await self._agents.command(step.subject, verb, args, timeout_s)
        if why:
            log.warning("slurmd_not_ordered", machine=step.subject, verb=verb, reason=why)
            text = f"its agent could not do {verb}: {why}"
            self._machine_store.journal.event(self._machine_store.now(), kind, text, step.subject)

    async def undrain(self, step: Undrain) -> None:
        """Lift a drain whose reason is meshd's own."""
        machine = self._machine_store.get(step.subject)
        node = (await self._slurm.view()).nodes.get(step.slot)
        if machine.phase is not Phase.READY or machine.removal or node is None or node.node_addr != machine.tailnet_ip:
            return
        if node.drained and node.reason.startswith(OURS):
            await self._slurm.resume(step.slot)
            self._machine_store.change(step.subject, EventKind.UNDRAINED, f"takes jobs again: {step.reason}")

    async def requeue_lost(self, step: RequeueLostJobs) -> None:
        """Put jobs back into the queue that were lost when their machine booted, after one more look."""
        view, now = await self._slurm.view(), self._machine_store.now()
        for job in view.jobs:
            if job.id not in step.jobs or step.slot not in job.nodes or job.run_s is None:
                continue
            if now - timedelta(seconds=job.run_s) < step.started_before:  # it may have been requeued, and run again
                await self._slurm.requeue(job.id)
                text = f"job {job.id} was requeued: {step.reason}"
                self._machine_store.journal.event(self._machine_store.now(), EventKind.QUEUE, text, step.subject)

    async def replace(self, step: Replace) -> None:
        """Give the node up, after one more look that no job is on it. The pool's next replacement waits from now on."""
        machine = self._machine_store.get(step.subject)
        view = await self._slurm.view()
        node = view.nodes.get(step.slot)
        busy = view.running_on(step.slot) or (node is not None and node.busy)
        fit = machine.unfit_reason is None
        if machine.phase is not Phase.READY or machine.removal or busy or fit:
            return
        first_s = self._live.settings.timing.breaker_cooldown_s
        self._machine_store.refused(
            CooldownKey.of_replacements(step.pool), first_s, cooldown_most_s(first_s),
            f"{step.slot} was replaced: {step.reason}", cause=CooldownCause.UNFIT,
        )  # fmt: skip
        self._machine_store.move(
            step.subject, Phase.DRAINING, step.reason, failure=step.reason, cause=FailureCause.UNFIT
        )
