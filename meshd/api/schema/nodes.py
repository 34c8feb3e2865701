"""Machines, and requests about one of them: `meshctl nodes`, `drain`, `undrain` and `remove`."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, AwareDatetime, Field

from meshd.api.schema.base import Document, DryRunRequest, Name, Part, Request
from meshd.api.schema.head import ErrorView
from meshd.api.schema.health import GpuLoadRow, PathRow, SectionRow
from meshd.api.schema.status import HeadNodeRow
from meshd.plaintext import plain


class NodeRow(Part):
    """A machine.

    Attributes:
        pod: it is a pod: a container without systemd.
        since: when it entered its phase.
        joined: it has reported its facts.
        ssh_host_key: type and key of its ssh server, as it reported them; "" when it has none.
        path: how the head's tailscaled reaches it: `direct ADDRESS`, `relay CODE`, or "" when not known.
        head_path: its path to the head, as its agent measured it; null when that is not known.
        slurm_state: as sinfo shows it, e.g. `IDLE+DRAIN`; "" when Slurm cannot be read.
        jobs: ids of the jobs that hold it.
        reason: why it is in this phase.
        failure: why it was given up; "" while all is well.
        unfit: why it cannot do its work, as a code (docs/troubleshooting.md lists them); "" when it is fit.
        unfit_text: the same for people.
        unfit_since: since when.
        slurm_reason: why Slurm holds it drained or DOWN; "" when it does not.
        lacks: what a job lacks on it that Slurm's settings give it elsewhere, as codes (docs/slurm.md lists them).
        gpu_load: as its agent last read it from nvidia-smi; empty when not known.
        by_queue: Slurm powered its slot up, so it was rented for that.
        for_jobs: ids of the jobs that waited for its slot then; empty when a person powered the slot up.
        settings: its node settings; null when not known, or from an agent that is older than they are.
    """

    machine: str
    slot: str
    pool: str
    provider: str
    phase: str
    since: AwareDatetime
    region: str = ""
    instance_type: str = ""
    pod: bool = False
    gpu: str = ""
    gpus: int = 0
    address: str = ""
    joined: bool = False
    ssh_host_key: str = ""
    path: str = ""
    slurm_state: str = ""
    jobs: list[str] = []
    heartbeat_age_s: float | None = None
    usd_per_hour: float = 0.0
    reason: str = ""
    failure: str = ""
    unfit: str = ""
    unfit_text: str = ""
    unfit_since: AwareDatetime | None = None
    slurm_reason: str = ""
    lacks: list[str] = []
    gpu_load: list[GpuLoadRow] = []
    head_path: PathRow | None = None
    settings: list[SectionRow] | None = None
    by_queue: bool = False
    for_jobs: list[str] = []


class NodesView(Document):
    """All machines that are not GONE.

    Attributes:
        head: the head as a node; None where it is none, or Slurm cannot be read.
    """

    at: AwareDatetime
    nodes: list[NodeRow] = []
    head: HeadNodeRow | None = None


class DrainRequest(Request):
    """Drain a node or undrain it. The machine stays rented. `machine` may be its slot."""

    machine: Name
    reason: Annotated[str, Field(max_length=200), AfterValidator(plain)] = ""


class RemoveRequest(DryRunRequest):
    """Give a machine back, after its jobs have ended, or with `force` at once. `machine` may be its slot."""

    machine: Name
    force: bool = False


class MachineAnswer(Document):
    """The answer to a request about one machine."""

    machine: str
    slot: str
    phase: str
    text: str
    jobs: list[str] = []
    warnings: list[str] = []


class MachineFailure(Part):
    """A machine for which a request failed."""

    machine: str
    error: ErrorView


class MachineAnswers(Document):
    """What `meshctl drain|undrain|remove -o json` prints."""

    machines: list[MachineAnswer] = []
    failed: list[MachineFailure] = []
