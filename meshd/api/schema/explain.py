"""Why something is as it is: `meshctl explain`."""

from __future__ import annotations

from pydantic import AwareDatetime

from meshd.api.schema.base import Document, Name, Part, Request
from meshd.api.schema.events import EventRow
from meshd.api.schema.freeze import FreezeView
from meshd.api.schema.head import ErrorView
from meshd.api.schema.health import HealthView
from meshd.api.schema.plan import AlternativeRow
from meshd.api.schema.status import WaitingRow


class ExplainQuery(Request):
    """The query string of GET /v1/explain: a machine, a slot, a pool, or a job that waits for machines."""

    subject: Name


class ExplainFailure(Part):
    """A subject that cannot be explained."""

    subject: str
    error: ErrorView


class AttemptRow(Part):
    """One attempt to rent a machine for a slot, and its outcome.

    Attributes:
        outcome: `rented`, `no_capacity`, `quota`, `refused`, `unclear`, `adopted` (an unclear create call did make
            a machine), `failed` (it was rented and given up), `skipped` (the order was not sent), or `waiting`.
        words: the reason, as the provider or meshd gives it.
    """

    at: AwareDatetime
    machine: str
    offer: str
    provider: str
    usd_per_hour: float = 0.0
    outcome: str
    words: str = ""


class ExplainView(Document):
    """Why a machine, a slot or a pool is as it is, or what a job waits for.

    Attributes:
        unit: what `target_gpus` counts: `GPU`, or `machine` in a pool without GPUs.
        subject: what was asked about; for a pool or a job `slot` and `machine` are "".
        machine: the one asked about, or the newest one of the slot; "" if the slot never had one.
        phase: the machine's; "" while the slot has no machine.
        why: what it is doing and what it waits for, in one sentence.
        rungs: every attempt since the pool's target was set, and those that led to it, oldest first.
        next_rungs: the offers to try next, best first, and the offers that do not fit, with the reason; empty once the
            pool has its target.
        events: the machine's newest events, oldest first.
        job: the job that was asked about; "" for anything else.
        waiting: that job, or the jobs that wait for machines of the pool.
        health: what Slurm, its agent and the tailnet say of the machine; None for a pool, and for one not in Slurm.
        freeze: while there is one, meshd rents nothing and ends nothing.
    """

    subject: str
    at: AwareDatetime
    pool: str = ""
    slot: str = ""
    machine: str = ""
    phase: str = ""
    why: str = ""
    target_gpus: int = 0
    unit: str = "GPU"
    constraints: list[str] = []
    rungs: list[AttemptRow] = []
    next_rungs: list[AlternativeRow] = []
    events: list[EventRow] = []
    health: HealthView | None = None
    job: str = ""
    waiting: list[WaitingRow] = []
    freeze: FreezeView | None = None


class ExplainViews(Document):
    """What `meshctl explain -o json` prints for several subjects."""

    explained: list[ExplainView] = []
    failed: list[ExplainFailure] = []
