"""The composition root: builds the daemon's parts from the settings, the journal and the ports."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from meshd.codes import EventKind
from meshd.config import Settings
from meshd.daemon.active_rotation import ActiveRotations
from meshd.daemon.auth_key.wiring import AuthKeyParts
from meshd.daemon.auth_key.wiring import build as build_auth_key
from meshd.daemon.controller import Controller
from meshd.daemon.head_api.audit import AuditService, AuditSources
from meshd.daemon.head_api.freeze import FreezeService
from meshd.daemon.head_api.metrics import KeyTimes
from meshd.daemon.head_api.wiring import HeadApiParts
from meshd.daemon.head_api.wiring import build as build_head_api
from meshd.daemon.hosts.provider import StaticProvider
from meshd.daemon.hosts.wake import Waker
from meshd.daemon.hosts.wiring import NamedDevices, open_invitations
from meshd.daemon.hosts.wiring import build as build_hosts
from meshd.daemon.images.controller import ImageController
from meshd.daemon.images.wiring import build as build_images
from meshd.daemon.live_settings import LiveSettings, Reload
from meshd.daemon.machine_logs import MachineLogs
from meshd.daemon.machine_store import MachineStore
from meshd.daemon.machines.desired_state import DesiredState, pod_limits
from meshd.daemon.machines.restored import RestoreWatch
from meshd.daemon.machines.wiring import MachineParts
from meshd.daemon.machines.wiring import build as build_machines
from meshd.daemon.money.report import BudgetReporter
from meshd.daemon.money.service import CostService
from meshd.daemon.money.uses import JobUses
from meshd.daemon.munge_key.quiesce import Quiesce
from meshd.daemon.munge_key.wiring import MungeKeyParts
from meshd.daemon.munge_key.wiring import build as build_munge_key
from meshd.daemon.nodes.exports import HeadExports
from meshd.daemon.nodes.head_accounts import HeadAccounts
from meshd.daemon.nodes.head_pyxis import HeadPyxis
from meshd.daemon.nodes.node_settings import NodeSettings
from meshd.daemon.nodes.roster import HeadNames, Roster
from meshd.daemon.nodes.server import NodeApiServer
from meshd.daemon.nodes.ssh_key import HeadKey
from meshd.daemon.nodes.user_data import UserDataMaker
from meshd.daemon.nodes.wiring import NodeParts, NodeReporter
from meshd.daemon.nodes.wiring import build as build_nodes
from meshd.daemon.notifications.controller import NotificationController
from meshd.daemon.notify import Notifier
from meshd.daemon.observe.agent_reports import NodeLogs, NodeReports
from meshd.daemon.observe.loop_lag import LoopLag
from meshd.daemon.observe.mlflow import MlflowReporter
from meshd.daemon.observe.report import SourceReporter
from meshd.daemon.observe.slurm_ping import SlurmPing
from meshd.daemon.observe.snapshot import SnapshotReader
from meshd.daemon.observe.sources import Sources
from meshd.daemon.ports import Ports
from meshd.daemon.prices.prices import Prices
from meshd.daemon.prices.service import build as build_prices
from meshd.daemon.promises import PoolPromises
from meshd.daemon.providers.guards import Guards
from meshd.daemon.reporting import Report
from meshd.daemon.service_status import ServiceStatus
from meshd.daemon.slurm.controller import SlurmFilesController
from meshd.daemon.slurm.head_node import HeadNode
from meshd.daemon.slurm.job_comments import JobComments
from meshd.daemon.slurm.prolog_gate import JobUsers
from meshd.daemon.slurm.slots import SlotController
from meshd.daemon.slurm.wiring import build_head_programs
from meshd.daemon.waiting import WaitingJobs
from meshd.daemon.web.service import WebService
from meshd.daemon.web.wiring import build as build_web
from meshd.model.freeze import Freeze
from meshd.model.host import PROVIDER
from meshd.model.machine import Machine
from meshd.obs.metrics import Metrics
from meshd.plan.ledger import rounding_of
from meshd.runtime.run import run
from meshd.store.auth_rotations import AuthRotations
from meshd.store.bakes import Bakes
from meshd.store.freezes import Freezes
from meshd.store.hosts import Hosts
from meshd.store.journal import Journal
from meshd.store.ledger import Ledger
from meshd.store.ledger_copy import LedgerCopy
from meshd.store.munge_rotations import MungeRotations
from meshd.store.notices import ToldReceivers
from meshd.store.restores import Restores
from meshd.tailnet.link import HeadTailnet
from meshd.tailnet.watcher import TailnetWatcher


@dataclass(frozen=True, slots=True)
class Daemon:
    """The parts of one life of meshd.

    Attributes:
        live: the settings.
        store: the machines, and the journal that remembers them.
        ports: the outside world.
        sources: the clouds, Slurm and the auth key's state.
        tailnet: watches tailscaled.
        snapshot: what every source said last.
        desired: what is desired now.
        machines, nodes, slurm_files, auth_key, munge_key, prices: the rooms.
        controllers: all that make passes, each with its name.
        head: the services behind `meshctl`, their server and the metrics.
        node_api: serves the node agents.
        web: serves the page for browsers, where the settings say so.
        notifier: speaks to systemd.
    """

    live: LiveSettings
    store: MachineStore
    ports: Ports
    sources: Sources
    tailnet: TailnetWatcher
    snapshot: SnapshotReader
    desired: DesiredState
    machines: MachineParts
    nodes: NodeParts
    slurm_files: SlurmFilesController
    auth_key: AuthKeyParts
    munge_key: MungeKeyParts
    prices: Prices
    controllers: Sequence[Controller]
    head: HeadApiParts
    node_api: NodeApiServer
    web: WebService
    notifier: Notifier

    @property
    def journal(self) -> Journal:
        """What is remembered."""
        return self.store.journal


def owned_machines(settings: Settings) -> bool:
    """Whether the settings have owned machines."""
    table = settings.providers.get(PROVIDER)
    return table is not None and table.enabled


def build(live: LiveSettings, journal: Journal, ports: Ports) -> Daemon:
    """Build all parts, inside a running event loop; nothing runs yet. Raises StoreError for an unreadable journal."""
    settings, clock, agents, keys = live.settings, ports.clock, ports.agents, ports.keys
    awake, notifier, metrics = asyncio.Event(), Notifier(), Metrics()
    store = MachineStore(journal, clock, awake.set)
    auth_rotations, munge_rotations = AuthRotations(journal), MungeRotations(journal)
    active, quiesce = ActiveRotations(auth_rotations, munge_rotations), Quiesce(munge_rotations, clock)
    guards = Guards(live, metrics, clock)
    hosts, waker = Hosts(journal, settings.cluster.state_dir / "hosts.json"), Waker(run)
    hosts.restore(clock.now())
    static = {PROVIDER: StaticProvider(hosts, clock.now, waker)} if owned_machines(settings) else {}
    providers = guards.around_all({**ports.providers, **static})
    bakes = Bakes(journal)
    freezes = Freezes(journal, clock.now())
    restores = RestoreWatch(Restores(journal, clock.now()), live, clock)
    frozen = FreezeService(freezes, clock, awake.set, restores)

    def freeze() -> Freeze | None:
        return freezes.current

    images = ImageController(settings.cluster.name, bakes, store, providers, freeze)
    tailnet = TailnetWatcher(ports.tailscaled, clock, poll_interval_s=settings.tailnet.poll_interval_s)
    sources = Sources(
        providers, ports.slurm, keys, journal, live, clock, awake.set,
        open_slots=lambda: machines.controller.last.plan.open_slots if machines.controller.last else {},
    )  # fmt: skip
    lag, reports, logs = LoopLag(clock), NodeReports(store.node_event), NodeLogs(agents, clock)
    machine_logs = MachineLogs(
        agents, providers, ports.kept_logs, clock, lambda machine: nodes.node_tokens.keep_out_of_texts(machine)
    )
    promises = PoolPromises(
        live, journal, {name: one.capabilities for name, one in providers.items()}, sources.seen_offers, sources.slurm,
        clock,
    )  # fmt: skip
    slurm_files = SlurmFilesController(
        live, journal, ports.slurm, clock, sources.slurm, awake.set, quiesce.wait_until_quiet,
        pod_providers=frozenset(pod_limits(providers)), promises=lambda: promises.current, write=ports.slurm_files,
    )  # fmt: skip
    ledger = Ledger(
        journal, {name: rounding_of(provider.capabilities) for name, provider in providers.items()}, clock.now
    )
    copy = LedgerCopy(settings.cluster.state_dir / "ledger.json", ledger)
    if lost := copy.restore(clock.now()):
        text = f"the journal was lost: what {lost} machines have cost this month is from the ledger's copy"
        journal.event(clock.now(), EventKind.JOURNAL, text)
    desired = DesiredState(
        live, journal, providers, slurm_files, promises, sources.slurm, clock, ledger,
        may_change_devices=keys.api is not None, hosts=hosts.all, freeze=freeze,
        restored=restores.current,
    )  # fmt: skip
    head_key = HeadKey(settings.cluster.ssh_key)
    accounts = HeadAccounts(ports.accounts, live, clock, settings.cluster.state_dir)
    node_settings = NodeSettings(
        live, journal, agents, reports, clock, pod_limits(providers), head=lambda: tailnet.head_tailnet_ip,
        task_prolog=ports.slurm.task_prolog, accounts=lambda: accounts.current,
        ssh_key=head_key.public, pyxis=HeadPyxis(settings.slurm.conf_dir).line,
    )  # fmt: skip
    # Slurm sends the groups of users with each job, and caches them.
    accounts.on_change(node_settings.wake, groups_changed=slurm_files.reconfigure)
    slots = SlotController(
        live, journal, ports.slurm, clock, sources.slurm,
        plan=lambda: machines.controller.last.plan if machines.controller.last else None, waiting=lambda: waiting(),
        changed=sources.slurm.hurry,
    )  # fmt: skip
    snapshot = SnapshotReader(sources, tailnet, lag, slurm_files, reports, node_settings, hosts.all)
    auth_key = build_auth_key(
        settings, keys, store, auth_rotations, active, agents, ports.prover, HeadTailnet(tailnet, ports.tailscaled),
        sources.slurm, sources.key, clock, invited=lambda: open_invitations(hosts, store),
    )  # fmt: skip
    munge_key = build_munge_key(
        journal, munge_rotations, active, ports.munge_keys, ports.munge_head, agents, sources.slurm, clock,
        poll_hold_s=settings.node_api.poll_hold_s,
    )  # fmt: skip
    roster = Roster(journal, agents, HeadNames(settings.cluster.socket.parent, live, clock), tailnet, clock)
    head_exports = HeadExports(
        settings.cluster.socket.parent, live, journal, reports, tailnet, clock, pod_limits(providers)
    )

    def changed_hosts() -> None:
        if PROVIDER in sources.listings:
            sources.list_again(PROVIDER)
            sources.offers[PROVIDER].hurry()
        awake.set()

    def is_ours(machine: Machine) -> bool:
        host = hosts.find(machine.offer.instance_type)
        return host is not None and host.ours

    def script_of(name: str) -> str:
        bake = bakes.find(name)
        return bake.script if bake is not None else ""

    machines = build_machines(
        live, store, providers=providers, slurm=ports.slurm, agents=agents, devices=keys.api,
        user_data=UserDataMaker(
            live, keys, auth_key.machine_keys, ports.tokens, tailnet, providers, is_ours, script_of
        ),
        desired=desired, snapshot=snapshot, list_again=sources.list_again, reports=reports, logs=logs,
        machine_logs=machine_logs, wait_until_quiet=quiesce.wait_until_quiet, awake=awake,
        followers=(live, promises, roster, head_exports, node_settings, slurm_files, slots),
        tick_took_s=metrics.tick_seconds.observe, images=images, freeze=freeze,
        restored=restores.look,
    )  # fmt: skip
    nodes = build_nodes(
        live, store, tokens=ports.tokens, agents=agents, reports=reports, tailnet=tailnet, slurm=sources.slurm,
        addresses=keys.api, whois=NamedDevices(ports.tailscaled, hosts), munge=ports.munge,
        munge_key=munge_key.controller, node_steps=machines.node_steps, providers=providers,
        agent_spoke=auth_key.controller.agent_spoke,
        node_settings=node_settings, promises=lambda: promises.current,
    )  # fmt: skip
    waiting = WaitingJobs(
        live, journal, desired, snapshot, lambda: last.plan if (last := machines.controller.last) else None, clock,
        pod_limits(providers),
    )  # fmt: skip
    owned = build_hosts(
        live, store, hosts, tokens=ports.tokens, machine_keys=auth_key.machine_keys, devices=keys.api, wake_host=waker,
        desired=desired, head_ip=lambda: tailnet.head_tailnet_ip,
        magic_dns_suffix=lambda: tailnet.magic_dns_suffix, slurm=sources.slurm, changed=changed_hosts,
    )  # fmt: skip
    baked = build_images(live, store, bakes, images, providers, desired=desired, snapshot=snapshot, slurm=sources.slurm)
    prices = build_prices(providers, ports.price_files, sources, live, journal, desired, clock)
    head_programs = build_head_programs(
        live, journal, agents, sources.slurm, ports.slurm, waiting,
        JobUsers(accounts.uid_of, accounts.read_for, node_settings.has_user), clock,
    )  # fmt: skip
    controllers: list[Controller] = [
        JobComments(ports.slurm, clock, sources.slurm, waiting),
        promises, machines.controller, slurm_files, slots, roster, head_exports, accounts, node_settings,
        nodes.node_tokens, auth_key.controller,
        auth_key.machine_keys, auth_key.spares, munge_key.controller, munge_key.age, prices.controller, logs, lag,
        *head_programs.controllers, owned.controller, images,
    ]  # fmt: skip
    web = build_web(
        live, journal, handlers=lambda: head.handlers, tailscaled=ports.tailscaled, tailnet=tailnet, hosts=hosts.all,
        clock=clock,
    )  # fmt: skip
    controllers.append(web.sampler)
    uses = JobUses(ledger, ports.job_records, ports.slurm, clock, copy)
    controllers.append(uses)
    costs = CostService(ledger, journal, uses, desired, clock)
    notifications = NotificationController(
        live, ToldReceivers(journal), lambda: head.service.problems() if machines.controller.last else None,
        journal.machines, clock,
    )  # fmt: skip
    controllers.append(notifications)
    head_node = HeadNode(live, sources.slurm)
    slurm_ping = SlurmPing(ports.slurm.ping, sources.slurm.hurry, clock)
    report = Report(
        frozen, live, SourceReporter(snapshot, journal, slurm_ping),
        NodeReporter(live, store, nodes, desired, snapshot, keys),
        head_key, guards, prices.service, BudgetReporter(desired, snapshot, clock), *controllers,
        head_programs.reporter, head_node, web.service,
        MlflowReporter(lambda: live.settings.mlflow, lambda: tailnet.head_tailnet_ip),
    )  # fmt: skip
    audit = AuditService(
        journal,
        AuditSources(
            settings.cluster.name, lambda: tuple(live.settings.pools), providers, bakes, hosts.all, keys.api,
            settings.tailnet.api_base_url if settings.tailnet.admin_api == "tailscale" else "", keys.store,
            keys.file.find, auth_key.open_keys, auth_rotations, lambda: tailnet.table.self_id if tailnet.table else "",
        ),
        clock,
    )  # fmt: skip
    reloaded = (sources, auth_key.controller, accounts, node_settings, web.sampler, notifications)
    head = build_head_api(
        live, store, machines, report, metrics, Reload(live, notifier, reloaded),
        slurm=ports.slurm, slurm_files=slurm_files, slurm_ping=slurm_ping, tailnet=tailnet,
        head_node=head_node, sources=sources, snapshot=snapshot,
        desired=desired, guards=guards, logs=logs, machine_logs=machine_logs, prices=prices.service,
        costs=costs, ledger=ledger, auth_key=auth_key.service, munge_key=munge_key.service,
        node_tokens=nodes.token_service, hosts=owned.invitations, images=baked.service, freezes=frozen,
        audit=audit, notifications=notifications, waiting=waiting,
        keys=lambda: KeyTimes(auth_key.controller.ends_at, munge_key.age.made_at, active.current()),
    )  # fmt: skip
    controllers.append(ServiceStatus(notifier, machines.controller, journal, desired, head.service, clock))
    node_api = NodeApiServer(live, tailnet, nodes.service, clock, owned.service)
    tailnet.on_change(awake.set, auth_key.controller.tailnet_changed)
    return Daemon(
        live, store, ports, sources, tailnet, snapshot, desired, machines, nodes, slurm_files, auth_key, munge_key,
        prices.controller, controllers, head, node_api, web.service, notifier,
    )  # fmt: skip
