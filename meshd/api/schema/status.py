"""The whole cluster: `meshctl status`."""

from __future__ import annotations

from pydantic import AwareDatetime

from meshd.api.schema.base import Document, Part
from meshd.api.schema.freeze import FreezeView


class SourceView(Part):
    """One thing that meshd observes: `provider:aws`, `tailnet`, `slurm`.

    Attributes:
        at: when it was last read without an error.
        age_s: how long ago that was.
        since: since when it cannot be read; None while it can.
    """

    name: str
    ok: bool
    reason: str = ""
    at: AwareDatetime | None = None
    age_s: float | None = None
    since: AwareDatetime | None = None


class QueueView(Part):
    """Jobs of a pool's partition."""

    running: int = 0
    pending: int = 0
    pending_gpus: int = 0


class PoolView(Part):
    """A pool, and what it has of its target.

    Attributes:
        unit: what `target_gpus`, `wanted_gpus` and `ready_gpus` count: `GPU`, or `machine` in a pool without GPUs.
        wanted_gpus: the target, or those of the nodes that Slurm has given to jobs, whichever is more.
        ready_gpus: of READY nodes that are fit; those of unfit ones are in `unfit_gpus`.
        unfit: how many READY nodes are unfit, by the reason's code.
        machines: how many machines are in each phase, without GONE ones.
        pods: how many of them are pods.
        options: the target's, as written on a command line.
    """

    name: str
    partition: str
    target_id: int | None = None
    target_gpus: int = 0
    wanted_gpus: int = 0
    ready_gpus: int = 0
    unfit_gpus: int = 0
    unfit: dict[str, int] = {}
    unit: str = "GPU"
    machines: dict[str, int] = {}
    pods: int = 0
    usd_per_hour: float = 0.0
    queue: QueueView = QueueView()
    options: list[str] = []


class HeadNodeRow(Part):
    """The head as a node of its own cluster.

    Attributes:
        gpus: those that jobs get.
        slurm_state: as sinfo shows it, e.g. `DRAIN+IDLE`.
        up: slurmd has registered, and answers.
        slurm_reason: why Slurm holds it drained or DOWN; "" when it does not.
        jobs: ids of the jobs on it.
        queue: these, and the jobs that wait in one of its partitions.
    """

    name: str
    address: str = ""
    partitions: list[str] = []
    gpus: int = 0
    slurm_state: str = ""
    up: bool = False
    drained: bool = False
    slurm_reason: str = ""
    jobs: list[str] = []
    queue: QueueView = QueueView()


class WaitingRow(Part):
    """A job that waits for machines of a pool that Slurm's queue drives.

    Attributes:
        nodes: how many it wants; 0 when that is not known.
        ready: how many of them are READY.
        wait: `order` (machines are about to be ordered), `boot` (they boot and join), `start` (all are READY) or
            `refused` (none can be had now).
        until: when the machines are ready, as far as can be expected, or when it is tried again; None: not known.
        text: for people: what it waits for, and why; also the job's AdminComment.
    """

    job: str
    user: str
    pool: str
    nodes: int = 0
    ready: int = 0
    wait: str
    until: AwareDatetime | None = None
    text: str


class ProblemView(Part):
    """Something that is not as it should be.

    Attributes:
        code: which problem it is (docs/codes.md): stable, the text is not.
        severity: `info`, `warning` (meshd goes on by itself) or `error` (somebody must act).
        pool: the pool that it concerns; "" for none.
        blocking: the pool does not reach its target until somebody acts, so waiting is of no use.
    """

    code: str = ""
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
    refusals: int = 0
    last_applied_at: AwareDatetime | None = None
    error: str = ""


class SpendView(Part):
    """What machines cost, by the price at which each was rented."""

    usd_per_hour: float = 0.0
    usd_so_far: float = 0.0


class StatusView(Document):
    """The whole cluster.

    Attributes:
        at: when this was written, by the head's clock.
        tick_at: when the last finished tick began; None before the first.
        tick_age_s: how long ago that was.
        waiting: the jobs that wait for machines.
        head: the head as a node; None where it is none, or Slurm cannot be read.
        freeze: while there is one, meshd rents nothing and ends nothing.
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
    waiting: list[WaitingRow] = []
    head: HeadNodeRow | None = None
    freeze: FreezeView | None = None
