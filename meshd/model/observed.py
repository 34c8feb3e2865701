"""What was observed in one tick. Unknown is not absent: a source that cannot be read is Unavailable, never empty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Generic, TypeAlias, TypeVar

from meshd.model.node_settings import NodeFault, ReportedSection, WantedSection
from meshd.model.path import MeasuredPath, PeerPaths
from meshd.provider_api import Instance, Offer


@dataclass(frozen=True, slots=True)
class GpuLoad:
    """One GPU's load, as nvidia-smi last showed it."""

    index: int
    utilization_percent: int = 0
    memory_used_mib: int = 0


@dataclass(frozen=True, slots=True)
class AgentReport:
    """The last heartbeat of an agent. Each `*_since` is when the fault began that has lasted without a break.

    Attributes:
        at: when the head received it.
        load1: the one-minute load average.
        slurmd_dead_since: no slurmd process runs; None while one does.
        munge_dead_since: munged does not answer the agent; None while it answers.
        jobs: jobs with a running slurmstepd, whatever Slurm says.
        gpus: empty where there is no nvidia-smi, or it has not been read yet.
        gpu_fault: why nvidia-smi cannot be read, or which GPUs it lacks; "" when there is no fault.
        gpu_fault_since: None while there is no fault.
        head_path: its tailnet path to the head; None while it has measured none.
        relayed_since: that path is not direct; None while it is, or none was measured.
        peer_paths: its paths to other nodes of its pool; None from an agent that measures none.
        sections: how far it is with its node settings, by section; None from an agent that is older than they are.
        faults: what its sections find wrong.
        spot_notices: the kinds of its cloud's notices, e.g. "preempted".
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
    head_path: MeasuredPath | None = None
    relayed_since: datetime | None = None
    peer_paths: PeerPaths | None = None
    sections: Mapping[str, ReportedSection] | None = None
    faults: tuple[NodeFault, ...] = ()
    spot_notices: tuple[str, ...] = ()


T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Fresh(Generic[T_co]):
    """A value that was read at `at`.

    Attributes:
        since: the source could be read, and believed, without a break since then; None: that is not known.
    """

    value: T_co
    at: datetime
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The source cannot be read since `since`. That never justifies destroying anything.

    Attributes:
        kind: of a cloud's refusal, e.g. `rate_limited` (`ProviderError.kind`); "" when it is none.
    """

    reason: str
    since: datetime
    kind: str = ""


Observation: TypeAlias = Fresh[T_co] | Unavailable


def value_of(seen: Observation[T_co]) -> T_co | None:
    """The value that a source read; None while it cannot be read."""
    return seen.value if isinstance(seen, Fresh) else None


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """A node as `scontrol show nodes` shows it.

    Attributes:
        states: base state and flags as a set, upper case: {"IDLE", "DRAIN", "NOT_RESPONDING"}; the short marks
            (`*`, `~`, `#`...) are spelled out.
        node_addr: NodeAddr of its line.
        reason: why it is DOWN, drained or failing; "" when it is not.
        reason_by: the user who gave the reason: SlurmUser or root where Slurm itself did; "" when Slurm does not say.
        reason_at: when it was given; None when Slurm does not say.
    """

    name: str
    node_addr: str
    states: frozenset[str]
    reason: str = ""
    partitions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    gres: str = ""
    version: str = ""
    reason_by: str = ""
    reason_at: datetime | None = None

    @property
    def powering_up(self) -> bool:
        """Whether Slurm wants it and its slurmd has not registered since. So none of its jobs can run yet.

        A slot that a job has just got is still POWERED_DOWN: Slurm begins to power it up some seconds later.
        """
        return bool(self.states & {"POWERING_UP", "POWER_UP"}) or ("POWERED_DOWN" in self.states and self.held)

    @property
    def held(self) -> bool:
        """Whether a job has it, running or not, or is just ending."""
        return bool(self.states & {"ALLOCATED", "MIXED", "COMPLETING"})

    @property
    def busy(self) -> bool:
        """Whether a job runs on it, may start at any moment, or is just ending."""
        return self.held and ("COMPLETING" in self.states or not self.powering_up)

    @property
    def up(self) -> bool:
        """Whether slurmd registered validly, so that the node takes jobs unless it is drained."""
        return bool(self.states & {"IDLE", "ALLOCATED", "MIXED"}) and not self.states & {
            "NOT_RESPONDING",
            "INVALID_REG",
            "UNKNOWN",
            "DOWN",
            "POWERED_DOWN",
            "POWERING_UP",
            "POWER_UP",
            "POWERING_DOWN",
            "FUTURE",
        }

    @property
    def cloud(self) -> bool:
        """Whether Slurm's power saving drives it: its line says State=CLOUD."""
        return "CLOUD" in self.states

    @property
    def powered_down(self) -> bool:
        """Whether Slurm has switched it off, or is doing so. No job can come onto it, and none is on it."""
        return bool(self.states & {"POWERED_DOWN", "POWERING_DOWN"}) and not self.held

    @property
    def leaves_power(self) -> bool:
        """Whether it is switched off, or will be once its jobs have ended. Slurm cannot take that back."""
        return bool(self.states & {"POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN"})

    @property
    def drained(self) -> bool:
        """Whether it takes no new jobs."""
        return "DRAIN" in self.states


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job as squeue shows it.

    Attributes:
        nodes: the slots that it runs on; empty while it waits.
        state_reason: why it waits.
        gpus: the GPUs that it asks for in all; 0 when none or not known.
        required_nodes: the nodes that it asks for by name (`--nodelist`).
        account: whose account it is charged to; "" where Slurm keeps no records.
        batch: sbatch submitted it; False for salloc and srun.
        requeue: Slurm may put it back into the queue.
        admin_comment: what `scontrol update jobid= admincomment=` set last; "" for nothing.
        node_count: how many nodes it has or asks for; 0 when that is not known.
        run_s: for how long it has run; None for a job that does not run, or when that is not known.
    """

    id: str
    user: str
    partition: str
    state: str
    nodes: tuple[str, ...] = ()
    state_reason: str = ""
    gpus: int = 0
    features: str = ""
    required_nodes: tuple[str, ...] = ()
    account: str = ""
    batch: bool = True
    requeue: bool = True
    admin_comment: str = ""
    node_count: int = 0
    run_s: float | None = None

    @property
    def configuring(self) -> bool:
        """Whether it has its nodes and waits for some of them: none of its processes runs yet."""
        return self.state == "CONFIGURING"


@dataclass(frozen=True, slots=True)
class SlurmReservation:
    """A reservation as `scontrol show reservation` shows it; `partition` is "" when it names none."""

    name: str
    nodes: tuple[str, ...]
    partition: str = ""


@dataclass(frozen=True)
class SlurmView:
    """Nodes and jobs, read together. Without `__slots__`: it keeps which jobs each slot has.

    Attributes:
        slurm_user: SlurmUser, in whose name slurmctld acts.
        power_saving: slurmctld has meshd's ResumeProgram and power saving in force, so free slots may be CLOUD nodes.
        suspend_exc: the nodes of SuspendExcNodes and SuspendExcParts, which stay.
    """

    version: str
    nodes: Mapping[str, SlurmNode]
    jobs: tuple[SlurmJob, ...]
    slurm_user: str = "slurm"
    power_saving: bool = False
    suspend_exc: frozenset[str] = frozenset()

    @cached_property
    def by_slot(self) -> Mapping[str, Sequence[SlurmJob]]:
        """The jobs that hold each slot, also those that only wait for it, in the order of `jobs`."""
        found: dict[str, list[SlurmJob]] = {}
        for job in self.jobs:
            for slot in dict.fromkeys(job.nodes):
                found.setdefault(slot, []).append(job)
        return found

    def jobs_on(self, slot: str) -> tuple[str, ...]:
        """Ids of the jobs that hold this slot, also of those that only wait for it."""
        return tuple(job.id for job in self.by_slot.get(slot, ()))

    def running_on(self, slot: str) -> tuple[str, ...]:
        """Ids of the jobs that may have a process on this slot.

        A CONFIGURING job has none anywhere. On a node that is up it may start at any moment: then the node is `busy`.
        """
        return tuple(job.id for job in self.by_slot.get(slot, ()) if not job.configuring)


@dataclass(frozen=True, slots=True)
class TailnetPeer:
    """A device of the tailnet as the head's tailscaled sees it.

    Attributes:
        id: the device's stable id: it survives re-authentication, its public key does not.
        hostname: the device's own name for itself; not unique.
        tailnet_ip: its tailnet IPv4 address; "" when the tailnet gives it none.
        online: as the control server sees it; it does not prove that the head can reach the device.
        path: "direct ADDR", "relay CODE", "" when idle.
        node_key: its public key, "nodekey:HEX"; it changes with each login.
    """

    id: str
    hostname: str
    tailnet_ip: str
    online: bool
    path: str = ""
    last_seen: datetime | None = None
    tags: tuple[str, ...] = ()
    expired: bool = False
    key_expiry: datetime | None = None
    node_key: str = ""


@dataclass(frozen=True, slots=True)
class TailnetView:
    """The tailnet from the head.

    Attributes:
        self_tailnet_ip: the head's own tailnet IPv4 address; "" when it has none.
        healthy: Self.Online is true, the backend runs and there is no login error. Only then are absences believed.
        problems: why it is not healthy.
    """

    self_tailnet_ip: str
    self_id: str
    healthy: bool
    problems: tuple[str, ...]
    peers: Mapping[str, TailnetPeer]
    """By stable device id."""
    self_key_expiry: datetime | None = None
    """When the head's own node key ends; None: never."""

    def by_hostname(self, hostname: str) -> TailnetPeer | None:
        """The device with this hostname; of several one that is online; None when there is none."""
        found = [peer for peer in self.peers.values() if peer.hostname == hostname]
        return max(found, key=lambda peer: peer.online, default=None)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that was observed for one tick.

    Attributes:
        instances: by provider, all machines with our tag.
        offers: by provider, what can be rented.
        node_addrs: by slot, the NodeAddr of each joined line that is in force in Slurm.
        settable_addrs: by slot, the address of a machine whose line needs nothing but its address: `scontrol update`
            puts that in force at once, and slurmd may start before Slurm has read the line. A slot that is not here
            needs its line in force first.
        dead_key: why the auth key for new machines does not work, as the tailnet's API says; "" when it works or that
            is not known.
        reports: by machine, the last report of its agent.
        sections: by machine that is being configured, the node settings that it is to have, by section.
        by_person: the slots that a person powered up in Slurm, as far as was seen.
    """

    instances: Mapping[str, Observation[tuple[Instance, ...]]]
    offers: Mapping[str, Observation[tuple[Offer, ...]]]
    tailnet: Observation[TailnetView]
    slurm: Observation[SlurmView]
    node_addrs: Mapping[str, str] = field(default_factory=dict)
    settable_addrs: Mapping[str, str] = field(default_factory=dict)
    dead_key: str = ""
    reports: Mapping[str, AgentReport] = field(default_factory=dict)
    sections: Mapping[str, Mapping[str, WantedSection]] = field(default_factory=dict)
    by_person: frozenset[str] = frozenset()

    @property
    def known_offers(self) -> list[Offer]:
        """The offers of all providers that could be read."""
        return [offer for seen in self.offers.values() if isinstance(seen, Fresh) for offer in seen.value]
