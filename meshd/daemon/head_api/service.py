"""The head API: which service answers which endpoint."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from meshd.api import endpoints as e
from meshd.api import schema as s
from meshd.api.auth import Actor
from meshd.api.handlers import Handlers
from meshd.daemon.auth_key.service import AuthKeyService
from meshd.daemon.head_api.audit import AuditService
from meshd.daemon.head_api.events import EventService
from meshd.daemon.head_api.explain import ExplainService
from meshd.daemon.head_api.freeze import FreezeService
from meshd.daemon.head_api.jobs import JobService
from meshd.daemon.head_api.logs import LogService
from meshd.daemon.head_api.machines import MachineService
from meshd.daemon.head_api.offers import OfferService
from meshd.daemon.head_api.scale import ScaleService
from meshd.daemon.head_api.state import HeadState
from meshd.daemon.head_api.status import HeadRow, PublishState, StatusService
from meshd.daemon.hosts.invitations import Invitations
from meshd.daemon.images.service import ImageService
from meshd.daemon.live_settings import LiveSettings
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
from meshd.daemon.observe.sources import Sources
from meshd.daemon.prices.service import PriceService
from meshd.daemon.reporting import Reporter
from meshd.model.desired import Desired
from meshd.model.observed import Snapshot
from meshd.plan.waiting import WaitingJob
from meshd.runtime.singleflight import SingleFlight
from meshd.tailnet.watcher import TailnetWatcher

AUDIT_FRESH_S = 0.0
"""An audit lists all accounts: one serves all who ask meanwhile. Who has ended a leak asks again at once."""
DOCTOR_FRESH_S = 2.0
"""The checks call clouds and programs, and everybody may ask for them: one run serves all who ask within this time."""


class DoctorChecks(Protocol):
    """All checks."""

    async def __call__(self) -> list[s.CheckRow]:
        """Run them; none raises."""
        ...


class HeadService:
    """Composes the services of the head API. Build it inside a running event loop."""

    def __init__(
        self,
        live: LiveSettings,
        store: MachineStore,
        machines: MachineParts,
        *,
        slurm: SlurmControl,
        slurm_files: PublishState,
        slurm_ping: SlurmPing,
        tailnet: TailnetWatcher,
        head_node: HeadRow,
        sources: Sources,
        snapshot: Callable[[], Snapshot],
        desired: Callable[[], Desired],
        report: Reporter,
        reload: Callable[[], s.ReloadView],
        doctor: DoctorChecks,
        read_offers: Callable[[], Awaitable[None]],
        logs: NodeLogs,
        machine_logs: MachineLogs,
        prices: PriceService,
        costs: CostService,
        auth_key: AuthKeyService,
        munge_key: MungeKeyService,
        node_tokens: NodeTokenService,
        hosts: Invitations,
        images: ImageService,
        freezes: FreezeService,
        audit: AuditService,
        notifications: NotificationController,
        waiting: Callable[[], tuple[WaitingJob, ...]] = tuple,
    ) -> None:
        self._state = state = HeadState(store, machines.controller, desired, snapshot, store.clock, waiting)
        self._status = StatusService(
            state, live, slurm_files=slurm_files, slurm_ping=slurm_ping, report=report,
            tailnet=tailnet, head_node=head_node, usd_so_far=costs.usd_so_far,
        )  # fmt: skip
        self._jobs = JobService(state, live, head_node)
        self._hosts = hosts
        self._images = images
        self._freezes = freezes
        self._notifications = notifications
        self._audit = SingleFlight(audit.audit, AUDIT_FRESH_S, store.clock)
        self._machines = MachineService(state, slurm, hosts)
        self._scale = ScaleService(state, look_at_slurm=sources.slurm.read_once, look_at_key=sources.key.read_once)
        self._offers = OfferService(state, read_offers)
        self._explain = ExplainService(state, logs)
        self._events = EventService(state, self._machines)
        self._logs = LogService(state, self._machines, machine_logs)
        self._doctor = SingleFlight(doctor, DOCTOR_FRESH_S, store.clock)
        self._reload = reload
        self._prices = prices
        self._costs = costs
        self._auth_key = auth_key
        self._munge_key = munge_key
        self._tokens = node_tokens

    def handlers(self) -> Handlers:
        """What answers which endpoint."""
        table = Handlers(lambda: self._state.revision)
        table.read(e.STATUS, self._status.status)
        table.read(e.NODES, self._status.nodes)
        table.read(e.JOBS, self._jobs.jobs)
        table.read(e.VERSION, self._status.version)
        table.read(e.PLAN, self._scale.plan)
        table.read(e.PREVIEW, self._scale.preview)
        table.write(e.SCALE, self._scale.scale)
        table.read(e.OFFERS, self._offers.offers)
        table.read(e.EXPLAIN, self._explain.explain)
        table.read(e.EVENTS, self._events.events)
        table.read(e.LOGS, self._logs.logs)
        table.read(e.AUDIT, self._audited)
        table.read(e.DOCTOR, self._checks)
        table.write(e.RELOAD, self._reloaded)
        table.write(e.NOTIFY_TEST, self._notifications.test)
        table.write(e.DRAIN, self._machines.drain)
        table.write(e.UNDRAIN, self._machines.undrain)
        table.write(e.FREEZE, self._freezes.freeze)
        table.write(e.THAW, self._freezes.thaw)
        table.read(e.HOSTS, self._hosts.hosts)
        table.write(e.INVITE, self._hosts.invite)
        table.read(e.IMAGES, self._images.images)
        table.write(e.BAKE_IMAGE, self._images.bake)
        table.write(e.PRUNE_IMAGES, self._images.prune)
        table.write(e.REMOVE, self._machines.remove)
        table.read(e.COST, self._costs.cost)
        table.read(e.PRICES, self._prices.prices)
        table.write(e.REFRESH_PRICES, self._refresh_prices)
        table.read(e.AUTH_KEY_ROTATION, self._auth_key.rotation)
        table.write(e.ROTATE_AUTH_KEY, self._auth_key.rotate)
        table.write(e.ABORT_AUTH_KEY_ROTATION, self._auth_key.abort)
        table.write(e.WAIVE_AUTH_KEY_NODE, self._auth_key.waive)
        table.read(e.MUNGE_KEY_ROTATION, self._munge_key.rotation)
        table.write(e.ROTATE_MUNGE_KEY, self._munge_key.rotate)
        table.write(e.ABORT_MUNGE_KEY_ROTATION, self._munge_key.abort)
        table.write(e.WAIVE_MUNGE_KEY_NODE, self._munge_key.waive)
        table.write(e.MUNGE_ROTATION_ACTION, self._munge_key.act)
        table.read(e.NODE_TOKEN_RENEWAL, self._tokens.renewal)
        table.write(e.RENEW_NODE_TOKENS, self._tokens.renew)
        return table

    def problems(self) -> list[s.ProblemView]:
        """Everything that is not as it should be, worst first."""
        return self._status.problems()

    async def _audited(self) -> s.AuditView:
        return await self._audit()

    async def _checks(self) -> s.DoctorView:
        checks = await self._doctor()
        return s.DoctorView(checks=checks, at=self._state.clock.now())

    async def _reloaded(self, _request: s.ReloadRequest, _actor: Actor) -> s.ReloadView:
        return self._reload()

    async def _refresh_prices(self, request: s.PricesRefresh, _actor: Actor) -> s.PricesRefreshed:
        """Fetch prices; the next tick plans with them."""
        answer = await self._prices.refresh(request)
        self._state.controller.wake()
        return answer
