"""A pool's new target: `meshctl scale`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AwareDatetime, Field

from meshd.api.schema.base import Document, DryRunRequest, GpuModel, GpusPerNode, Part, Usd, Words
from meshd.api.schema.nodes import NodeRow
from meshd.api.schema.plan import PlanFinding, PlanView


class ScaleRequest(DryRunRequest):
    """A pool's new target.

    Attributes:
        pool: may be left out where there is only one.
        gpu: chooses the pool where none is named, and narrows its GPU model: "h100-sxm" in a pool of "h100". Any
            spelling will do, e.g. "NVIDIA H100 80GB HBM3"; it is kept in meshd's.
        gpus_per_node: the exact number of GPUs in each new machine; None: what the pool allows.
        provider: rent from this one only; None: the pool's own order.
        regions: regions or zones to rent in; none: the pool's.
        max_usd_per_gpu_hour: rent nothing that costs more; None: the pool's own limit.
        max_usd_per_hour: the most that all machines of the pool may cost together; None: the pool's own limit.
        spot, pods: None: what the pool says.
        spread: new machines may be in several providers and regions; without it all are in one.
        overshoot_max_gpus: up to this many extra GPUs may be rented where that is cheaper; None: what the pool says.
        reset: options that are not named become the pool's again; without it they stay as in the pool's present target.
            A field that is present is named, also as null.
    """

    gpus: Annotated[int, Field(ge=0, le=1_000_000)]
    pool: str | None = None
    provider: str | None = None
    max_usd_per_gpu_hour: Usd | None = None
    gpu: GpuModel | None = None
    gpus_per_node: GpusPerNode | None = None
    regions: Words = ()
    max_usd_per_hour: Usd | None = None
    spot: Literal["never", "if_cheaper", "prefer", "only"] | None = None
    pods: Literal["never", "allow", "only"] | None = None
    spread: bool = False
    overshoot_max_gpus: Annotated[int, Field(ge=0)] | None = None
    reset: bool = False


class WaitingFor(Part):
    """A node that is given back only when its jobs have ended."""

    slot: str
    machine: str = ""
    jobs: list[str] = []


class ScaleAnswer(Document):
    """The answer to a ScaleRequest.

    Attributes:
        unit: what is counted: `GPU`, or `machine` in a pool without GPUs.
        target_id: None for a dry run.
        at: when it was accepted, by the head's clock: a tick that began later has seen it.
        last_event_id: every event of this change has a higher id.
        options: the target's options, as written on a command line.
        warnings: those of the plan, and one for each option of the former target that is dropped.
        findings: the same, with codes.
        asks: people are to be asked before this is done (`guards.confirm_usd_per_hour`).
    """

    pool: str
    gpus_before: int
    gpus: int
    unit: str = "GPU"
    target_id: int | None = None
    at: AwareDatetime
    last_event_id: int = 0
    plan: PlanView
    warnings: list[str] = []
    findings: list[PlanFinding] = []
    waiting_for_jobs: list[WaitingFor] = []
    options: list[str] = []
    asks: bool = True


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
