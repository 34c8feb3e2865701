"""Puts the machines' controller together with what carries its steps out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from meshd.daemon.controller import Wakes
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.machine_logs import MachineLogs
from meshd.daemon.machine_store import MachineStore
from meshd.daemon.machines.boot_images import NO_IMAGES, BootImages
from meshd.daemon.machines.cloud_steps import CloudSteps
from meshd.daemon.machines.controller import MachineController
from meshd.daemon.machines.create_calls import UserDataSource
from meshd.daemon.machines.executor import Executor
from meshd.daemon.machines.node_steps import Agents, Devices, NodeSteps, SlurmControl
from meshd.daemon.machines.policies import Policies
from meshd.daemon.observe.agent_reports import NodeLogs, NodeReports
from meshd.model.desired import Desired, Policy
from meshd.model.freeze import Freeze
from meshd.model.observed import Snapshot
from meshd.provider_api import Provider


@dataclass(frozen=True, slots=True)
class MachineParts:
    """The parts.

    Attributes:
        controller: ticks.
        executor: carries out what a tick has begun.
        policies: look before each plan.
        cloud_steps: the steps that speak with a cloud.
        node_steps: the steps that speak with a node and with Slurm.
    """

    controller: MachineController
    executor: Executor
    policies: Policies
    cloud_steps: CloudSteps
    node_steps: NodeSteps


def build(
    live: LiveSettings,
    store: MachineStore,
    *,
    providers: Mapping[str, Provider],
    slurm: SlurmControl,
    agents: Agents,
    devices: Devices | None,
    user_data: UserDataSource,
    desired: Callable[[], Desired],
    snapshot: Callable[[], Snapshot],
    list_again: Callable[[str], None],
    reports: NodeReports,
    logs: NodeLogs | None = None,
    machine_logs: MachineLogs | None = None,
    wait_until_quiet: Callable[[], Awaitable[None]] | None = None,
    awake: asyncio.Event | None = None,
    followers: Sequence[Wakes] = (),
    tick_took_s: Callable[[float], object] = lambda _: None,
    images: BootImages = NO_IMAGES,
    freeze: Callable[[], Freeze | None] = lambda: None,
    restored: Callable[[Snapshot, Policy], None] = lambda _, __: None,
) -> MachineParts:
    """Make the parts.

    Args:
        live: the settings.
        store: the journal's machines.
        providers: the enabled ones.
        slurm: Slurm's commands.
        agents: the node agents.
        devices: the tailnet's API; None without a credential.
        user_data: makes each machine's user data.
        desired: what is desired now.
        snapshot: what every source said last.
        list_again: has a provider's machines listed soon.
        reports: what the node agents said last.
        logs: keeps the logs of unfit nodes; None: no log is kept.
        machine_logs: keeps the last logs of machines; None: none are kept.
        wait_until_quiet: returns when no change of the munge key is at its moment.
        awake: see MachineController.
        followers: see MachineController.
        tick_took_s: see MachineController.
        images: says from which image a machine boots.
        freeze: the freeze that holds; None for none.
        restored: see MachineController.
    """
    awake = awake or asyncio.Event()
    node_steps = NodeSteps(store, slurm, agents, devices, live, wait_until_quiet, machine_logs)
    cloud_steps = CloudSteps(
        live.settings.cluster.name,
        store,
        providers,
        user_data,
        live,
        list_again,
        node_steps.at_work,
        images,
        freeze,
    )
    executor = Executor(store, cloud_steps, node_steps, store.clock, awake.set, live)
    policies = Policies(store, live, desired, executor, reports, logs)
    controller = MachineController(
        store, executor, policies, live, store.clock, desired=desired, snapshot=snapshot, awake=awake,
        followers=followers, tick_took_s=tick_took_s, restored=restored,
    )  # fmt: skip
    return MachineParts(controller, executor, policies, cloud_steps, node_steps)
