"""The desired state: pools, targets, and the policy by which meshd reaches them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, TypeAlias

from meshd.model.budget import Budget
from meshd.model.cooldown import Cooldown, CooldownKey
from meshd.model.freeze import Freeze
from meshd.model.guards import Guards
from meshd.model.host import Host
from meshd.model.restored import Restored
from meshd.provider_api import ProviderCapabilities

SpotPolicy: TypeAlias = Literal["never", "if_cheaper", "prefer", "only"]
"""Whether spot machines are rented: not at all, by price alone, where there are any, or nothing else."""

PodPolicy: TypeAlias = Literal["never", "allow", "only"]
"""Whether pods are rented: not at all, like any other machine, or nothing else. A pod is a machine without systemd."""


@dataclass(frozen=True, slots=True)
class Promise:
    """The hardware that every slot of a pool promises to jobs. A machine with less is not rented for it."""

    cpus: int
    memory_mib: int
    gpus: int


@dataclass(frozen=True, slots=True)
class Pool:
    """A class of interchangeable nodes: one Slurm partition.

    Attributes:
        gpu: the GPU model, e.g. "h100", which also matches "h100-sxm" and "h100-pcie"; "" for CPU-only machines.
        providers: in order of preference, which decides between equal prices.
        cpus_min, memory_min_mib: the smallest machine that is rented; a free slot promises this.
        gpus_per_node, gpus_per_node_max: the range of GPUs in one machine; a free slot promises the smallest number.
        gpu_memory_min_gib: of one GPU, as it is sold; 0 for any.
        regions: regions or zones; empty for all.
        max_usd_per_hour: of all the pool's machines together.
        overshoot_max_gpus: the most GPUs to rent beyond the target; None: as many as is cheapest.
        min_gpus: the target while nobody has set one; idle nodes are given back only down to it.
        idle_timeout_s: a node without a job for this long is given back; None: never, or by a default where Slurm's
            queue drives the pool.
        pod_providers: the providers that rent pods.
        with_spot: those of its providers that have spot offers; None when that is not known.
        prices_since: under a limit in USD, offers with an older price are not rented; None: any age will do.
        budgeted: the budget over all pools or that of this one has a limit.
        replace_unfit: give up an unfit node that has no job, and rent another one.
        from_queue: its free slots are CLOUD nodes, and meshd rents a machine for each slot that Slurm powers up.
        spread: the nodes of one job may be of several providers and regions. False: all are in one place.
        promise: what Slurm's line says of each of its slots; None while that is not known.
    """

    name: str
    gpu: str
    gpus_per_node: int
    max_nodes: int
    providers: tuple[str, ...]
    max_usd_per_gpu_hour: float | None = None
    spot: SpotPolicy = "never"
    pods: PodPolicy = "allow"
    cpus_min: int = 1
    memory_min_mib: int = 1024
    gpus_per_node_max: int | None = None
    gpu_memory_min_gib: int = 0
    arch: str = "x86_64"
    regions: tuple[str, ...] = ()
    max_usd_per_hour: float | None = None
    overshoot_max_gpus: int | None = None
    min_gpus: int = 0
    idle_timeout_s: float | None = None
    prices_since: datetime | None = None
    budgeted: bool = False
    replace_unfit: bool = True
    from_queue: bool = False
    spread: bool = False
    promise: Promise | None = None
    pod_providers: frozenset[str] = frozenset()
    with_spot: frozenset[str] | None = None

    @property
    def gpus_per_node_most(self) -> int:
        """The most GPUs that one of its machines may have."""
        return self.gpus_per_node if self.gpus_per_node_max is None else self.gpus_per_node_max

    @property
    def cpu_only(self) -> bool:
        """Whether its machines have no GPU. Each counts as one unit then."""
        return not self.gpu


@dataclass(frozen=True, slots=True)
class Target:
    """How many GPUs a pool is to have, and the options of that order. Machines count where there are no GPUs.

    Attributes:
        at, by: when it was set, and by whom.
        provider: rent only from this one; "" for any of the pool's.
        max_usd_per_gpu_hour, max_usd_per_hour: the lower of this and the pool's limit holds.
        gpu: a narrower model than the pool's, e.g. "h100-sxm" in a pool of "h100"; "" for the pool's.
        gpus_per_node: the exact number of GPUs in each new machine; None for the pool's range.
        regions: some of the pool's regions or zones; empty for the pool's.
        spot, pods: "" for the pool's.
        spread: new machines may be of several providers and regions. False: all are in one place.
        overshoot_max_gpus: None for the pool's.
        id: grows with every target that is set.
    """

    pool: str
    gpus: int
    provider: str = ""
    max_usd_per_gpu_hour: float | None = None
    at: datetime | None = None
    by: str = ""
    id: int = 0
    max_usd_per_hour: float | None = None
    gpu: str = ""
    gpus_per_node: int | None = None
    regions: tuple[str, ...] = ()
    spot: SpotPolicy | Literal[""] = ""
    pods: PodPolicy | Literal[""] = ""
    spread: bool = False
    overshoot_max_gpus: int | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """Deadlines and limits, in seconds; the settings' `timing` table says what each is for."""

    launch_timeout_s: float = 120.0
    launch_settle_s: float = 60.0
    launch_attempts_max: int = 5
    boot_timeout_s: float = 900.0
    join_timeout_s: float = 600.0
    configure_timeout_s: float = 300.0
    test_timeout_s: float = 300.0
    heartbeat_lost_s: float = 120.0
    listing_lag_s: float = 120.0
    orphan_grace_s: float = 300.0
    terminate_again_s: float = 15.0
    lost_after_s: float = 600.0
    publish_wait_max_s: float = 60.0
    stale_after_s: float = 180.0
    """An observation that is older than this, or from the future, is not believed."""
    may_change_devices: bool = False
    """Whether meshd has an API credential with which it can delete and change devices of the tailnet."""
    heartbeat_late_s: float = 35.0
    """A heartbeat that is older than this is late. It is somewhat longer than a poll is held."""
    unfit_grace_s: float = 30.0
    """How long a node is unfit before people see it and a repair begins."""
    replace_unfit_after_s: float = 300.0
    """How long a node without a job is unfit before it is replaced, where its pool allows that."""
    replace_cooldown_s: float = 600.0
    """How long a pool waits after a replacement. It doubles with each replacement in a row."""
    key_expiry_again_s: float = 3600.0
    """How long to wait before the API is asked once more to disable a node key's expiry."""
    idempotent_launch: frozenset[str] = frozenset()
    """The providers whose create call may be repeated: the same name never makes two machines there."""
    gang_max: Mapping[str, int] = field(default_factory=dict)
    """The providers that rent several machines with one call, each with the most of them."""
    pod_limits: Mapping[str, str] = field(default_factory=dict)
    """The providers that rent pods, each with what its pods lack, for people."""
    direct_pools: frozenset[str] = frozenset()
    """The pools whose machines need a direct tailnet path to the head."""
    billing: Mapping[str, ProviderCapabilities] = field(default_factory=dict)
    """By provider, how its machines' time is billed."""
    price_stale_after_s: float = 30 * 86400.0
    """An older price is stale: under a budget it causes a warning, or is not used at all."""


@dataclass(frozen=True, slots=True)
class Desired:
    """The desired state. A pool without a target keeps the machines that it has.

    Attributes:
        targets: by pool, those that somebody has set.
        cooldowns: those in force.
        expired_cooldowns: those that ended recently; their strikes still count.
        budget: what may be spent over all pools and in each, and what is spent.
        hosts: owned machines, and invitations.
        freeze: while there is one, nothing is rented and nothing is ended.
        restored: the clouds that were not listed since an older journal was restored; None: there is none.
        guards: how much is done at a time.
        launches: when each order of the last interval of the guards went out.
    """

    cluster: str
    pools: Mapping[str, Pool]
    targets: Mapping[str, Target]
    policy: Policy = field(default_factory=Policy)
    cooldowns: Mapping[CooldownKey, Cooldown] = field(default_factory=dict)
    expired_cooldowns: Mapping[CooldownKey, Cooldown] = field(default_factory=dict)
    budget: Budget = field(default_factory=Budget)
    hosts: tuple[Host, ...] = ()
    freeze: Freeze | None = None
    restored: Restored | None = None
    guards: Guards = field(default_factory=Guards)
    launches: tuple[datetime, ...] = ()

    def target(self, pool: Pool) -> Target | None:
        """The pool's target: the one that somebody set, or its `min_gpus`; None when there is neither."""
        found = self.targets.get(pool.name)
        return found or (Target(pool.name, pool.min_gpus) if pool.min_gpus else None)


OPTIONS = (
    "provider", "gpu", "gpus_per_node", "regions", "spot", "pods", "spread", "max_usd_per_gpu_hour",
    "max_usd_per_hour", "overshoot_max_gpus",
)  # fmt: skip
"""The fields of a Target that narrow what the pool allows."""

_WRITTEN = {
    "regions": "region", "max_usd_per_gpu_hour": "max-price", "max_usd_per_hour": "max-total",
    "overshoot_max_gpus": "max-overshoot", "gpus_per_node": "gpus-per-node",
}  # fmt: skip


def written(field: str) -> str:
    """The command-line option of a field: `--max-price`."""
    return f"--{_WRITTEN.get(field, field)}"


def options_of(target: Target) -> tuple[str, ...]:
    """The options that a target has, as on a command line."""
    return tuple(word for field in OPTIONS if (word := _word(field, getattr(target, field))))


def is_set(target: Target, field: str) -> bool:
    """Whether a target has this option."""
    return bool(_word(field, getattr(target, field)))


def _word(field: str, value: object) -> str:
    if value is None or value is False or value in ("", ()):
        return ""
    if value is True:
        return written(field)
    if isinstance(value, tuple):
        return " ".join(f"{written(field)} {one}" for one in value)
    return f"{written(field)} {value:g}" if isinstance(value, float) else f"{written(field)} {value}"
