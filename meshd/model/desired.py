"""What the user wants, and the policy by which meshd gets there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from meshd.model.cooldown import Cooldown, CooldownKey


@dataclass(frozen=True, slots=True)
class Pool:
    """A class of interchangeable nodes: one Slurm partition.

    Attributes:
        gpu: the model asked for, e.g. "h100": it also matches "h100-sxm" and "h100-pcie"; "" for CPU-only.
        providers: in order of preference: it decides between equal prices.
        spot: "never", "prefer" or "only".
        cpus_min, memory_min_mib: the smallest machine that will do; what a free slot promises.
        gpus_per_node, gpus_per_node_max: machines with so many GPUs will do; the smallest is what a free slot promises.
        gpu_memory_min_gib: of one GPU; 0 for any.
        regions: regions or zones; empty for all.
        max_usd_per_hour: of all the pool's machines together.
        overshoot_max_gpus: how many GPUs more than wanted a cover may bring; None for as many as is cheapest.
        min_gpus: its target never falls below this by itself.
        idle_timeout_s: a node without a job for so long is given back; None for never.
        without_tun: of its providers, those whose machines have no TUN device: none is rented there.
        with_spot: of its providers, those that have spot offers; None when that is not known.
        prices_since: where a limit in USD holds, offers whose price is older will not do; None for any age.
        replace_unfit: a node that is unfit and has no job is given up, and another is rented in its place.
    """

    name: str
    gpu: str
    gpus_per_node: int
    max_nodes: int
    providers: tuple[str, ...]
    max_usd_per_gpu_hour: float | None = None
    spot: str = "never"
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
    replace_unfit: bool = True
    without_tun: frozenset[str] = frozenset()
    with_spot: frozenset[str] | None = None

    @property
    def gpus_per_node_most(self) -> int:
        """The most GPUs that one of its machines may have."""
        return self.gpus_per_node if self.gpus_per_node_max is None else self.gpus_per_node_max

    @property
    def cpu_only(self) -> bool:
        """Its machines have no GPU, and count as one unit each."""
        return not self.gpu


@dataclass(frozen=True, slots=True)
class Target:
    """How many GPUs a pool shall have, said by somebody at some time.

    Attributes:
        provider: only from this one; "" for any.
        max_usd_per_gpu_hour, max_usd_per_hour: over the pool's own limit the lower of both holds.
        gpu: a narrower model than the pool's, e.g. "h100-sxm" in a pool of "h100"; "" for the pool's.
        gpus_per_node: exactly so many GPUs in each new machine; None for the pool's range.
        regions: regions or zones, of the pool's; empty for the pool's.
        spot: "never", "prefer" or "only"; "" for the pool's.
        spread: new machines may be of several providers and regions; else all are of one.
        overshoot_max_gpus: in place of the pool's; None for the pool's.
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
    spot: str = ""
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
    """A word of a cloud or of Slurm that is older than this, or from the future, is no word at all."""
    may_change_devices: bool = False
    """The tailnet's API can be asked to delete devices and to change them."""
    heartbeat_late_s: float = 35.0
    """A heartbeat that is older than this is late: somewhat more than a poll is held."""
    unfit_grace_s: float = 30.0
    """What makes a node unfit is told, and repaired where that can be, when it has lasted for so long."""
    replace_unfit_after_s: float = 300.0
    """A node that is unfit for so long, and has no job, is replaced where its pool allows it."""
    replace_cooldown_s: float = 600.0
    """After a replacement a pool waits so long for the next one; twice as long each time in a row."""
    key_expiry_again_s: float = 3600.0
    """After asking the API to disable a node key's expiry: it takes a while to show, or was refused."""
    idempotent_launch: frozenset[str] = frozenset()
    """The providers of which a create call may be repeated: the same name never makes two machines there."""
    without_tun: frozenset[str] = frozenset()
    """The providers whose machines have no TUN device: none is rented there."""
    price_stale_after_s: float = 30 * 86400.0
    """A price that is older than this is stale: under a budget it is told, or not used at all."""


@dataclass(frozen=True, slots=True)
class Desired:
    """Everything wanted. A pool without a target is held as it is: nothing is added or taken away.

    Attributes:
        targets: by pool, those that somebody has set.
        cooldowns: what is left alone now.
        expired_cooldowns: what was left alone not long ago, remembered for its strikes.
    """

    cluster: str
    pools: Mapping[str, Pool]
    targets: Mapping[str, Target]
    policy: Policy = field(default_factory=Policy)
    cooldowns: Mapping[CooldownKey, Cooldown] = field(default_factory=dict)
    expired_cooldowns: Mapping[CooldownKey, Cooldown] = field(default_factory=dict)

    def target(self, pool: Pool) -> Target | None:
        """What a pool shall have: what was said, or else its own least; None: it is held as it is."""
        said = self.targets.get(pool.name)
        return said or (Target(pool.name, pool.min_gpus) if pool.min_gpus else None)


OPTIONS = (
    "provider", "gpu", "gpus_per_node", "regions", "spot", "spread", "max_usd_per_gpu_hour", "max_usd_per_hour",
    "overshoot_max_gpus",
)  # fmt: skip
"""The fields of a Target that narrow what the pool allows."""

_WRITTEN = {
    "regions": "region", "max_usd_per_gpu_hour": "max-price", "max_usd_per_hour": "max-total",
    "overshoot_max_gpus": "max-overshoot", "gpus_per_node": "gpus-per-node",
}  # fmt: skip


def written(field: str) -> str:
    """The option behind a field: `--max-price`."""
    return f"--{_WRITTEN.get(field, field)}"


def options_of(target: Target) -> tuple[str, ...]:
    """The options that a target has, as they are written on a command line."""
    return tuple(word for field in OPTIONS if (word := _word(field, getattr(target, field))))


def is_set(target: Target, field: str) -> bool:
    """Whether a target has this option."""
    return bool(_word(field, getattr(target, field)))


def with_option(target: Target, field: str, other: Target) -> Target:
    """The target with an option of another one."""
    return replace(target, **{field: getattr(other, field)})


def _word(field: str, value: object) -> str:
    if value is None or value is False or value in ("", ()):
        return ""
    if value is True:
        return written(field)
    if isinstance(value, tuple):
        return " ".join(f"{written(field)} {one}" for one in value)
    return f"{written(field)} {value:g}" if isinstance(value, float) else f"{written(field)} {value}"
