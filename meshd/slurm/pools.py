"""The pools of the settings, as Slurm needs them."""

from __future__ import annotations

from collections.abc import Mapping

from meshd.config import PoolSettings
from meshd.slurm.nodes import PoolLine


def pool_lines(pools: Mapping[str, PoolSettings]) -> tuple[PoolLine, ...]:
    """One for each pool; one that names no partition is a partition of its own name."""
    return tuple(
        PoolLine(
            name=name, partition=pool.partition or name, max_nodes=pool.max_nodes, gpu=pool.gpu,
            gpus_per_node=pool.gpus_per_node, cpus_min=pool.cpus_min, memory_min_mib=pool.memory_min_mib,
            features=pool.features, default=pool.default,
        )
        for name, pool in pools.items()
    )  # fmt: skip
