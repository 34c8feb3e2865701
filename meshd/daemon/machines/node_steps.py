"""The steps that speak with Slurm, the node agents and the tailnet: start, drain, leave, forget."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Protocol

import structlog

from meshd.api.node_schema import Verb
from meshd.codes import EventKind
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.machine_logs import HEARD_LATELY, MachineLogs
from meshd.daemon.machine_store import MachineStore
from meshd.daemon.machines.preemption_steps import Jobs, PreemptionSteps
from meshd.daemon.machines.repair_steps import NodeRepairs
from meshd.errors import MeshdError, TailnetError
from meshd.model.cooldown import TRIED_ALONE, scopes
from meshd.model.machine import FailureCause, Machine, Phase, Removal
from meshd.model.observed import SlurmNode, SlurmView
from meshd.model.plan import CancelRemoval, DisableKeyExpiry, Drain, Leave, MarkReady, RemoveDevice, StartSlurmd
from meshd.plan.devices import NO_IPV4
from meshd.plan.fitness import OURS, by_person, drained_before_start
from meshd.plan.leaving import way_out
from meshd.slurm.instance import slurmd_args

log = structlog.get_logger(__name__)

ERASE_TIMEOUT_S = 5.0


class SlurmControl(Jobs, Protocol):
    """What is asked of Slurm."""

    async def view(self) -> SlurmView:
        """Nodes and jobs now. Raises SlurmError."""
        ...

    async def node_settings(self) -> Mapping[str, str]:
        """Settings of slurmd that a machine's kernel may not allow. Raises SlurmError."""
        ...

    async def drain(self, slot: str, reason: str) -> None:
        """No new jobs on the slot. Raises SlurmError."""
        ...

    async def resume(self, slot: str) -> None:
        """Jobs may come again. Raises SlurmError."""
        ...

    async def forget_reason(self, slot: str) -> None:
        """An open node has no reason any more. Raises SlurmError."""
        ...

    async def set_down(self, slot: str, reason: str) -> None:
        """The node is dead: its jobs are requeued. Raises SlurmError."""
        ...

    async def power_down(self, slots: Collection[str], reason: str = "", *, force: bool = False) -> None:
        """Slurm switches the nodes off; with `force` at once. Raises SlurmError."""
        ...

    async def set_node_addrs(self, addrs: Mapping[str, str]) -> None:
        """Where slurmctld reaches these nodes from now on. Raises SlurmError."""
        ...


class Agents(Protocol):
    """What is asked of the node agents."""

    async def command(self, machine: str, verb: Verb, args: Mapping[str, Any], timeout_s: float) -> str:
        """Have the agent carry out a verb; returns "" or why it failed (also when it did not answer in time)."""
        ...

    def hasten(self, machine: str) -> bool:
        """Have the agent speak now; False when it may be at work on a command, and silent for that."""
        ...


class Devices(Protocol):
    """What is asked of the tailnet's API."""

    async def delete_device(self, device_id: str) -> None:
        """Delete a device; one that does not exist is no error. Raises TailnetError."""
        ...

    async def disable_key_expiry(self, device_id: str) -> None:
        """Have a device's node key never expire. Idempotent. Raises TailnetError."""
        ...


class NodeSteps:
    """Carries out the steps about nodes.

    Args:
        devices: the tailnet's API; None without a credential.
        wait_until_quiet: returns when Slurm's daemons understand each other: no node is let in before.
        logs: keeps the last logs of machines; None: none are kept.
    """

    def __init__(
        self,
        machine_store: MachineStore,
        slurm: SlurmControl,
        agents: Agents,
        devices: Devices | None,
        live: LiveSettings,
        wait_until_quiet: Callable[[], Awaitable[None]] | None = None,
        logs: MachineLogs | None = None,
    ) -> None:
        self._machine_store = machine_store
        self._slurm = slurm
        self._agents = agents
        self._devices = devices
        self._live = live
        self._wait_until_quiet = wait_until_quiet
        self._logs = logs
        self.repairs = NodeRepairs(machine_store, slurm, agents, live)
        self.preemption = PreemptionSteps(machine_store, slurm)

    async def start_slurmd(self, step: StartSlurmd) -> None:
        """Have slurmd started; the machine is then tested."""
        await self._until_quiet()
        machine = self._machine_store.get(step.subject)
        if machine.phase not in {Phase.CONFIGURING, Phase.TESTING} or machine.slurmd_started or machine.removal:
            return

        async def give_address() -> None:
            if step.cloud:
                await self._slurm.set_node_addrs({machine.slot: machine.tailnet_ip})

        settings, _ = await asyncio.gather(self._slurm.node_settings(), give_address())
        args = {"slurm_settings": settings, "slurmd_args": slurmd_args(machine, step.cloud)}
        # Written down before it is asked for: from here on a job may run there, whatever the agent answers.
        self._machine_store.change(
            step.subject,
            EventKind.START_SLURMD,
            "meshd orders its agent to start slurmd",
            slurmd_start_ordered_at=self._machine_store.now(),
        )
        timeout_s = self._live.settings.timing.configure_timeout_s
        why = await self._agents.command(step.subject, "start_slurmd", args, timeout_s)
        if why:
            text = f"its agent could not start slurmd: {why}"
            self._machine_store.move(step.subject, Phase.DRAINING, text, failure=text)
            return
        if machine.phase is Phase.TESTING:  # its path was tested first
            text = "slurmd was started"
            self._machine_store.change(step.subject, EventKind.START_SLURMD, text, slurmd_started=True)
            return
        self._machine_store.move(step.subject, Phase.TESTING, "slurmd was started", slurmd_started=True)

    async def mark_ready(self, step: MarkReady) -> None:
        """Resume a node that meshd had drained, and call it READY."""
        await self._until_quiet()
        machine = self._machine_store.get(step.subject)
        view = await self._slurm.view()
        node = view.nodes.get(machine.slot)
        ours = node is not None and node.node_addr == machine.tailnet_ip
        if machine.phase is not Phase.TESTING or node is None or not ours or not node.up:
            return
        if node.drained:
            # A drain of Slurm's own from before this machine's slurmd tells of the machine that stood there before.
            slurms = node.reason_by in {"root", view.slurm_user} and drained_before_start(node, machine)
            if not node.reason.startswith(OURS) and (by_person(node, view.slurm_user) or not slurms):
                return
            await self._slurm.resume(machine.slot)
        elif node.reason.startswith(OURS):
            await self._slurm.forget_reason(machine.slot)  # it is of the time before this machine
        self._machine_store.move(machine.name, Phase.READY, step.reason, ready_at=self._machine_store.now())
        self._machine_store.proved(*scopes(machine.pool, machine.offer), causes=TRIED_ALONE)

    async def cancel_removal(self, step: CancelRemoval) -> None:
        """Undo a drain of ours; a machine that was not drained yet only stays."""
        machine = self._machine_store.get(step.subject)
        if machine.phase is not Phase.DRAINING:
            if machine.removal is Removal.SCALE_DOWN:
                self._machine_store.change(machine.name, EventKind.KEPT, step.reason, removal=None, reason=step.reason)
            return
        node = (await self._slurm.view()).nodes.get(machine.slot)
        if node is not None and node.cloud and node.leaves_power:
            return  # it goes on leaving
        node = node if node is not None and node.node_addr == machine.tailnet_ip else None
        drained_at = machine.drained_at
        ours = drained_at is not None and drained_at >= machine.phase_since
        if ours and node is not None and node.drained and node.reason.startswith(OURS):
            await self._slurm.resume(machine.slot)
        machine = self._machine_store.get(step.subject)
        if machine.removal is Removal.SCALE_DOWN and not machine.left_slurm:  # nobody has removed it meanwhile
            self._machine_store.move(machine.name, Phase.READY, step.reason, removal=None)

    def ask_agent(self, machine: str) -> bool:
        """Have a machine's agent give a sign of life; False when its silence would prove nothing."""
        return self._agents.hasten(machine)

    async def _until_quiet(self) -> None:
        if self._wait_until_quiet is not None:
            await self._wait_until_quiet()

    async def drain(self, step: Drain) -> None:
        """Let no new jobs onto the slot."""
        await self._slurm.drain(step.slot, f"{OURS} {step.reason}"[:250])
        self._machine_store.change(
            step.subject, EventKind.DRAINED, f"no new jobs: {step.reason}", drained_at=self._machine_store.now()
        )

    async def leave(self, step: Leave) -> None:
        """Take the machine out of Slurm, after one more look that no job is on it."""
        machine = self._machine_store.get(step.subject)
        view = await self._slurm.view()
        node = view.nodes.get(step.slot)
        if node is not None and self._is_anothers(node, machine):
            node = None  # what runs there is not this machine's: it is not in Slurm any more
        jobs = view.running_on(step.slot) if node is not None else ()
        ours = node is not None and node.node_addr == machine.tailnet_ip
        busy = bool(jobs) or (node is not None and node.busy)
        cloud = node is not None and node.cloud
        closed = node is None or node.drained or (cloud and (node.powering_up or node.powered_down))
        if not step.forced and not step.dead and (busy or (ours and not closed)):
            # Somebody resumed the node, so it may get a job at any moment: drain it again first.
            log.info("leave_waits", machine=machine.name, jobs=jobs)
            return
        if busy and step.forced:
            self._machine_store.journal.event(
                self._machine_store.now(),
                EventKind.FORCE,
                f"job {', '.join(jobs)} loses {step.slot}: removed by force",
                machine.name,
            )
        text = f"{OURS} {machine.failure or step.reason}"[:250]
        if cloud and node is not None and (ours or busy):
            await self._power_down(node, text, busy=busy)
        slurmd_runs = machine.may_run_jobs and not step.dead  # also an adopted one, which cannot be told to stop it
        if not step.dead and not step.silent and machine.facts is not None:
            await self._keep_logs(machine)
            why = await self._agents.command(machine.name, "leave", {}, self._live.settings.timing.leave_timeout_s)
            if why:
                log.warning("agent_did_not_leave", machine=machine.name, reason=why)
            slurmd_runs = bool(why)
        if (ours or busy) and not cloud:
            if ours and node is not None and not node.drained and not step.dead:
                # DOWN alone does not last: slurmctld opens the node when its slurmd answers once more.
                await self._slurm.drain(step.slot, text)
            await self._slurm.set_down(step.slot, text)
        self._machine_store.change(
            machine.name, EventKind.LEFT, f"out of Slurm: {step.reason}", left_slurm=True, slurmd_started=slurmd_runs
        )

    def _is_anothers(self, node: SlurmNode, machine: Machine) -> bool:
        """Whether Slurm has another machine behind the node."""
        others = (m for m in self._machine_store.journal.machines() if m.slot == node.name and m.name != machine.name)
        return any(m.tailnet_ip == node.node_addr != "" for m in others)

    async def _power_down(self, node: SlurmNode, text: str, *, busy: bool) -> None:
        """Have Slurm switch off a CLOUD node that nothing is to run on any more.

        Its jobs are put back into the queue first. A node that powers up is left to those who wait for it: another
        machine can take its slot.
        """
        if busy:
            await self._slurm.set_down(node.name, text)
        if (busy or not node.powering_up) and not node.powered_down:
            await self._slurm.power_down([node.name], text, force=True)

    async def at_work(self, machine: Machine) -> str:
        """Why a machine must not be ended just now; "" when it may. The last look before its end.

        Only a machine whose slurmd may still run needs it: somebody may have opened its node again after it had
        left, and then it may have a job. It is drained once more, and its jobs are waited for.

        A machine that joined and never started slurmd has not left Slurm: tell it here to erase its secrets.

        Raises:
            SlurmError: Slurm cannot be asked: unknown is not idle.
        """
        if not machine.terminate_calls:
            await self._keep_logs(machine)
        if not machine.may_run_jobs:
            await self._erase_secrets(machine)
        if not machine.slurmd_started or machine.removal is Removal.FORCED:
            return ""
        view = await self._slurm.view()
        node = view.nodes.get(machine.slot)
        if node is None or node.node_addr != machine.tailnet_ip or not node.up:
            return ""
        jobs = view.running_on(machine.slot)
        if not node.drained:
            await self._slurm.drain(machine.slot, f"{OURS} {machine.failure or machine.reason}"[:250])
        elif not node.busy and not jobs:
            return ""
        return f"its slurmd runs on, and its node is open or at work: {', '.join(jobs) or 'no job yet'}"

    async def _keep_logs(self, machine: Machine) -> None:
        if self._logs is not None:
            await self._logs.keep_last(machine)

    async def _erase_secrets(self, machine: Machine) -> None:
        """Best effort, once: an agent that spoke just now answers at once, and no machine's end waits for another."""
        heard = machine.heartbeat_at
        fresh = heard is not None and self._machine_store.now() - heard < HEARD_LATELY
        if machine.facts is None or machine.left_slurm or machine.terminate_calls or not fresh:
            return
        why = await self._agents.command(
            machine.name, "leave", {}, min(ERASE_TIMEOUT_S, self._live.settings.timing.leave_timeout_s)
        )
        if why:
            log.warning("secrets_not_erased", machine=machine.name, reason=why)

    async def remove_device(self, step: RemoveDevice) -> None:
        """Delete the tailnet devices of a machine that is gone."""
        if self._devices is None:
            return
        try:
            for device_id in step.device_ids:
                await self._devices.delete_device(device_id)
        except TailnetError as error:
            log.warning("device_not_removed", machine=step.subject, reason=str(error))
            return
        self._machine_store.change(
            step.subject, EventKind.DEVICE_REMOVED, "its tailnet device was deleted", device_removed=True
        )

    async def disable_key_expiry(self, step: DisableKeyExpiry) -> None:
        """Disable the expiry of the machine's node key. On refusal, record an event and continue."""
        if self._devices is None:
            return
        try:
            await self._devices.disable_key_expiry(step.device_id)
        except TailnetError as error:
            log.warning("key_expiry_not_disabled", machine=step.subject, reason=str(error))
            self._machine_store.change(
                step.subject,
                EventKind.KEY_EXPIRY,
                f"{step.reason}, and that cannot be changed: {error}",
                key_expiry_asked_at=self._machine_store.now(),
            )
            return
        self._machine_store.change(
            step.subject,
            EventKind.KEY_EXPIRY,
            f"{step.reason}: its expiry is disabled",
            key_expiry_asked_at=self._machine_store.now(),
        )

    async def refuse(self, machine: Machine, error: MeshdError) -> None:
        """Give up a machine that may not join."""
        cause = FailureCause.NO_IPV4 if str(error).startswith(NO_IPV4) else FailureCause.ADMISSION
        self._machine_store.move(machine.name, way_out(machine), str(error), failure=str(error), cause=cause)
