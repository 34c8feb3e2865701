"""The head API of a head that behaves: a fleet in memory, its prices, its events, and rotations of its keys."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import datetime

from meshd.api import endpoints as e
from meshd.api.auth import Actor
from meshd.api.faults import BadRequest, Refused, Unknown
from meshd.api.handlers import Handlers
from meshd.api.schema import (
    CheckRow,
    DoctorView,
    DrainRequest,
    EventRow,
    EventsQuery,
    EventsView,
    ExplainQuery,
    ExplainView,
    MachineAnswer,
    NearRow,
    NodeRow,
    NodesView,
    OfferRow,
    OffersQuery,
    OffersView,
    PlannedRow,
    PlanView,
    PoolView,
    PriceRefreshRow,
    PriceRow,
    PricesRefresh,
    PricesRefreshed,
    PricesView,
    QueueView,
    ReloadRequest,
    ReloadView,
    RemoveRequest,
    ScaleAnswer,
    ScaleRequest,
    SourceView,
    SpendView,
    StatusView,
    StepRow,
    VersionView,
    WaitingFor,
)
from tests.unit.api.memory_fleet import OFFER, SUPPLY, Box, MemoryFleet, Pool
from tests.unit.api.memory_munge import MemoryMungeRotation
from tests.unit.api.memory_rotation import MemoryRotation
from tests.unit.api.memory_tokens import MemoryTokens


@dataclass
class MemoryDesk(MemoryFleet):
    catalogue: list[OfferRow] = field(default_factory=list)
    stories: dict[str, ExplainView] = field(default_factory=dict)
    queries: list[OffersQuery] = field(default_factory=list)
    unread: list[SourceView] = field(default_factory=list)
    scale_requests: list[ScaleRequest] = field(default_factory=list)
    error: Exception | None = None
    price_rows: list[PriceRow] = field(default_factory=list)
    fetches: dict[str, PriceRefreshRow] = field(default_factory=dict)
    actors: list[Actor] = field(default_factory=list)
    settings_faults: list[CheckRow] = field(default_factory=list)
    settings_wait: list[str] = field(default_factory=list)
    checks: list[CheckRow] = field(
        default_factory=lambda: [CheckRow(name="slurm", status="ok", text="24.11.5 answers")]
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.rotating = MemoryRotation(lambda: self.now())
        self.munge = MemoryMungeRotation(lambda: self.now(), self.actors)
        self.tokens = MemoryTokens(lambda: self.now(), self.actors)
        self.waiting = 0
        self._changed = asyncio.Condition()
        self._targets = 0
        self._tick_at: datetime | None = None

    def handlers(self) -> Handlers:
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
        table.write(e.DRAIN, self.drain)
        table.write(e.UNDRAIN, self.undrain)
        table.write(e.REMOVE, self.remove)
        table.write(e.RELOAD, self.reload)
        table.read(e.PRICES, self.prices)
        table.write(e.REFRESH_PRICES, self.refresh_prices)
        table.read(e.AUTH_KEY_ROTATION, self.rotating.rotation)
        table.write(e.ROTATE_AUTH_KEY, self.rotating.rotate)
        table.write(e.ABORT_AUTH_KEY_ROTATION, self.rotating.abort)
        table.write(e.WAIVE_AUTH_KEY_NODE, self.rotating.waive)
        table.read(e.MUNGE_KEY_ROTATION, self.munge.rotation)
        table.write(e.ROTATE_MUNGE_KEY, self.munge.rotate)
        table.write(e.ABORT_MUNGE_KEY_ROTATION, self.munge.abort)
        table.write(e.WAIVE_MUNGE_KEY_NODE, self.munge.waive)
        table.write(e.MUNGE_ROTATION_ACTION, self.munge.act)
        table.read(e.NODE_TOKEN_RENEWAL, self.tokens.renewal)
        table.write(e.RENEW_NODE_TOKENS, self.tokens.renew)
        return table

    async def tick(self) -> None:
        began = self.now()
        self.step()
        self.rotating.tick()
        self._tick_at = began
        async with self._changed:
            self._changed.notify_all()

    async def status(self) -> StatusView:
        self._fault()
        now = self.now()
        return StatusView(
            cluster="lab",
            version="0.1.0",
            at=now,
            uptime_s=7384,
            tick_at=self._tick_at,
            tick_age_s=2.0,
            sources=[SourceView(name="slurm", ok=True, at=now), *self._offer_sources()],
            pools=[self._pool_view(name, pool) for name, pool in self.pools.items()],
            problems=list(self.problems),
            spend=SpendView(usd_per_hour=self._usd(), usd_so_far=12.5),
        )

    def _pool_view(self, name: str, pool: Pool) -> PoolView:
        mine = [b for b in self.boxes if b.pool == name]
        phases = {phase: sum(b.phase == phase for b in mine) for phase in {b.phase for b in mine}}
        return PoolView(
            name=name,
            partition=name,
            target_id=pool.target_id,
            target_gpus=pool.target,
            ready_gpus=sum(b.gpus for b in mine if b.phase == "ready"),
            machines=phases,
            usd_per_hour=pool.usd_per_hour * len(mine),
            queue=QueueView(running=len(self.jobs), pending=1),
        )

    def _usd(self) -> float:
        return sum(self.pools[b.pool].usd_per_hour for b in self.boxes)

    async def nodes(self) -> NodesView:
        self._fault()
        return NodesView(at=self.now(), nodes=[self._row(b) for b in self.boxes])

    def _row(self, box: Box) -> NodeRow:
        up = box.phase in ("ready", "draining")
        return NodeRow(
            machine=box.name,
            slot=box.slot,
            pool=box.pool,
            provider="aws",
            region="eu-west-1",
            instance_type="p4d.24xlarge",
            gpu="a100",
            gpus=box.gpus,
            phase=box.phase,
            since=box.since,
            address="100.64.0.7" if up else "",
            path="direct 198.51.100.7:41641" if up else "",
            slurm_state="IDLE+DRAIN" if box.drained else "IDLE" if up else "DOWN",
            jobs=self.jobs.get(box.slot, []),
            heartbeat_age_s=1.0 if up else None,
            usd_per_hour=self.pools[box.pool].usd_per_hour,
            reason=box.reason,
            failure=box.failure,
        )

    async def plan(self, request: ScaleRequest | None = None) -> PlanView:
        self._fault()
        if request is None:
            return PlanView(usd_per_hour_before=self._usd(), usd_per_hour_after=self._usd())
        self.scale_requests.append(request)
        return self._plan_for(*self._find(request), request.gpus)

    def _find(self, request: ScaleRequest) -> tuple[str, Pool]:
        if request.pool is None and len(self.pools) != 1:
            raise BadRequest("say which pool", f"--pool {' or '.join(self.pools)}")
        name = request.pool or next(iter(self.pools))
        if name not in self.pools:
            raise BadRequest(f"there is no pool {name}", f"there are: {', '.join(self.pools)}")
        return name, self.pools[name]

    def _plan_for(self, name: str, pool: Pool, gpus: int) -> PlanView:
        mine = [b for b in self.boxes if b.pool == name and b.phase in SUPPLY]
        missing = max(gpus - sum(b.gpus for b in mine), 0)
        adds = -(-missing // pool.gpus_per_node)
        leave = self.surplus(name, gpus)
        free = self.free(name, pool)
        steps = [
            StepRow(action="request_machine", subject=f"{name}-{i}", reason=f"{gpus} GPUs are wanted")
            for i in free[:adds]
        ]
        steps += [StepRow(action="remove", subject=b.name, reason=f"{gpus} GPUs are wanted") for b in leave]
        return PlanView(
            steps=steps,
            usd_per_hour_before=self._usd(),
            usd_per_hour_after=self._usd() + pool.usd_per_hour * (adds - len(leave)),
            adds=adds,
            machines=[self._planned(name, i, pool) for i in free[:adds]],
            overshoot_gpus=adds * pool.gpus_per_node - missing,
            removes=[b.name for b in leave],
        )

    def _planned(self, name: str, index: int, pool: Pool) -> PlannedRow:
        return PlannedRow(
            slot=f"{name}-{index}",
            pool=name,
            offer=OFFER,
            provider="aws",
            gpu="a100-sxm",
            gpus=pool.gpus_per_node,
            usd_per_hour=pool.usd_per_hour,
            usd_per_gpu_hour=pool.usd_per_hour / pool.gpus_per_node,
        )

    async def scale(self, request: ScaleRequest, actor: Actor) -> ScaleAnswer:
        self._fault()
        self.scale_requests.append(request)
        name, pool = self._find(request)
        if request.gpus > pool.gpus_per_node * pool.max_nodes:
            raise Refused(f"pool {name} has at most {pool.max_nodes} nodes", f"raise pools.{name}.max_nodes")
        plan = self._plan_for(name, pool, request.gpus)
        before = pool.target
        if not request.dry_run:
            self.actors.append(actor)
            self._targets += 1
            pool.target, pool.target_id = request.gpus, self._targets
        return ScaleAnswer(
            pool=name,
            gpus_before=before,
            gpus=request.gpus,
            target_id=None if request.dry_run else pool.target_id,
            at=self.now(),
            last_event_id=len(self.log),
            plan=plan,
            waiting_for_jobs=[
                WaitingFor(slot=b.slot, machine=b.name, jobs=self.jobs[b.slot])
                for b in self.surplus(name, request.gpus)
                if self.jobs.get(b.slot)
            ],
        )

    def _box(self, name: str) -> Box:
        for box in self.boxes:
            if name in (box.name, box.slot):
                return box
        raise Unknown(f"there is no machine or slot {name}", "see `meshctl nodes`")

    async def reload(self, request: ReloadRequest, actor: Actor) -> ReloadView:
        self.actors.append(actor)
        return ReloadView(reloaded=not self.settings_faults, faults=self.settings_faults, waiting=self.settings_wait)

    async def drain(self, request: DrainRequest, actor: Actor) -> MachineAnswer:
        return self._drain(request, actor, drained=True)

    async def undrain(self, request: DrainRequest, actor: Actor) -> MachineAnswer:
        return self._drain(request, actor, drained=False)

    def _drain(self, request: DrainRequest, actor: Actor, *, drained: bool) -> MachineAnswer:
        box = self._box(request.machine)
        self.actors.append(actor)
        box.drained = drained
        return self._answer(box, "takes no new jobs" if drained else "takes jobs again")

    async def remove(self, request: RemoveRequest, actor: Actor) -> MachineAnswer:
        box = self._box(request.machine)
        if request.dry_run:
            return self._answer(box, "would be given back")
        self.actors.append(actor)
        if request.force:
            self.jobs.pop(box.slot, None)
        self.move(box, "draining", f"removed by {actor.user}")
        jobs = self.jobs.get(box.slot, [])
        return self._answer(box, f"given back when job {', '.join(jobs)} ends" if jobs else "given back")

    def _answer(self, box: Box, text: str) -> MachineAnswer:
        return MachineAnswer(
            machine=box.name, slot=box.slot, phase=box.phase, text=text, jobs=self.jobs.get(box.slot, [])
        )

    async def events(self, query: EventsQuery) -> EventsView:
        after_id, limit, wait_s = query.after_id, query.limit, query.wait_s

        def found() -> list[EventRow]:
            slots = {b.name: b.slot for b in self.boxes}
            rows = [e for e in self.log if not query.machine or {e.machine, slots.get(e.machine)} & {*query.machine}]
            rows = [e for e in rows if (not query.kind or e.kind in query.kind)]
            rows = [e for e in rows if query.since is None or e.at >= query.since]
            return rows[-limit:] if after_id is None else [e for e in rows if e.id > after_id][:limit]

        rows = found()
        if not rows and wait_s:
            self.waiting += 1
            try:
                async with asyncio.timeout(wait_s), self._changed:
                    while not (rows := found()):
                        await self._changed.wait()
            except TimeoutError:
                pass
            finally:
                self.waiting -= 1
        return EventsView(events=rows, last_id=rows[-1].id if rows else max(after_id or 0, len(self.log)))

    async def offers(self, query: OffersQuery) -> OffersView:
        self._fault()
        self.queries.append(query)
        fits = [o for o in self.catalogue if query.gpu in (None, o.gpu) and query.provider in ((), (o.provider,))]
        shown = [o for o in fits if query.all or (o.available is not False and not o.blocked_until)]
        near = [NearRow(field="gpu", count=len(self.catalogue), offer=o) for o in self.catalogue[:1] if not fits]
        return OffersView(
            at=self.now(),
            offers=shown[: query.limit],
            sources=self._offer_sources(),
            total=len(self.catalogue),
            matching=len(fits),
            left_out={"no free capacity": len(fits) - len(shown)} if len(fits) > len(shown) else {},
            near=near,
            gpus=sorted({o.gpu for o in self.catalogue if o.gpu}),
            regions=sorted({o.region for o in self.catalogue}),
        )

    def _offer_sources(self) -> list[SourceView]:
        names = sorted({o.provider for o in self.catalogue})
        return [SourceView(name=f"offers:{name}", ok=True, at=self.now()) for name in names] + self.unread

    async def prices(self) -> PricesView:
        self._fault()
        return PricesView(at=self.now(), stale_after_s=30 * 86400, prices=self.price_rows)

    async def refresh_prices(self, request: PricesRefresh, actor: Actor) -> PricesRefreshed:
        self.actors.append(actor)
        known = {row.provider for row in self.price_rows}
        if unknown := [name for name in request.providers if name not in known]:
            raise Unknown(f"{unknown[0]} is not enabled", f"enabled providers are: {', '.join(sorted(known))}")
        results = [self.fetches.get(name, PriceRefreshRow(provider=name, ok=True)) for name in request.providers]
        return PricesRefreshed(at=self.now(), results=results, prices=self.price_rows)

    async def explain(self, query: ExplainQuery) -> ExplainView:
        self._fault()
        subject = query.subject
        if subject not in self.stories:
            raise Unknown(f"there is no machine, slot or pool {subject}", f"there is {', '.join(self.stories)}")
        return self.stories[subject]

    async def doctor(self) -> DoctorView:
        return DoctorView(checks=self.checks)

    async def version(self) -> VersionView:
        return VersionView(meshd="0.1.0", cluster="lab", slurm="24.11.5", providers={"aws": "boto3 1.44"})

    def _fault(self) -> None:
        if self.error is not None:
            raise self.error
