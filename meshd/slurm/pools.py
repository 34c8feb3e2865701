"""PURE: reads PoolLines from the settings, and from a nodes.conf that meshd wrote."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from meshd.config import PoolSettings
from meshd.config.pools import CPUS_MIN, MEMORY_MIN_MIB
from meshd.model.desired import Promise
from meshd.plan.slurm_lines import is_free
from meshd.slurm.conf import parse
from meshd.slurm.nodes import PoolLine
from meshd.slurm.read_back import node_records
from meshd.slurm.show import gpus_of, hostlist


def pool_lines(
    pools: Mapping[str, PoolSettings], promises: Mapping[str, Promise] | None = None
) -> tuple[PoolLine, ...]:
    """One line for each pool of the settings. A pool without a partition gets one of its own name.

    Args:
        pools: the settings'.
        promises: what each slot of a queue-driven pool promises. The other pools are hand-driven, and promise the
            settings' least.
    """
    known = promises or {}
    shapes = {name: known.get(name) or _least(pool) for name, pool in pools.items()}
    return tuple(
        PoolLine(
            name=name, partition=pool.partition or name, max_nodes=pool.max_nodes, gpu=pool.gpu,
            gpus_per_node=shapes[name].gpus, cpus_min=shapes[name].cpus, memory_min_mib=shapes[name].memory_mib,
            features=pool.features, default=pool.default, from_queue=name in known,
        )
        for name, pool in pools.items()
    )  # fmt: skip


def _least(pool: PoolSettings) -> Promise:
    return Promise(pool.cpus_min or CPUS_MIN, pool.memory_min_mib or MEMORY_MIN_MIB, pool.gpus_per_node)


def promise_of(line: PoolLine) -> Promise:
    """What each slot of a queue-driven pool promises, and a free slot of any pool."""
    return Promise(line.cpus_min, line.memory_min_mib, line.gpus_per_node)


def read_pools(nodes_conf: str) -> Mapping[str, PoolLine]:
    """The pools of a nodes.conf that meshd wrote, by name. A free slot shows what the pool promises.

    Raises:
        SlurmError: a host list cannot be read.
    """
    return _read_pools(nodes_conf)


@lru_cache(maxsize=2)
def _read_pools(nodes_conf: str) -> Mapping[str, PoolLine]:
    promised: dict[str, Mapping[str, str]] = {}
    sizes: dict[str, int] = {}
    for record in node_records(nodes_conf):
        for slot in hostlist(record["nodename"]):
            pool, _, index = slot.rpartition("-")
            sizes[pool] = max(sizes.get(pool, 0), int(index) if index.isdigit() else 0)
        if pool not in promised or is_free(record.get("nodeaddr", "")):
            promised[pool] = record
    found: dict[str, PoolLine] = {}
    for record in parse(nodes_conf).records("PartitionName"):
        for slot in hostlist(record.get("nodes", "")):
            pool = slot.rpartition("-")[0]
            if pool not in found and pool in promised:
                found[pool] = _pool(pool, sizes[pool], record["partitionname"], promised[pool])
    return found


def _pool(name: str, size: int, partition: str, record: Mapping[str, str]) -> PoolLine:
    gres = record.get("gres", "")
    kind = gres.split(":")[1] if gres.count(":") == 2 else ""
    features = tuple(f for f in record.get("feature", "").split(",") if f and f != kind)
    return PoolLine(
        name,
        partition,
        size,
        kind,
        gpus_of(gres),
        int(record.get("cpus", 1)),
        int(record.get("realmemory", 1)),
        features,
        from_queue=record.get("state", "").upper() == "CLOUD",
    )
