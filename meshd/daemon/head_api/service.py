"""What is done for people: the handlers of the API on the unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import platform
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from meshd import __version__
from meshd.api import endpoints as e
from meshd.api import schema as s
from meshd.api.auth import Actor
from meshd.api.faults import NotReady
from meshd.api.handlers import Handlers
from meshd.daemon.auth_key.service import AuthKeyService
from meshd.daemon.head_api import problems, views
from meshd.daemon.head_api.event_feed import NewEvent
from meshd.daemon.head_api.event_filter import event_filter
from meshd.daemon.head_api.explain import Explainer
from meshd.daemon.head_api.machines import MachineService
from meshd.daemon.head_api.offers import offers_view
from meshd.daemon.head_api.scale import chosen_pool, next_target
from meshd.daemon.machines.controller import MachineController, Tick
from meshd.daemon.machines.executor import Executor
from meshd.daemon.machines.node_steps import SlurmControl
from meshd.daemon.machines.store import MachineStore
from meshd.daemon.munge_key.service import MungeKeyService
from meshd.daemon.nodes import health as node_health
from meshd.daemon.nodes.health import health_view
from meshd.daemon.nodes.logs import NodeLogs
from meshd.daemon.nodes.token_service import NodeTokenService
from meshd.daemon.prices.service import PriceService
from meshd.daemon.slurm.ping import SlurmPing
from meshd.model.desired import Cooldown, Desired, Pool, Target
from meshd.model.ids import slot_order
from meshd.model.machine import COSTS_MONEY, IN_SLURM, Machine, Phase
from meshd.plan.failure_rules import is_of_pool
from meshd.plan.fitness import unfit
from meshd.plan.grow import amount, unit_of
from meshd.plan.replace import cooldown_key
from meshd.plan.scale import supply_gpus
from meshd.plan.target_options import options_of
from meshd.runtime.clock import Clock
from meshd.runtime.oneflight import OneFlight

LOOK_TIMEOUT_S = 3.0


class PublishState(Protocol):
    """How Slurm's files stand."""

    def view(self) -> s.PublishView:
        """For `meshctl status`."""
        ...


class DoctorChecks(Protocol):
    """All checks."""

    async def __call__(self) -> list[s.CheckRow]:
        """Run them; none raises."""
        ...


DOCTOR_FRESH_S = 2.0
"""Everybody may ask for the checks, and they call clouds and programs: one run serves all who ask within this time."""


class HeadService:
    """See meshd.api.endpoints for what each method promises."""

    def __init__(
        self,
        *,
        machine_store: MachineStore,
        reconciler: MachineController,
        executor: Executor,
        slurm: SlurmControl,
        published: PublishState,
        doctor: DoctorChecks,
        rotation: AuthKeyService,
        problems_of_others: Callable[[], Iterable[s.ProblemView]],
        desired: Callable[[], Desired],
        partitions: Callable[[], dict[str, str]],
        clock: Clock,
        cluster: str,
        config_problem: Callable[[], str],
        reload: Callable[[], s.ReloadView],
        tailscale_version: Callable[[], str],
        look_at_slurm: Callable[[], Awaitable[object]],
        slurm_ping: SlurmPing | None = None,
        look_at_key: Callable[[], Awaitable[object]],
        read_offers: Callable[[], Awaitable[None]],
        prices: PriceService,
        munge: MungeKeyService,
        tokens: NodeTokenService,
        logs: NodeLogs | None = None,
    ) -> None:
        self._journal = machine_store.journal
        self._reconciler = reconciler
        self._executor = executor
        self._published = published
        self._doctor = OneFlight(doctor, DOCTOR_FRESH_S, clock)
        self._rotation = rotation
        self._problems_of_others = problems_of_others
        self._desired = desired
        self._partitions = partitions
        self._clock = clock
        self._cluster = cluster
        self._config_problem = config_problem
        self._reload = reload
        self._tailscale_version = tailscale_version
        self._look_at_slurm = look_at_slurm
        self._slurm_ping = slurm_ping
        self._look_at_key = look_at_key
        self._read_offers = read_offers
        self._prices = prices
        self._munge = munge
        self._tokens = tokens
        self._logs = logs
        self._explainer = Explainer(self._journal, desired, self._tick, clock)
        self._started_at = clock.now()
        self._news = NewEvent(self._journal, clock)
        self._machines = MachineService(machine_store, reconciler, slurm, desired, clock)

    def _tick(self) -> Tick:
        if self._reconciler.last is None:
            raise NotReady("meshd has just started and not looked around yet", "try again in a second")
        return self._reconciler.last

    def handlers(self) -> Handlers:
        """What answers which endpoint."""
        table = Handlers()
        table.read(e.STATUS, self.status)
        table.read(e.NODES, self.nodes)
        table.read(e.PLAN, self.plan)
        table.read(e.PREVIEW, self.plan)
        table.read(e.OFFERS, self.offers)
        table.read(e.EXPLAIN, self.explain)
        table.read(e.EVENTS, self.events)
        table.read(e.DOCTOR, self.doctor)
        table.read(e.VERSION, self.version)
        table.write(e.SCALE, self.scale)
        table.write(e.DRAIN, self._machines.drain)
        table.write(e.UNDRAIN, self._machines.undrain)
        table.write(e.REMOVE, self._machines.remove)
        table.write(e.RELOAD, self.reload)
        table.read(e.PRICES, self.prices)
        table.write(e.REFRESH_PRICES, self.refresh_prices)
        table.read(e.AUTH_KEY_ROTATION, self._rotation.rotation)
        table.write(e.ROTATE_AUTH_KEY, self._rotation.rotate_key)
        table.write(e.ABORT_AUTH_KEY_ROTATION, self._rotation.abort_rotation)
        table.write(e.WAIVE_AUTH_KEY_NODE, self._rotation.waive)
        table.read(e.MUNGE_KEY_ROTATION, self.munge_rotation)
        table.write(e.ROTATE_MUNGE_KEY, self.rotate_munge_key)
        table.read(e.NODE_TOKEN_RENEWAL, self.token_renewal)
        table.write(e.RENEW_NODE_TOKENS, self.renew_tokens)
        return table

    # -- reading --------------------------------------------------------------------------------------------------

    async def status(self) -> s.StatusView:
        """How the whole stands. slurmctld is pinged for it: its last word may be half a minute old."""
        if self._slurm_ping is not None and self._reconciler.last is not None:
            await self._slurm_ping.ask_if_old(self._reconciler.last.snapshot.slurm)
        now, desired, machines = self._clock.now(), self._desired(), self._journal.machines()
        tick = self._reconciler.last
        slurm = views.slurm_of(tick.snapshot if tick else None)
        cluster_view = views.cluster_view_of(tick.snapshot if tick else None, desired.policy, now)
        partitions = self._partitions()
        by_pool: dict[str, list[Machine]] = {}
        for machine in machines:
            by_pool.setdefault(machine.pool, []).append(machine)
        return s.StatusView(
            cluster=self._cluster,
            version=__version__,
            at=now,
            uptime_s=round((now - self._started_at).total_seconds(), 1),
            tick_at=tick.at if tick else None,
            tick_age_s=round((now - tick.at).total_seconds(), 3) if tick else None,
            sources=views.sources(tick.snapshot, now, self._slurm_ping) if tick else [],
            pools=[
                views.pool_view(
                    pool, partitions.get(pool.name, pool.name), by_pool.get(pool.name, []), desired, slurm, cluster_view
                )
                for pool in desired.pools.values()
            ],
            problems=self.problems(),
            slurm=self._published.view(),
            spend=s.SpendView(
                usd_per_hour=round(sum(m.usd_per_hour for m in machines if m.phase in COSTS_MONEY), 4),
                usd_so_far=views.usd_so_far([*machines, *self._journal.history()], now),
            ),
        )

    def problems(self) -> list[s.ProblemView]:
        """Everything that is not as it should be, worst first."""
        tick, now, desired, machines = (
            self._reconciler.last,
            self._clock.now(),
            self._desired(),
            self._journal.machines(),
        )
        found = [
            *problems.of_text(self._reconciler.problem, "check the disk that holds meshd's state"),
            *problems.of_text(
                self._config_problem(),
                "`meshctl config check` shows every fault; then `systemctl reload meshd`",
                "error" if "stay in force" in self._config_problem() else "warning",
            ),
            *problems.of_text(
                self._published.view().error, "slurmctld runs on the last good files; see `meshctl doctor`"
            ),
            *problems.of_machines(machines, self._executor.problems, now),
            *problems.of_prices(desired, machines),
            *self._problems_of_others(),
        ]
        if tick is not None:
            cluster_view = views.cluster_view_of(tick.snapshot, desired.policy, now)
            found += node_health.problems(machines, desired, cluster_view)
            found += problems.of_sources(tick.snapshot)
            if self._slurm_ping is not None:
                found += self._slurm_ping.problems(tick.snapshot.slurm)
            found += problems.of_providers(machines, tick.snapshot)
            found += problems.of_logins(machines, tick.snapshot, now)
            found += problems.of_plan(desired, machines, tick.plan.warnings, tick.snapshot)
        return problems.ordered(found)

    async def nodes(self) -> s.NodesView:
        """All machines that are not GONE."""
        now, tick = self._clock.now(), self._reconciler.last
        slurm = views.slurm_of(tick.snapshot if tick else None)
        cluster_view = views.cluster_view_of(tick.snapshot if tick else None, self._desired().policy, now)
        machines = sorted(self._journal.machines(), key=lambda m: (m.pool, slot_order(m.slot), m.name))
        return s.NodesView(at=now, nodes=[views.node_row(machine, slurm, cluster_view) for machine in machines])

    async def events(self, query: s.EventsQuery) -> s.EventsView:
        """Events, waited for when there are none."""
        wanted = event_filter(query, self._desired(), self._journal, self._machines)
        found, last_id = await self._news.after(query.after_id, query.limit, query.wait_s, wanted)
        return s.EventsView(
            events=[views.event_row(e, self._journal.machine(e.machine)) for e in found], last_id=last_id
        )

    async def plan(self, request: s.ScaleRequest | None = None) -> s.PlanView:
        """What would be done."""
        desired = self._desired()
        if request is not None:
            pool = chosen_pool(desired, request)
            target, dropped = self._target(pool, request, "plan")
            view = self._plan_view(self._with_target(desired, target))
            return view.model_copy(update={"warnings": [*dropped, *view.warnings]})
        return self._plan_view(desired)

    def _plan_view(self, desired: Desired) -> s.PlanView:
        now, tick = self._clock.now(), self._tick()
        decided = self._reconciler.decide(tick.snapshot, now, desired)
        return views.plan_view(decided, self._journal.machines(), tick.snapshot, desired, now)

    async def offers(self, query: s.OffersQuery) -> s.OffersView:
        """What can be rented."""
        if query.refresh:
            await self._read_offers()
            self._reconciler.tick()
        return offers_view(self._tick().snapshot, query, self._desired(), self._clock.now())

    async def explain(self, query: s.ExplainQuery) -> s.ExplainView:
        """What it is doing and why, and how it is; its agent is asked for slurmd's log where something is wrong."""
        view = self._explainer(query.subject)
        machine = self._journal.machine(view.machine) if view.machine else None
        if machine is None or machine.phase not in IN_SLURM:
            return view
        cluster_view = views.cluster_view_of(self._tick().snapshot, self._desired().policy, self._clock.now())
        wrong = unfit(machine, cluster_view) is not None or machine.phase is not Phase.READY
        log = await self._logs.fetch(machine.name) if wrong and self._logs is not None else None
        of_pool = [m for m in self._journal.machines() if m.pool == machine.pool]
        return view.model_copy(update={"health": health_view(machine, of_pool, self._desired(), cluster_view, log)})

    async def munge_rotation(self) -> s.MungeRotationView:
        """The rotation of the munge key."""
        return self._munge.view()

    async def token_renewal(self) -> s.TokenRenewalView:
        """The last renewal of node tokens."""
        return self._tokens.view()

    async def renew_tokens(self, request: s.TokenRenewalRequest, actor: Actor) -> s.TokenRenewalView:
        """Begin a renewal of node tokens."""
        return self._tokens.ask(request, str(actor.user))

    async def prices(self) -> s.PricesView:
        """Which prices are in use."""
        return self._prices.view()

    async def doctor(self) -> s.DoctorView:
        """All checks."""
        checks = await self._doctor()
        return s.DoctorView(checks=checks, at=self._clock.now())

    async def version(self) -> s.VersionView:
        """What runs here."""
        slurm = views.slurm_of(self._reconciler.last.snapshot if self._reconciler.last else None)
        return s.VersionView(
            meshd=__version__, cluster=self._cluster, python=platform.python_version(),
            slurm=slurm.version if slurm else "", tailscale=self._tailscale_version(),
        )  # fmt: skip

    # -- changing -------------------------------------------------------------------------------------------------

    async def scale(self, request: s.ScaleRequest, actor: Actor) -> s.ScaleAnswer:
        """Set a pool's target."""
        await self._look_anew()
        desired, tick, now = self._desired(), self._tick(), self._clock.now()
        pool = chosen_pool(desired, request)
        old = desired.target(pool)
        target, dropped = self._target(pool, request, str(actor.user))
        # A breaker or a cool-down must not silence an explicit wish: the plan is made as if they were lifted.
        lifted = replace(
            self._with_target(desired, target),
            cooldowns=_of_other_pools(desired.cooldowns, pool),
            expired_cooldowns=_of_other_pools(desired.expired_cooldowns, pool),
        )
        view = self._plan_view(lifted)
        machines = [m for m in self._journal.machines() if m.pool == pool.name]
        last_event_id = self._journal.last_event_id()
        target_id = None
        if not request.dry_run:
            held, kept = (
                {**desired.cooldowns, **desired.expired_cooldowns},
                {**lifted.cooldowns, **lifted.expired_cooldowns},
            )
            self._journal.lift_cooldowns(held.keys() - kept.keys())
            target_id = self._journal.set_target(
                target, f"{pool.name} shall have {amount(request.gpus, pool)}, said {actor.user}", now
            ).id
            self._reconciler.wake()
        slurm = views.slurm_of(tick.snapshot)
        leaving = {row.subject for row in view.steps if row.action == "remove"}
        leaving |= {m.name for m in machines if m.phase is Phase.DRAINING}
        waiting = [
            s.WaitingFor(slot=m.slot, machine=m.name, jobs=list(slurm.jobs_on(m.slot)))
            for m in machines
            if slurm and m.name in leaving and slurm.jobs_on(m.slot)
        ]
        return s.ScaleAnswer(
            pool=pool.name, gpus_before=old.gpus if old else supply_gpus(machines), gpus=request.gpus,
            unit=unit_of(pool), target_id=target_id, at=now, last_event_id=last_event_id, plan=view,
            warnings=[*dropped, *view.warnings], waiting_for_jobs=waiting, options=list(options_of(target)),
        )  # fmt: skip

    async def reload(self, request: s.ReloadRequest, actor: Actor) -> s.ReloadView:
        """Read the settings again."""
        return self._reload()

    async def rotate_munge_key(self, request: s.MungeRotationRequest, actor: Actor) -> s.MungeRotationView:
        """Begin, abort or waive."""
        return await self._munge.ask(request, str(actor.user))

    async def refresh_prices(self, request: s.PricesRefresh, actor: Actor) -> s.PricesRefreshed:
        """Fetch prices; the next tick plans with them."""
        answer = await self._prices.refresh(request)
        self._reconciler.wake()
        return answer

    # -- one machine ----------------------------------------------------------------------------------------------

    async def drain(self, request: s.DrainRequest, actor: Actor) -> s.MachineAnswer:
        """Let the node take no new jobs."""
        return await self._machines.drain(request, actor)

    async def undrain(self, request: s.DrainRequest, actor: Actor) -> s.MachineAnswer:
        """Let the node take jobs again."""
        return await self._machines.undrain(request, actor)

    async def remove(self, request: s.RemoveRequest, actor: Actor) -> s.MachineAnswer:
        """Give a machine back."""
        return await self._machines.remove(request, actor)

    # -- the auth key ---------------------------------------------------------------------------------------------

    async def rotation(self) -> s.RotationView:
        """The rotation under way, or the last one."""
        return await self._rotation.rotation()

    async def rotate_key(self, request: s.RotateKeyRequest, actor: Actor) -> s.RotationView:
        """Begin one."""
        return await self._rotation.rotate_key(request, actor)

    async def abort_rotation(self, request: s.AbortRotationRequest, actor: Actor) -> s.RotationView:
        """Take it back."""
        return await self._rotation.abort_rotation(request, actor)

    async def waive(self, request: s.WaiveRequest, actor: Actor) -> s.RotationView:
        """Do not wait for a node."""
        return await self._rotation.waive(request, actor)

    # -- inside ---------------------------------------------------------------------------------------------------

    async def _look_anew(self) -> None:
        """Look before machines are chosen: a job may have begun, or the auth key have died, since that was read last.

        Raises:
            NotReady: meshd has not looked around at all yet.
        """
        self._tick()
        looks = [self._look_at_key()]
        if any(m.phase in IN_SLURM for m in self._journal.machines()):
            looks.append(self._look_at_slurm())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_TIMEOUT_S):
                await asyncio.gather(*looks)
        self._reconciler.tick()

    def _target(self, pool: Pool, request: s.ScaleRequest, by: str) -> tuple[Target, list[str]]:
        before, offers = self._journal.targets().get(pool.name), self._tick().snapshot.known_offers
        return next_target(pool, request, before, offers, by=by, at=self._clock.now())

    @staticmethod
    def _with_target(desired: Desired, target: Target) -> Desired:
        return replace(desired, targets={**desired.targets, target.pool: target})


def _of_other_pools(cooldowns: Mapping[str, Cooldown], pool: Pool) -> dict[str, Cooldown]:
    of_pools = ("pool:", cooldown_key(""))
    return {
        key: cooldown
        for key, cooldown in cooldowns.items()
        if key.startswith(of_pools) and not is_of_pool(key, pool.name) and key != cooldown_key(pool.name)
    }
