"""Declares all of meshd's metrics, with base units in their names. docs/metrics.md describes each.

Counters and histograms change when events happen. Gauges are read at each scrape, from a MetricsSnapshot. No label has
a value that occurs only once (such as a machine's name): pools, their slots, providers and phases bound the number of
series.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from meshd import __version__

Key = TypeVar("Key", bound=tuple[str, ...])
CALL_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
TICK_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """The values of all gauges at one moment.

    Attributes:
        machines: count, by pool, provider and phase.
        gpus_ready: by pool, without unfit nodes. In a pool without GPUs each machine counts as one.
        nodes_unfit: READY nodes that are not fit, by pool and reason.
        path_direct: whether a node's path to the head is direct, by pool, slot, and what the pool accepts.
        path_rtt_s: the round trip of that path, by pool and slot.
        gpus_wanted: by pool; pools without a target are absent.
        usd_per_hour: cost of rented machines, by pool and provider.
        problems: count, by severity.
        source_up: whether the last read of a source worked, by its name.
        source_age_s: since a source's last answer, or since its first failure.
        breaker_open: whether the provider's circuit breaker is open, by provider.
        reconfigures: of Slurm, since meshd started.
        steps_in_flight: steps of plans that are in progress.
        tick_age_s: since the last tick; None before the first.
        auth_key_dead: whether machines can no longer join with the auth key.
        frozen: whether a freeze holds.
        cost_usd: of all machines ever, by pool and provider.
        job_cost_usd: of all jobs ever, by pool, account and user.
        budget_usd, budget_spent_usd: the limits, and what is spent, by pool ("" over all) and period.
        oldest_in_phase_s: for how long the machine has been in its phase that is in it longest, by pool, provider and
            phase.
        jobs: of Slurm's queue, by pool and state.
        jobs_waiting: those that wait for machines, by pool and what they wait for.
        node_info: by pool, slot, provider, region and instance type; always True.
        node_load1, node_heartbeat_age_s, node_gpu_use, node_gpu_memory_b: what a node's agent reported last, by pool
            and slot: load average, age of that report, mean use of its GPUs (0 to 1), memory used of all its GPUs.
        auth_key_ends_at, munge_key_made_at: in seconds since the epoch; None when not known.
        rotation_active_s: for how long a rotation is active, by key; 0 while none is.
    """

    machines: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    gpus_ready: Mapping[str, int] = field(default_factory=dict)
    nodes_unfit: Mapping[tuple[str, str], int] = field(default_factory=dict)
    path_direct: Mapping[tuple[str, str, str], bool] = field(default_factory=dict)
    path_rtt_s: Mapping[tuple[str, str], float] = field(default_factory=dict)
    gpus_wanted: Mapping[str, int] = field(default_factory=dict)
    usd_per_hour: Mapping[tuple[str, str], float] = field(default_factory=dict)
    problems: Mapping[str, int] = field(default_factory=dict)
    source_up: Mapping[str, bool] = field(default_factory=dict)
    source_age_s: Mapping[str, float] = field(default_factory=dict)
    breaker_open: Mapping[str, bool] = field(default_factory=dict)
    reconfigures: int = 0
    steps_in_flight: int = 0
    tick_age_s: float | None = None
    auth_key_dead: bool = False
    frozen: bool = False
    cost_usd: Mapping[tuple[str, str], float] = field(default_factory=dict)
    job_cost_usd: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    budget_usd: Mapping[tuple[str, str], float] = field(default_factory=dict)
    budget_spent_usd: Mapping[tuple[str, str], float] = field(default_factory=dict)
    oldest_in_phase_s: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    jobs: Mapping[tuple[str, str], int] = field(default_factory=dict)
    jobs_waiting: Mapping[tuple[str, str], int] = field(default_factory=dict)
    node_info: Mapping[tuple[str, str, str, str, str], bool] = field(default_factory=dict)
    node_load1: Mapping[tuple[str, str], float] = field(default_factory=dict)
    node_heartbeat_age_s: Mapping[tuple[str, str], float] = field(default_factory=dict)
    node_gpu_use: Mapping[tuple[str, str], float] = field(default_factory=dict)
    node_gpu_memory_b: Mapping[tuple[str, str], float] = field(default_factory=dict)
    auth_key_ends_at: float | None = None
    munge_key_made_at: float | None = None
    rotation_active_s: Mapping[str, float] = field(default_factory=dict)


class Metrics:
    """The registry with all metrics.

    Attributes:
        registry: for scrapes.
        provider_calls: calls to clouds by provider, operation and outcome (`ok`, an error's kind,
            `cancelled`, `fault`).
        provider_call_seconds: their durations.
        provider_calls_in_flight: calls in progress.
        tick_seconds: durations of ticks.
    """

    def __init__(self) -> None:
        # Without them each counter has a second series.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.provider_calls = Counter(
            "meshd_provider_calls", "Calls to a cloud by how they ended: ok, the kind of error, cancelled, fault.",
            ("provider", "operation", "outcome"), registry=registry,
        )  # fmt: skip
        self.provider_call_seconds = Histogram(
            "meshd_provider_call_seconds", "How long calls to a cloud took.", ("provider", "operation"),
            buckets=CALL_BUCKETS_S, registry=registry,
        )  # fmt: skip
        self.provider_calls_in_flight = Gauge(
            "meshd_provider_calls_in_flight", "Calls to a cloud in progress.", ("provider", "operation"),
            registry=registry,
        )  # fmt: skip
        self.tick_seconds = Histogram(
            "meshd_tick_seconds", "How long a tick took to observe, plan and start steps.", buckets=TICK_BUCKETS_S,
            registry=registry,
        )  # fmt: skip

    def follow(self, snapshot: Callable[[], MetricsSnapshot]) -> None:
        """Read the gauges from `snapshot` at each scrape. Call it once."""
        self.registry.register(_SnapshotCollector(snapshot))


class _SnapshotCollector(Collector):
    """Makes the gauge families at each scrape."""

    def __init__(self, snapshot: Callable[[], MetricsSnapshot]) -> None:
        self._snapshot = snapshot

    def describe(self) -> Iterable[Metric]:
        """The families without values, for their names."""
        return families(MetricsSnapshot(tick_age_s=0.0, auth_key_ends_at=0.0, munge_key_made_at=0.0))

    def collect(self) -> Iterable[Metric]:
        """The families with the present values."""
        return families(self._snapshot())


def families(now: MetricsSnapshot) -> list[Metric]:
    """The snapshot as metric families."""
    build = InfoMetricFamily("meshd_build", "The version that runs.", value={"version": __version__})
    found: list[Metric] = [
        build,
        _table("meshd_machines", "Machines that are not gone.", ("pool", "provider", "phase"), now.machines),
        _table(
            "meshd_phase_oldest_seconds", "For how long the machine has been in its phase that is in it longest.",
            ("pool", "provider", "phase"), now.oldest_in_phase_s,
        ),
        _row("meshd_gpus_ready", "GPUs that Slurm can use; machines, in a pool without GPUs.", "pool", now.gpus_ready),
        _table("meshd_nodes_unfit", "READY nodes that are not fit for jobs.", ("pool", "reason"), now.nodes_unfit),
        _table(
            "meshd_node_info", "A node, and what it is.", ("pool", "slot", "provider", "region", "instance_type"),
            now.node_info,
        ),
        _table("meshd_node_load1", "Load average of the last minute.", ("pool", "slot"), now.node_load1),
        _table(
            "meshd_node_heartbeat_age_seconds", "Since the last report of the node's agent.", ("pool", "slot"),
            now.node_heartbeat_age_s,
        ),
        _table("meshd_node_gpu_utilization_ratio", "Mean of the node's GPUs.", ("pool", "slot"), now.node_gpu_use),
        _table(
            "meshd_node_gpu_memory_used_bytes", "Of all the node's GPUs.", ("pool", "slot"), now.node_gpu_memory_b
        ),
        _table(
            "meshd_node_path_direct", "1 while the node's tailnet path to the head is direct, 0 while it is relayed.",
            ("pool", "slot", "accepts"), now.path_direct,
        ),
        _table(
            "meshd_node_path_rtt_seconds", "Round trip from the node to the head.", ("pool", "slot"), now.path_rtt_s
        ),
        _table("meshd_jobs", "Jobs of Slurm's queue.", ("pool", "state"), now.jobs),
        _table("meshd_jobs_waiting", "Jobs that wait for machines.", ("pool", "wait"), now.jobs_waiting),
        _row("meshd_gpus_wanted", "The pool's target.", "pool", now.gpus_wanted),
        _table("meshd_usd_per_hour", "Cost of rented machines.", ("pool", "provider"), now.usd_per_hour),
        _row("meshd_problems", "Problems that `meshctl status` shows.", "severity", now.problems),
        _row("meshd_source_up", "1 while reads of the source work.", "source", now.source_up),
        _row(
            "meshd_source_age_seconds", "Since the source's last answer, or since its first failure.", "source",
            now.source_age_s,
        ),
        _row(
            "meshd_provider_breaker_open", "1 while meshd makes no calls to a cloud since its calls fail.", "provider",
            now.breaker_open,
        ),
        GaugeMetricFamily("meshd_steps_in_flight", "Steps of plans in progress.", now.steps_in_flight),
        GaugeMetricFamily("meshd_auth_key_dead", "1 when machines cannot join with the auth key.", now.auth_key_dead),
        _row("meshd_rotation_active_seconds", "For how long a rotation is active.", "key", now.rotation_active_s),
        GaugeMetricFamily("meshd_frozen", "1 while meshd rents nothing and ends nothing.", now.frozen),
        _counter("meshd_cost_usd", "What machines have cost.", ("pool", "provider"), now.cost_usd),
        _counter(
            "meshd_job_cost_usd", "What jobs have cost, two minutes late.", ("pool", "account", "user"),
            now.job_cost_usd,
        ),
        _table(
            "meshd_budget_usd", "A limit of the budget; pool is empty for the one over all pools. Of an hour it is USD "
            "per hour.", ("pool", "period"), now.budget_usd,
        ),
        _table(
            "meshd_budget_spent_usd", "What counts towards that limit: what is spent, or costs per hour.",
            ("pool", "period"), now.budget_spent_usd,
        ),
        CounterMetricFamily("meshd_reconfigures", "Reconfigures of Slurm since meshd started.", now.reconfigures),
    ]  # fmt: skip
    known = (
        ("meshd_tick_age_seconds", "Since the last tick.", now.tick_age_s),
        ("meshd_auth_key_expiry_timestamp_seconds", "When the shared auth key ends.", now.auth_key_ends_at),
        ("meshd_munge_key_created_timestamp_seconds", "When the munge key was made.", now.munge_key_made_at),
    )
    return found + [GaugeMetricFamily(name, text, value) for name, text, value in known if value is not None]


def _row(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    return _table(name, text, (label,), {(key,): value for key, value in values.items()})


def _table(name: str, text: str, labels: tuple[str, ...], values: Mapping[Key, float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, float(value))
    return family


def _counter(name: str, text: str, labels: tuple[str, ...], values: Mapping[Key, float]) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, float(value))
    return family
