"""The documents of the unix-socket API, version 1.

Changes are additive: a field may be added with a default, none is taken away or changes its meaning. Readers ignore
what they do not know; requests with unknown fields are refused. Times carry their zone. Words that may grow (phases,
kinds, severities) are plain strings, so that an older reader does not choke on a newer word.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, field_validator

from meshd import gpus

SCHEMA_VERSION = 1


class Part(BaseModel):
    """A piece of an answer."""

    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)


class Document(Part):
    """A whole answer: what `meshctl -o json` prints."""

    schema_version: int = SCHEMA_VERSION


class Request(BaseModel):
    """What a client asks for."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    schema_version: Literal[1] = 1


# What meshd sees


class SourceView(Part):
    """One thing that meshd observes: `provider:aws`, `tailnet`, `slurm`.

    Attributes:
        at: when it was last read well.
        since: since when it cannot be read; None while it can.
    """

    name: str
    ok: bool
    reason: str = ""
    at: AwareDatetime | None = None
    since: AwareDatetime | None = None


class QueueView(Part):
    """Jobs of a pool's partition."""

    running: int = 0
    pending: int = 0
    pending_gpus: int = 0


class PoolView(Part):
    """A pool and how far it is from its target.

    Attributes:
        machines: how many machines stand in each phase; GONE ones are not counted.
    """

    name: str
    partition: str
    target_id: int | None = None
    target_gpus: int = 0
    ready_gpus: int = 0
    machines: dict[str, int] = {}
    usd_per_hour: float = 0.0
    queue: QueueView = QueueView()


class ProblemView(Part):
    """Something that is not as it should be.

    Attributes:
        severity: `info`, `warning` (meshd goes on by itself) or `error` (somebody must act).
        pool: the pool it concerns, "" when none.
        blocking: the pool's target is not reached until somebody acts: who waits for it need not wait on.
    """

    severity: str
    text: str
    cure: str = ""
    since: AwareDatetime | None = None
    pool: str = ""
    machine: str = ""
    blocking: bool = False


class PublishView(Part):
    """The state of the Slurm files that meshd writes."""

    reconfigures: int = 0
    last_applied_at: AwareDatetime | None = None
    error: str = ""


class SpendView(Part):
    """Money, by the prices known when each machine was rented."""

    usd_per_hour: float = 0.0
    usd_so_far: float = 0.0


class StatusView(Document):
    """How the whole stands.

    Attributes:
        at: when this was written, by the head's clock.
        tick_at: when the last finished tick began; None before the first.
        tick_age_s: how long ago that was.
    """

    cluster: str
    version: str
    at: AwareDatetime
    uptime_s: float = 0.0
    tick_at: AwareDatetime | None = None
    tick_age_s: float | None = None
    sources: list[SourceView] = []
    pools: list[PoolView] = []
    problems: list[ProblemView] = []
    slurm: PublishView = PublishView()
    spend: SpendView = SpendView()


class NodeRow(Part):
    """A machine.

    Attributes:
        since: when it entered its phase.
        path: `direct ADDRESS`, `relay CODE`, or "" when not known.
        slurm_state: as sinfo shows it, e.g. `IDLE+DRAIN`; "" when Slurm cannot be read.
        jobs: ids of the jobs that hold it.
        reason: why it is in this phase.
        failure: why it was given up; "" while all is well.
    """

    machine: str
    slot: str
    pool: str
    provider: str
    phase: str
    since: AwareDatetime
    region: str = ""
    instance_type: str = ""
    gpu: str = ""
    gpus: int = 0
    address: str = ""
    path: str = ""
    slurm_state: str = ""
    jobs: list[str] = []
    heartbeat_age_s: float | None = None
    usd_per_hour: float = 0.0
    reason: str = ""
    failure: str = ""


class NodesView(Document):
    """All machines that are not GONE."""

    at: AwareDatetime
    nodes: list[NodeRow] = []


class EventRow(Document):
    """Something that happened. `fields` are for programs, `text` is for people.

    Attributes:
        id: grows; also over restarts.
        kind: e.g. `phase`, `failure`, `scale`, `problem`.
    """

    id: int
    at: AwareDatetime
    kind: str
    text: str
    machine: str = ""
    pool: str = ""
    fields: dict[str, str | int | float | bool | None] = {}


class EventsView(Document):
    """Events, oldest first. `last_id` is where to go on, also when none matched."""

    events: list[EventRow] = []
    last_id: int = 0


# What meshd would do


class StepRow(Part):
    """One step of a plan."""

    action: str
    subject: str
    reason: str


class AlternativeRow(Part):
    """An offer that was looked at: what it costs, and why it is or is not taken.

    Attributes:
        price_stale: too old to be trusted with a budget.
    """

    offer: str
    provider: str
    region: str = ""
    instance_type: str = ""
    gpu: str = ""
    gpus: int = 0
    usd_per_hour: float = 0.0
    usd_per_gpu_hour: float = 0.0
    chosen: bool = False
    note: str = ""
    price_stale: bool = False


class PlannedRow(Part):
    """A machine that would be rented for a slot.

    Attributes:
        offer: its key, e.g. "aws/us-east-1a/p5.48xlarge/spot".
    """

    slot: str
    pool: str
    offer: str
    provider: str
    region: str = ""
    instance_type: str = ""
    gpu: str = ""
    gpus: int = 0
    spot: bool = False
    usd_per_hour: float = 0.0
    usd_per_gpu_hour: float = 0.0


class PlanView(Document):
    """What would be done now.

    Attributes:
        adds: how many machines would be rented: `machines` has a row for each.
        removes: names of the machines that would be given back.
        overshoot_gpus: how many GPUs more than wanted there would be, since machines are rented whole.
    """

    steps: list[StepRow] = []
    usd_per_hour_before: float = 0.0
    usd_per_hour_after: float = 0.0
    adds: int = 0
    removes: list[str] = []
    machines: list[PlannedRow] = []
    overshoot_gpus: int = 0
    alternatives: list[AlternativeRow] = []
    warnings: list[str] = []


class OfferRow(Part):
    """Something that can be rented now.

    Attributes:
        offer: its key, e.g. "aws/us-east-1a/p5.48xlarge/spot".
        available: what the cloud says of free capacity; None when it does not tell.
        capacity_hint: in the cloud's own word.
        price_age_s: how old the price is; None when that is not known.
        price_source: `api`, `refreshed`, `shipped` or `settings`: where the price comes from.
        price_stale: too old to be trusted with a budget.
        blocked_until: it is left alone until then, for `blocked_reason`.
    """

    offer: str
    provider: str
    region: str
    zone: str = ""
    instance_type: str
    gpu: str = ""
    gpus: int = 0
    gpu_memory_gib: int = 0
    vcpus: int = 0
    memory_mib: int = 0
    arch: str = ""
    spot: bool = False
    usd_per_hour: float = 0.0
    usd_per_gpu_hour: float = 0.0
    available: bool | None = None
    capacity_hint: str = ""
    price_age_s: float | None = None
    price_source: str = ""
    price_stale: bool = False
    blocked_until: AwareDatetime | None = None
    blocked_reason: str = ""


class NearRow(Part):
    """What there would be without one field of an OffersQuery.

    Attributes:
        count: how many offers fail for this field alone.
        offer: the cheapest of them.
    """

    field: str
    count: int
    offer: OfferRow


class OffersView(Document):
    """What can be rented, cheapest GPU-hour first, and what is not shown.

    Attributes:
        sources: which provider was read when, or why it could not be: `offers:aws`.
        total: how many offers all providers have together.
        matching: how many of them are what was asked for, shown or not.
        left_out: of the matching ones, how many cannot be rented now and are not shown, by reason.
        near: when nothing matches: what there would be without one of the fields.
        gpus, regions: every GPU model and every region that is offered, for completion and to mend a mistyped name.
    """

    at: AwareDatetime
    offers: list[OfferRow] = []
    sources: list[SourceView] = []
    total: int = 0
    matching: int = 0
    left_out: dict[str, int] = {}
    near: list[NearRow] = []
    gpus: list[str] = []
    regions: list[str] = []


class PriceRow(Part):
    """Prices in use: those of one provider that have one source and one day.

    Attributes:
        source: `api` (told with the offers), `refreshed` (fetched), `shipped` (with meshd) or `settings`; "" when the
            provider's offers cannot be read or have no price.
        as_of: None for prices of the settings, which do not age.
        types: how many instance types have such a price.
        stale: too old to be trusted with a budget.
        refreshable: `prices refresh` can fetch them.
        note: what is wrong, and what helps.
    """

    provider: str
    source: str = ""
    as_of: AwareDatetime | None = None
    age_s: float | None = None
    types: int = 0
    regions: int = 0
    stale: bool = False
    refreshable: bool = False
    note: str = ""


class PricesView(Document):
    """Which prices meshd reckons with."""

    at: AwareDatetime
    stale_after_s: float
    prices: list[PriceRow] = []


class PriceRefreshRow(Part):
    """What came of fetching one provider's prices. Where it failed, those from before still hold.

    Attributes:
        ok: they were fetched, or the provider tells them with its offers anyway.
        kind: a word for programs, as in ErrorView; `no_price_list` where the cloud cannot be asked.
    """

    provider: str
    ok: bool = False
    text: str = ""
    cure: str = ""
    kind: str = ""
    as_of: AwareDatetime | None = None
    types: int = 0
    regions: int = 0


class PricesRefreshed(Document):
    """What came of a PricesRefresh, and what is in use now."""

    at: AwareDatetime
    results: list[PriceRefreshRow] = []
    prices: list[PriceRow] = []


class RungRow(Part):
    """One offer that was tried for a slot, and what came of it.

    Attributes:
        outcome: `rented`, `no_capacity`, `quota`, `refused`, `unclear`, `adopted` (an unclear create call did make
            it), `failed` (it was rented and given up), `skipped` (the order was not sent), or `waiting`.
        words: the provider's own words, or meshd's.
    """

    at: AwareDatetime
    machine: str
    offer: str
    provider: str
    usd_per_hour: float = 0.0
    outcome: str
    words: str = ""


class ExplainView(Document):
    """Why a machine, a slot or a pool is as it is.

    Attributes:
        subject: the machine, slot or pool that was asked about; for a pool `slot` and `machine` are "".
        machine: the one asked about, or the newest one of the slot, "" when it never had any.
        phase: the machine's; "" when no machine stands behind the slot now.
        why: in one sentence, what it is doing and what it waits for.
        rungs: every offer tried since the pool's target was set, and what led there, oldest first.
        next_rungs: the offers that would be tried next, best first, and those that would not do, with the reason; none
            once the pool has what is wanted.
        events: the machine's newest events, oldest first.
    """

    subject: str
    at: AwareDatetime
    pool: str = ""
    slot: str = ""
    machine: str = ""
    phase: str = ""
    why: str = ""
    target_gpus: int = 0
    constraints: list[str] = []
    rungs: list[RungRow] = []
    next_rungs: list[AlternativeRow] = []
    events: list[EventRow] = []


# What people ask for


class ScaleRequest(Request):
    """A pool's new target.

    Attributes:
        pool: may be left out where there is only one.
        gpu: chooses the pool where none is named, and narrows its GPU model: "h100-sxm" in a pool of "h100". Any
            spelling will do, e.g. "NVIDIA H100 80GB HBM3"; it is kept in meshd's.
        gpus_per_node: exactly so many GPUs in each new machine; None: what the pool allows.
        provider: rent from this one only; None: the pool's own order.
        regions: regions or zones to rent in; none: the pool's.
        max_usd_per_gpu_hour: rent nothing dearer; None: the pool's own limit.
        max_usd_per_hour: the most that all machines of the pool may cost together; None: the pool's own limit.
        spot: None: what the pool says.
        spread: new machines may be of several providers and regions; else all are of one.
        overshoot_max_gpus: so many GPUs more may be taken where that is cheaper; None: what the pool says.
        dry_run: only answer what would be done.
    """

    gpus: Annotated[int, Field(ge=0, le=1_000_000)]
    pool: str | None = None
    provider: str | None = None
    max_usd_per_gpu_hour: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    gpu: Annotated[str, Field(max_length=40)] | None = None
    gpus_per_node: Annotated[int, Field(ge=0, le=16)] | None = None
    regions: Annotated[tuple[Annotated[str, Field(max_length=40)], ...], Field(max_length=32)] = ()
    max_usd_per_hour: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    spot: Literal["never", "prefer", "only"] | None = None
    spread: bool = False
    overshoot_max_gpus: Annotated[int, Field(ge=0)] | None = None
    dry_run: bool = False

    @field_validator("gpu")
    @classmethod
    def _one_spelling(cls, gpu: str | None) -> str | None:
        return gpus.asked(gpu) if gpu is not None else None


class OffersQuery(Request):
    """The query string of GET /v1/offers. What is left out does not constrain; `provider` and `region` may be repeated.

    Attributes:
        gpu: any spelling will do; "h100" also means "h100-sxm".
        gpus_per_node: exactly so many; 0 for machines without GPUs.
        region: regions or zones.
        spot: true for spot only, false for on demand only.
        gpu_memory_min_gib: of one GPU.
        all: show those too that cannot be rented now.
        refresh: have the clouds read first; for at most some 20 s, and not more often than every 10 s.
    """

    gpu: Annotated[str, Field(max_length=40)] | None = None
    gpus_per_node: Annotated[int, Field(ge=0, le=16)] | None = None
    provider: Annotated[tuple[Annotated[str, Field(max_length=40)], ...], Field(max_length=32)] = ()
    region: Annotated[tuple[Annotated[str, Field(max_length=40)], ...], Field(max_length=32)] = ()
    spot: bool | None = None
    max_usd_per_gpu_hour: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    gpu_memory_min_gib: Annotated[int, Field(ge=0)] = 0
    arch: Literal["x86_64", "arm64"] | None = None
    all: bool = False
    sort: Literal["price", "provider"] = "price"
    limit: Annotated[int, Field(gt=0, le=100_000)] = 40
    refresh: bool = False

    @field_validator("gpu")
    @classmethod
    def _one_spelling(cls, gpu: str | None) -> str | None:
        return gpus.asked(gpu) if gpu is not None else None

    @field_validator("provider", "region", mode="before")
    @classmethod
    def _one_or_several(cls, words: object) -> object:
        return (words,) if isinstance(words, str) else words


class ExplainQuery(Request):
    """The query string of GET /v1/explain: a machine, a slot or a pool."""

    subject: Annotated[str, Field(min_length=1, max_length=63)]


class MungeNodeRow(Part):
    """A node in a rotation of the munge key.

    Attributes:
        key: fingerprint of the key in place there, as its agent told last; "" when not known.
        state: `waiting`, `staged`, `switched`, `confirmed`, `waived`, `offline` (it gets the key when it returns) or
            `silent` (it cannot be reached, though Slurm counts on it).
        reason: what it is waited for; "" when nothing.
    """

    machine: str
    slot: str
    key: str = ""
    state: str
    reason: str = ""


class MungeRotationView(Document):
    """The rotation of the munge key that is under way, or the last one, or none: then `id` is "".

    Attributes:
        key: fingerprint of the key that machines get which join now.
        stage: generate, stage, switch, verify, return, check, done or aborted.
        active: it is under way.
        switch_at: the moment at which all change.
        failure: what it waits for just now; "" while it gets on.
        taken_back: why the old key stays or comes back; "" while it does not.
        longest_away_ms: how long munged was away where it took longest.
        spread_ms: from the first munged that stopped to the last that came back.
        steps: what would be done, of a dry run.
    """

    at: AwareDatetime
    key: str = ""
    id: str = ""
    stage: str = ""
    stage_since: AwareDatetime | None = None
    active: bool = False
    started_at: AwareDatetime | None = None
    ended_at: AwareDatetime | None = None
    by: str = ""
    old: str = ""
    new: str = ""
    switch_at: AwareDatetime | None = None
    failure: str = ""
    taken_back: str = ""
    longest_away_ms: float = 0.0
    spread_ms: float = 0.0
    nodes: list[MungeNodeRow] = []
    steps: list[str] = []


class MungeRotationRequest(Request):
    """Rotate the munge key, take a rotation back, or do not wait for some machines any more.

    Attributes:
        machines: not waited for; each may be a slot.
        dry_run: with `begin`: only answer what would be done.
    """

    action: Literal["begin", "abort", "waive"] = "begin"
    machines: Annotated[tuple[Annotated[str, Field(min_length=1, max_length=63)], ...], Field(max_length=1000)] = ()
    dry_run: bool = False


class KeyRow(Part):
    """A key without its secret.

    Attributes:
        id: the control server's; "" when not known.
        sha256: the first 12 digits; two keys are the same when these are.
        minted: meshd made it.
    """

    id: str = ""
    sha256: str = ""
    expires: AwareDatetime | None = None
    tags: list[str] = []
    minted: bool = False


class RotationNodeRow(Part):
    """A node in a rotation.

    Attributes:
        state: `pending` (it cannot be reached, or has not joined yet), `waiting`, `stored`, `reauthenticating`,
            `reauthenticated`, `confirmed`, `failed` (it is tried again), `waived` or `gone`.
        reason: why it is not done; "" when it is.
        gap_s: how long its own login took.
    """

    machine: str
    slot: str
    state: str
    since: AwareDatetime
    reason: str = ""
    attempts: int = 0
    retry_at: AwareDatetime | None = None
    gap_s: float = 0.0


class NewcomerRow(Part):
    """A device born while strangers may have known the old key. `machine` is "" when it is nobody's."""

    device_id: str
    hostname: str
    address: str = ""
    created: AwareDatetime | None = None
    machine: str = ""


class RotationView(Document):
    """The rotation of the auth key that is under way, or the last one, or none: then `id` is "".

    Attributes:
        in_use: the key that launches have; None before the first.
        id: grows with time.
        stage: revoke_first, mint, prove, switch, distribute, reauth, confirm, hold, revoke, done, rollback, discard
            or aborted.
        active: it is under way.
        source: `minted`, or `file`.
        failure: why the last attempt of the stage failed; "" while all is well.
        taken_back: why the old key stays or comes back; "" while it does not.
        no_way_back: why it cannot be aborted; "" when it can.
        steps: what would be done, of a dry run.
    """

    at: AwareDatetime
    in_use: KeyRow | None = None
    id: str = ""
    stage: str = ""
    stage_since: AwareDatetime | None = None
    active: bool = False
    source: str = ""
    reauth: bool = False
    compromised: bool = False
    started_at: AwareDatetime | None = None
    ended_at: AwareDatetime | None = None
    by: str = ""
    reason: str = ""
    old: KeyRow | None = None
    new: KeyRow | None = None
    failure: str = ""
    retry_at: AwareDatetime | None = None
    taken_back: str = ""
    no_way_back: str = ""
    warnings: list[str] = []
    newcomers: list[NewcomerRow] = []
    nodes: list[RotationNodeRow] = []
    steps: list[str] = []


class RotateKeyRequest(Request):
    """Rotate the auth key.

    Attributes:
        reauth: nodes also log in anew with it.
        compromised: strangers know the old key: revoke it first; implies `reauth`.
        leaked_at: devices born since then are listed; None: since the key was made.
        dry_run: only answer what would be done.
    """

    reauth: bool = False
    compromised: bool = False
    leaked_at: AwareDatetime | None = None
    dry_run: bool = False


class AbortRotationRequest(Request):
    """Take the rotation back that is under way."""


class WaiveRequest(Request):
    """Do not wait for a node any more. `machine` may be its slot."""

    machine: Annotated[str, Field(min_length=1, max_length=63)]


class WaitingFor(Part):
    """A node that is given back only when its jobs have ended."""

    slot: str
    machine: str = ""
    jobs: list[str] = []


class ScaleAnswer(Document):
    """What came of a ScaleRequest.

    Attributes:
        target_id: None for a dry run.
        at: when it was accepted, by the head's clock: a tick that began later has seen it.
        last_event_id: every event of this change has a higher id.
    """

    pool: str
    gpus_before: int
    gpus: int
    target_id: int | None = None
    at: AwareDatetime
    last_event_id: int = 0
    plan: PlanView
    warnings: list[str] = []
    waiting_for_jobs: list[WaitingFor] = []


class ScaleOutcome(Document):
    """What `meshctl scale -o json` prints.

    Attributes:
        outcome: planned, declined, unchanged, accepted, reached, gave_up, superseded, timed_out or interrupted.
    """

    outcome: str
    reason: str = ""
    elapsed_s: float = 0.0
    answer: ScaleAnswer
    nodes: list[NodeRow] = []


class PricesRefresh(Request):
    """Fetch prices, for at most `prices.refresh_timeout_s` of the settings. No providers: of all that can be asked."""

    providers: Annotated[tuple[Annotated[str, Field(max_length=40)], ...], Field(max_length=32)] = ()


class DrainRequest(Request):
    """Let a node take no new jobs, or again. The machine stays rented. `machine` may be its slot."""

    machine: Annotated[str, Field(min_length=1, max_length=63)]
    reason: Annotated[str, Field(max_length=200)] = ""


class RemoveRequest(Request):
    """Give a machine back, after its jobs have ended, or with `force` at once. `machine` may be its slot."""

    machine: Annotated[str, Field(min_length=1, max_length=63)]
    force: bool = False


class MachineAnswer(Document):
    """What came of a request that concerns one machine."""

    machine: str
    slot: str
    phase: str
    text: str
    jobs: list[str] = []
    warnings: list[str] = []


class MachineAnswers(Document):
    """What `meshctl drain|undrain|remove -o json` prints."""

    machines: list[MachineAnswer] = []
    failed: list[MachineFailure] = []


class MachineFailure(Part):
    """A machine for which a request failed."""

    machine: str
    error: ErrorView


# The rest


class CheckRow(Part):
    """One check of `meshctl doctor`; status is ok, warn or fail."""

    name: str
    status: str
    text: str
    cure: str = ""


class DoctorView(Document):
    """All checks. `source` is `daemon`, or `local` when the daemon could not be asked."""

    checks: list[CheckRow] = []
    source: str = "daemon"


class InitChange(Part):
    """A file that `meshctl init` writes. `diff` is a unified diff; a secret's content is never in it."""

    path: str
    reasons: list[str] = []
    diff: str = ""
    backup: str = ""


class InitView(Document):
    """What `meshctl init` would do or has done, and what is left for a person to do."""

    changes: list[InitChange] = []
    warnings: list[str] = []
    applied: bool = False
    next: list[str] = []


class VersionView(Document):
    """What runs on the head; "" where not known."""

    meshd: str
    cluster: str = ""
    python: str = ""
    slurm: str = ""
    tailscale: str = ""
    providers: dict[str, str] = {}


class CallerView(Document):
    """Who meshd takes the caller for."""

    uid: int
    user: str
    may_write: bool
    group: str


class ErrorView(Document):
    """Why a request failed, what to do next, and a word for programs."""

    error: str
    cure: str = ""
    kind: str = "error"


MachineAnswers.model_rebuild()
MachineFailure.model_rebuild()

DOCUMENTS: tuple[type[BaseModel], ...] = (
    StatusView,
    NodesView,
    PlanView,
    OffersView,
    ExplainView,
    PricesView,
    PricesRefresh,
    PricesRefreshed,
    ScaleRequest,
    ScaleAnswer,
    ScaleOutcome,
    OffersQuery,
    ExplainQuery,
    EventsView,
    DrainRequest,
    RemoveRequest,
    RotationView,
    RotateKeyRequest,
    AbortRotationRequest,
    WaiveRequest,
    MungeRotationView,
    MungeRotationRequest,
    MachineAnswer,
    MachineAnswers,
    DoctorView,
    InitView,
    VersionView,
    CallerView,
    ErrorView,
)
"""Everything that crosses the socket or is printed as JSON."""
