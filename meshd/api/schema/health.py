"""The health of single nodes: parts of what `meshctl nodes` and `meshctl explain` show."""

from __future__ import annotations

from pydantic import AwareDatetime

from meshd.api.schema.base import Part


class GpuLoadRow(Part):
    """One GPU's load, as the node agent last read it from nvidia-smi."""

    index: int
    utilization_percent: int = 0
    memory_used_mib: int = 0


class PathRow(Part):
    """A tailnet path, as the machine's agent measured it.

    Attributes:
        kind: `direct`, `peer-relay` or `derp`.
        relay: the code of the DERP region, for `derp`.
        rtt_ms: the round trip.
        throughput_estimate: `high`, `medium` or `low`: an estimate from kind and round trip; nothing is transferred.
        age_s: since it was measured.
    """

    kind: str
    relay: str = ""
    rtt_ms: float
    throughput_estimate: str
    age_s: float


class PeerPathsView(Part):
    """The paths to a sample of the other nodes of the pool.

    Attributes:
        direct, relayed, silent: how many are of that sort; a silent peer did not answer.
        rtt_ms: the median round trip of those that answered.
        not_direct: slots of some that are relayed or silent.
    """

    direct: int = 0
    relayed: int = 0
    silent: int = 0
    rtt_ms: float | None = None
    not_direct: list[str] = []


class SectionRow(Part):
    """A section of a machine's node settings, as its agent last reported it.

    Attributes:
        state: `working`, `applied` or `failed`.
        text: what it does, or why it failed; "" when it is applied.
        since: since when it is in this state.
    """

    name: str
    state: str
    text: str = ""
    since: AwareDatetime


class HealthView(Part):
    """What Slurm, the node agent and the tailnet say of a node, and what follows from it.

    Attributes:
        unfit: why it cannot do its work, as a code (docs/troubleshooting.md lists them); "" when it is fit.
        text: the same for people, in Slurm's own words where it has any.
        since: since when it is unfit.
        next: what meshd does about it, and when.
        cure: what a person can do.
        slurm_state: as sinfo shows it; "" when Slurm cannot be read.
        slurm_reason, slurm_reason_by, slurm_reason_at: why it is drained or DOWN, who said so, and when.
        tailnet: `online`, or since when the device is offline; "" when the tailnet cannot be read.
        head_path: its tailnet path to the head, as its agent measured it; null when that is not known.
        peer_paths: its paths to other nodes of its pool; null when the agent has not reported.
        heartbeat_age_s: since the agent's last report; None before the first one.
        reported_at: when the agent reported the fields below; None: not since meshd started.
        jobs_seen: jobs with processes on the machine, whatever Slurm says.
        gpu_fault: what is wrong with its GPUs; "" when no fault is known.
        settings: its node settings; null when not known, or from an agent that is older than they are.
        limits: what jobs cannot do on it, for people, as on a pod; "" when nothing is known.
        os, arch, slurmd_version, tailscale_version, ssh_host_key: as it reported when it joined.
        log: the last lines of slurmd's log, oldest first.
        log_at: when they were fetched.
    """

    unfit: str = ""
    text: str = ""
    since: AwareDatetime | None = None
    next: str = ""
    cure: str = ""
    slurm_state: str = ""
    slurm_reason: str = ""
    slurm_reason_by: str = ""
    slurm_reason_at: AwareDatetime | None = None
    tailnet: str = ""
    head_path: PathRow | None = None
    peer_paths: PeerPathsView | None = None
    heartbeat_age_s: float | None = None
    reported_at: AwareDatetime | None = None
    agent_version: str = ""
    uptime_s: float = 0.0
    load1: float = 0.0
    slurmd_alive: bool | None = None
    munged_alive: bool | None = None
    jobs_seen: int = 0
    gpus: list[GpuLoadRow] = []
    gpu_fault: str = ""
    settings: list[SectionRow] | None = None
    limits: str = ""
    os: str = ""
    arch: str = ""
    slurmd_version: str = ""
    tailscale_version: str = ""
    ssh_host_key: str = ""
    log: list[str] = []
    log_at: AwareDatetime | None = None
