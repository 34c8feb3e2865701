"""Builds the services behind `meshctl`, the server of their API, and the metrics."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from meshd.api.auth import Authorizer
from meshd.api.handlers import Handlers
from meshd.api.monitoring import MonitoringPages
from meshd.api.server import HeadApiServer
from meshd.daemon.auth_key.service import AuthKeyService
from meshd.daemon.head_api.audit import AuditService
from meshd.daemon.head_api.doctor import Doctor
from meshd.daemon.head_api.freeze import FreezeService
from meshd.daemon.head_api.metrics import KeyTimes, MetricsReader, MetricsService
from meshd.daemon.head_api.service import HeadService
from meshd.daemon.head_api.targets import Targets
from meshd.daemon.hosts.invitations import Invitations
from meshd.daemon.images.service import ImageService
from meshd.daemon.live_settings import LiveSettings, Reload
from meshd.daemon.machine_logs import MachineLogs
from meshd.daemon.machine_store import MachineStore
from meshd.daemon.machines.node_steps import SlurmControl
from meshd.daemon.machines.wiring import MachineParts
from meshd.daemon.money.service import CostService
from meshd.daemon.munge_key.service import MungeKeyService
from meshd.daemon.nodes.token_renewal import NodeTokenService
from meshd.daemon.notifications.controller import NotificationController
from meshd.daemon.observe.agent_reports import NodeLogs
from meshd.daemon.observe.slurm_ping import SlurmPing
from meshd.daemon.observe.snapshot import SnapshotReader
from meshd.daemon.observe.source import Refresh
from meshd.daemon.observe.sources import Sources
from meshd.daemon.prices.service import PriceService
from meshd.daemon.providers.guards import Guards
from meshd.daemon.reporting import Report
from meshd.daemon.slurm.controller import SlurmFilesController
from meshd.daemon.slurm.head_node import HeadNode
from meshd.model.desired import Desired
from meshd.obs.metrics import Metrics
from meshd.plan.waiting import WaitingJob
from meshd.store.ledger import Ledger
from meshd.tailnet.watcher import TailnetWatcher


@dataclass(frozen=True, slots=True)
class HeadApiParts:
    """The parts.

    Attributes:
        service: answers; also knows all problems.
        handlers: what of it answers which endpoint.
        server: serves it on a unix socket.
        metrics: serves the metrics over TCP, where the settings say so.
        reload: reads the settings again.
    """

    service: HeadService
    handlers: Handlers
    server: HeadApiServer
    metrics: MetricsService
    reload: Reload


def build(
    live: LiveSettings,
    store: MachineStore,
    machines: MachineParts,
    report: Report,
    metrics: Metrics,
    reload: Reload,
    *,
    slurm: SlurmControl,
    slurm_files: SlurmFilesController,
    slurm_ping: SlurmPing,
    tailnet: TailnetWatcher,
    head_node: HeadNode,
    sources: Sources,
    snapshot: SnapshotReader,
    desired: Callable[[], Desired],
    guards: Guards,
    logs: NodeLogs,
    machine_logs: MachineLogs,
    prices: PriceService,
    costs: CostService,
    ledger: Ledger,
    auth_key: AuthKeyService,
    munge_key: MungeKeyService,
    node_tokens: NodeTokenService,
    hosts: Invitations,
    images: ImageService,
    freezes: FreezeService,
    audit: AuditService,
    notifications: NotificationController,
    waiting: Callable[[], tuple[WaitingJob, ...]] = tuple,
    keys: Callable[[], KeyTimes] = KeyTimes,
) -> HeadApiParts:
    """Build the parts. For the arguments see HeadService and MetricsReader."""
    clock, cluster = store.clock, live.settings.cluster
    pages = MonitoringPages(metrics.registry, Targets(store.journal, live))
    metrics_service = MetricsService(pages, live, clock)
    everything = Report(report, metrics_service)
    service = HeadService(
        live, store, machines, slurm=slurm, slurm_files=slurm_files, slurm_ping=slurm_ping, tailnet=tailnet,
        head_node=head_node,
        sources=sources, snapshot=snapshot, desired=desired, report=everything, reload=reload, logs=logs,
        machine_logs=machine_logs,
        doctor=Doctor(report.checks, look=snapshot.refresh, now=clock.now),
        read_offers=Refresh(sources.offers.values(), clock),
        prices=prices, costs=costs, auth_key=auth_key, munge_key=munge_key, node_tokens=node_tokens,
        hosts=hosts, images=images, freezes=freezes, audit=audit, notifications=notifications, waiting=waiting,
    )  # fmt: skip
    metrics.follow(
        MetricsReader(
            store.journal, desired, snapshot, service, guards, slurm_files, machines, ledger, live, waiting, keys, clock
        )
    )
    handlers = service.handlers()
    server = HeadApiServer(
        handlers, path=cluster.socket, authorizer=Authorizer(cluster.socket_group, own_uid=os.getuid()),
        monitoring=pages, clock=clock,
    )  # fmt: skip
    return HeadApiParts(service, handlers, server, metrics_service, reload)
