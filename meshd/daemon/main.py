"""Wires the daemon: the only place that knows all its parts."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import structlog

from meshd import __version__
from meshd.api.auth import Authorizer
from meshd.api.schema import CheckRow, ProblemView, ReloadView
from meshd.api.server import HeadApiServer
from meshd.codes import CheckName, EventKind
from meshd.config import Settings
from meshd.daemon.active_rotation import ActiveRotations
from meshd.daemon.auth_key.ports import open_ports
from meshd.daemon.auth_key.wiring import build as auth_key_parts
from meshd.daemon.controller import Controller
from meshd.daemon.head_api.doctor import Doctor
from meshd.daemon.head_api.metrics_server import Telemetry
from meshd.daemon.head_api.metrics_snapshot import standing
from meshd.daemon.head_api.service import HeadService
from meshd.daemon.head_api.views import cluster_view_of, status_line
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.machines import problems as machine_problems
from meshd.daemon.machines.desired_state import DesiredState
from meshd.daemon.machines.store import MachineStore
from meshd.daemon.machines.user_data import UserDataMaker
from meshd.daemon.machines.wiring import build as build_machines
from meshd.daemon.munge_key.head import HeadMunge
from meshd.daemon.munge_key.quiesce import Quiesce
from meshd.daemon.munge_key.wiring import build as munge_key_parts
from meshd.daemon.nodes import metadata_service as metadata_watch
from meshd.daemon.nodes import problems as node_problems
from meshd.daemon.nodes.agents import AgentQueues
from meshd.daemon.nodes.devices import MachineDevices
from meshd.daemon.nodes.head_names import HeadNames
from meshd.daemon.nodes.join_token_watch import JoinTokenWatch
from meshd.daemon.nodes.logs import NodeLogs
from meshd.daemon.nodes.reports import NodeReports
from meshd.daemon.nodes.roster import Roster
from meshd.daemon.nodes.server import NodeApiServer, head_facts
from meshd.daemon.nodes.service import NodeService
from meshd.daemon.nodes.token_renewal import NodeTokenController
from meshd.daemon.nodes.token_service import NodeTokenService
from meshd.daemon.nodes.tokens import MachineTokens
from meshd.daemon.notify import Notifier
from meshd.daemon.observe import checks as source_checks
from meshd.daemon.observe.loop_lag import LoopLag
from meshd.daemon.observe.snapshot import SnapshotReader
from meshd.daemon.observe.source import Refresh, sources_of
from meshd.daemon.observe.sources import Sources
from meshd.daemon.prices import problems as price_problems
from meshd.daemon.prices.files import PriceFiles
from meshd.daemon.prices.prices import Prices
from meshd.daemon.prices.service import PriceService
from meshd.daemon.providers import checks as provider_checks
from meshd.daemon.providers import problems as provider_problems
from meshd.daemon.providers.guards import Guards
from meshd.daemon.providers.off import OffProvider
from meshd.daemon.providers.registry import load_providers
from meshd.daemon.reporting import Check
from meshd.daemon.slurm.gpu_devices import GpuDevices
from meshd.daemon.slurm.ping import SlurmPing
from meshd.daemon.slurm.publishing import Publishing
from meshd.daemon.slurm.root_files import RootFiles
from meshd.munge.client import MungeClient
from meshd.munge.key import MungeKeyStore
from meshd.obs.metrics import Metrics, Standing
from meshd.provider_api import PriceBook
from meshd.runtime.clock import SystemClock
from meshd.runtime.collector import calm
from meshd.runtime.run import run
from meshd.runtime.tasks import keep_running
from meshd.slurm.client import SlurmClient
from meshd.store.auth_rotations import AuthRotations
from meshd.store.journal import Journal
from meshd.store.munge_rotations import MungeRotations
from meshd.tailnet.canary import Canary
from meshd.tailnet.link import HeadTailnet
from meshd.tailnet.localapi import LocalApi
from meshd.tailnet.watcher import TailnetWatcher

log = structlog.get_logger(__name__)

STOP_GRACE_S = 15.0
RECONCILE = "reconcile"


class _AfterTick(Controller):
    name = "after_tick"

    def __init__(self, act: Callable[[], None], clock: SystemClock) -> None:
        super().__init__(clock)
        self._act = act

    def wake(self) -> None:
        self._act()

    async def reconcile(self) -> None:
        return None


class Daemon:
    """One life of meshd. Build it inside a running event loop."""

    def __init__(self, settings: Settings, settings_path: Path) -> None:
        self._clock = clock = SystemClock()
        self._notify = Notifier()
        self._watchdog_fed_s = 0.0
        self._pulse = LoopLag(clock)
        self._stop = asyncio.Event()
        self._awake = asyncio.Event()

        # What is known, and remembered.
        state = settings.cluster.state_dir
        self._journal = Journal(state / "journal.db")
        self._in_force = live = LiveSettings(settings, settings_path, self._journal.machines)
        self._machine_store = machine_store = MachineStore(self._journal, clock, self._wake)
        self._tokens = MachineTokens.at(state / "machines.key")
        self._ticket_watch = JoinTokenWatch(self._journal)

        # Clouds, tailnet, agents and Slurm, as they are reached.
        self._metrics = Metrics()
        self._guards = Guards(live, self._metrics, clock)
        price_files = PriceFiles(state / "prices")
        self._providers = {
            name: provider if isinstance(provider, OffProvider) else self._guards.around(provider)
            for name, provider in load_providers(settings, clock.now, price_files.find).items()
        }
        self._local = LocalApi(settings.tailnet.socket)
        self._watcher = TailnetWatcher(self._local, clock, poll_interval_s=settings.tailnet.poll_interval_s)
        self._watcher.on_change(self._wake)
        self._keys = open_ports(
            settings, clock, {name: one.capabilities.user_data_private for name, one in self._providers.items()}
        )
        self._munge = MungeClient(run)
        self._agents = AgentQueues()
        self._renewer = NodeTokenController(machine_store, self._tokens, self._agents, clock, live)
        self._token_desk = NodeTokenService(self._renewer, clock)
        self._reports = NodeReports(machine_store.node_event)
        self._slurm = SlurmClient(run, settings.slurm.command_timeout_s)
        head_names = HeadNames(settings.cluster.socket.parent, live, clock)
        self._roster = Roster(self._journal, self._agents, head_names, lambda: self._watcher.head_tailnet_ip)
        auth_rotations, munge_rotations = AuthRotations(self._journal), MungeRotations(self._journal)
        active = ActiveRotations(auth_rotations, munge_rotations)

        # What is observed.
        self._sources = Sources(
            providers=self._providers, slurm=self._slurm.view, key_record=self._keys.key_record, journal=self._journal,
            live=live, clock=clock, changed=self._wake,
        )  # fmt: skip
        self._journal.on_event(self._sources.reconsider)
        self._prices = Prices(
            {name: provider for name, provider in self._providers.items() if isinstance(provider, PriceBook)},
            price_files, clock, live=live,
            read_offers=lambda name: self._sources.offers[name].read_once(),
            tell=lambda text: self._journal.event(clock.now(), EventKind.PRICES, text),
        )  # fmt: skip

        # What keeps the auth keys, Slurm's files and the munge key.
        self._auth_key = auth_key_parts(
            settings, self._keys, machine_store, auth_rotations, active, self._agents,
            Canary(run, clock, settings.tailnet.login_server), HeadTailnet(self._watcher, self._local),
            self._sources.slurm, self._sources.key, clock,
        )  # fmt: skip
        self._watcher.on_change(self._auth_key.controller.tailnet_changed)
        quiesce = Quiesce(munge_rotations, clock)
        self._publishing = Publishing(
            live=live, journal=self._journal, client=self._slurm, clock=clock,
            slurm=self._sources.slurm_view, wake=self._wake, wait_until_quiet=quiesce.wait_until_quiet,
            write=RootFiles(settings.cluster.socket.parent, clock),
        )  # fmt: skip
        self._munge_key = munge_key_parts(
            self._journal, munge_rotations, active, MungeKeyStore(state),
            HeadMunge(settings.cluster.socket.parent, self._munge, self._slurm, clock), self._agents,
            self._sources.slurm, clock, poll_hold_s=settings.node_api.poll_hold_s,
        )  # fmt: skip

        # What carries steps out.
        stage1 = UserDataMaker(
            live, self._keys.keys, self._auth_key.machine_keys, self._keys.modes, self._tokens,
            lambda: self._watcher.current, self._providers,
        )  # fmt: skip
        self._machine_devices = MachineDevices(machine_store, lambda: self._watcher.current, self._keys.api)
        # What decides.
        self.desired = DesiredState(
            live, self._journal, self._providers, self._publishing, clock,
            may_change_devices=self._keys.api is not None,
        )  # fmt: skip
        self._snapshot = SnapshotReader(self._sources, self._watcher, self._pulse, self._publishing, self._reports)
        self._logs = NodeLogs(self._agents, clock)
        machines = build_machines(
            live, machine_store, providers=self._providers, slurm=self._slurm, agents=self._agents,
            devices=self._keys.api, user_data=stage1, desired=self.desired, snapshot=self._snapshot,
            list_again=self._sources.list_again, reports=self._reports, logs=self._logs,
            wait_until_quiet=quiesce.wait_until_quiet, awake=self._awake,
            followers=(_AfterTick(self._after_tick, clock),),
        )  # fmt: skip
        self._nodes, self._executor, self._reconciler = machines.node_steps, machines.executor, machines.controller

        # What people, monitoring and nodes speak to.
        slurm_ping = SlurmPing(self._slurm.ping, self._sources.slurm.hurry, clock)
        self._checks = (
            Check(CheckName.SETTINGS, self._in_force.check),
            *source_checks.checks(self._snapshot, self._journal.machines, slurm_ping),
            Check(CheckName.SLURM_FILES, self._publishing.check),
            Check(CheckName.GPU_DEVICES, GpuDevices(self._slurm, lambda: self.settings.pools)),
            Check(CheckName.NODE_NAMES, self._roster.check),
            Check(CheckName.METADATA_SERVICE, self._metadata_service),
            *self._munge_key.controller.checks(),
            *self._auth_key.controller.checks(),
            *provider_checks.checks(self._providers),
        )
        doctor = Doctor(lambda: self._checks, look=self._snapshot.refresh, now=clock.now)
        self._telemetry = Telemetry(self._metrics, lambda: self.settings.metrics.address, clock)
        self._metrics.follow(self._standing)
        self._desk = HeadService(
            machine_store=machine_store, reconciler=self._reconciler, executor=self._executor, slurm=self._slurm,
            published=self._publishing, doctor=doctor, problems_of_others=self._problems, desired=self.desired,
            snapshot=self._snapshot,
            partitions=lambda: {name: pool.partition or name for name, pool in self.settings.pools.items()},
            clock=clock, cluster=settings.cluster.name, reload=self.reload,
            tailscale_version=lambda: self._watcher.table.version if self._watcher.table else "",
            look_at_slurm=self._sources.slurm.read_once, slurm_ping=slurm_ping,
            look_at_key=self._sources.key.read_once, read_offers=Refresh(self._sources.offers.values(), clock),
            prices=PriceService(self._prices, lambda: sources_of(self._sources.offers), self.desired, clock),
            munge=self._munge_key.service, tokens=self._token_desk, logs=self._logs,
            rotation=self._auth_key.service,
        )  # fmt: skip
        self._node_front = NodeApiServer(
            settings.node_api, lambda: self._watcher.head_tailnet_ip, self._node_desk, clock
        )
        self._api = HeadApiServer(
            self._desk.handlers(), path=settings.cluster.socket,
            authorizer=Authorizer(settings.cluster.socket_group, own_uid=os.getuid()), metrics=self._metrics.registry,
        )  # fmt: skip

    @property
    def settings(self) -> Settings:
        """Those in force."""
        return self._in_force.settings

    async def _metadata_service(self) -> CheckRow:
        return metadata_watch.check(self._journal.machines())

    # -- what people and monitoring are told ----------------------------------------------------------------------

    def _problems(self) -> list[ProblemView]:
        """Those that show neither in the journal nor in a tick."""
        now_s, now = self._clock.monotonic_s(), self._clock.now()
        return [
            *self._in_force.problems(),
            *provider_problems.off(self._providers.values()),
            *provider_problems.paused(self._guards.breakers(), now_s, now),
            *price_problems.files(self._prices.files.damaged()),
            *self._publishing.problems(),
            *self._telemetry.problems(),
            *self._munge_key.controller.problems(),
            *self._machine_devices.problems(now),
            *self._ticket_watch.problems(now),
            *self._token_desk.problems(),
            *self._machine_store.node_events.problems({machine.name for machine in self._journal.machines()}),
            *machine_problems.journal(
                self._journal.unreadable.lately(now), self._journal.machines(), self._journal.targets()
            ),
            *metadata_watch.problems(self._journal.machines()),
            *node_problems.devices(self._journal.machines(), now),
            *self._auth_key.controller.problems(),
            *self._auth_key.machine_keys.problems(),
            *self._auth_key.spares.problems(),
            *node_problems.node_keys(
                self._journal.machines(),
                self._snapshot(),
                now,
                timedelta(days=self.settings.tailnet.rotate_before_expiry_d),
                may_change=self._keys.api is not None,
            ),
        ]

    def _standing(self) -> Standing:
        tick = self._reconciler.last
        return standing(
            machines=self._journal.machines(), desired=self.desired(), snapshot=self._snapshot(),
            problems=self._desk.problems(), breakers=self._guards.breakers(),
            reconfigures=self._publishing.view().reconfigures, steps_in_flight=self._executor.in_flight,
            ticked_at=tick.at if tick else None, now=self._clock.now(),
        )  # fmt: skip

    # -- life -----------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        self._awake.set()

    def _after_tick(self) -> None:
        tick = self._reconciler.last
        if tick is None:
            return
        self._metrics.tick_seconds.observe(tick.took_s)
        now_s = self._clock.monotonic_s()
        if now_s - self._watchdog_fed_s > 1.0:
            self._watchdog_fed_s = now_s
            self._notify.watchdog()
            cluster_view = cluster_view_of(tick.snapshot, self.desired().policy, self._clock.now())
            self._notify.status(status_line(self._journal.machines(), self._desk.problems(), cluster_view))
        self._in_force.look()
        self._roster.look()
        self._publishing.look()

    async def live(self) -> None:
        """Run until told to stop. The journal knows what was not finished."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self.reload)
        log.info(
            "meshd_starts", version=__version__, cluster=self.settings.cluster.name, providers=sorted(self._providers)
        )
        watcher = asyncio.create_task(keep_running("tailnet", self._watcher.run, self._clock), name="tailnet")
        tasks = [watcher]
        try:
            await self._sources.first_look()
            calm()
            await self._publishing.start()
            await self._api.start()
            bodies: dict[str, Callable[[], Awaitable[None]]] = {
                RECONCILE: self._reconciler.run,
                "pulse": self._pulse.run,
                "node_api": self._node_front.run,
                "publish": self._publishing.run,
                "metrics": self._telemetry.run,
                "prices": self._prices.run,
                "munge_rotation": self._munge_key.controller.run,
                "token_renewal": self._renewer.run,
                "auth_key_rotation": self._auth_key.controller.run,
                "machine_keys": self._auth_key.machine_keys.run,
                "spare_keys": self._auth_key.spares.run,
                "node_logs": self._logs.run,
                **self._sources.bodies(),
            }
            tasks += [
                asyncio.create_task(keep_running(name, body, self._clock), name=name) for name, body in bodies.items()
            ]
            self._notify.ready("looking around")
            await self._stop.wait()
        finally:
            await self._end(tasks)

    def _node_desk(self, head_ip: str) -> NodeService:
        return NodeService(
            machine_store=self._machine_store, tokens=self._tokens, agents=self._agents, devices=self._machine_devices,
            whois=self._local, munge=self._munge, munge_key=self._munge_key.controller,
            head=head_facts(self.settings, head_ip), live=self._in_force, nodes=self._nodes,
            ends_itself=lambda name: name in self._providers and self._providers[name].capabilities.ends_itself,
            slurm_version=lambda: view.version if (view := self._sources.slurm_view()) else "",
            agent_spoke=self._auth_key.controller.agent_spoke, watch=self._ticket_watch,
            renewer=self._renewer, reports=self._reports,
        )  # fmt: skip

    def reload(self) -> ReloadView:
        """Read the settings again; keep the old ones when the new ones are wrong."""
        self._notify.reloading()
        self._in_force.reload()
        self._notify.ready()
        self._wake()
        self._sources.reconsider()
        self._auth_key.controller.wake()  # the file of the auth key may be a new one
        return self._in_force.view()

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        self._notify.stopping("finishing what is under way")
        await self._api.stop()
        # No new steps; those in flight may need the node API and the sources to come to their end.
        for task in tasks:
            if task.get_name() == RECONCILE:
                task.cancel()
        await self._executor.aclose(STOP_GRACE_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._prices.aclose()
        for provider in self._providers.values():
            await provider.aclose()
        await self._local.aclose()
        if self._keys.api is not None:
            await self._keys.api.aclose()
        self._journal.close()
        log.info("meshd_stopped")
