"""What a node agent said of its machine last."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class GpuLoad:
    """One GPU's load when nvidia-smi was asked last."""

    index: int
    utilization_percent: int = 0
    memory_used_mib: int = 0


@dataclass(frozen=True, slots=True)
class AgentReport:
    """One heartbeat, and since when what is wrong in it has been wrong without a break.

    Attributes:
        at: when the head received it.
        load1: the one-minute load average.
        slurmd_dead_since: no slurmd process since then; None while there is one.
        munge_dead_since: munged has not answered the agent since then; None while it answers.
        jobs: jobs with a slurmstepd running, whatever Slurm says.
        gpus: empty where there is no nvidia-smi, or it was not asked yet.
        gpu_fault: why nvidia-smi could not be read, or which GPUs it lacks; "" when all is well.
        gpu_fault_since: since when there is a fault; None while there is none.
    """

    at: datetime
    agent_version: str = ""
    boot_id: str = ""
    uptime_s: float = 0.0
    load1: float = 0.0
    slurmd_dead_since: datetime | None = None
    munge_dead_since: datetime | None = None
    jobs: int = 0
    gpus: tuple[GpuLoad, ...] = ()
    gpu_fault: str = ""
    gpu_fault_since: datetime | None = None
