#!/usr/bin/env python3
"""Searches for the best learning rate with Ray: each trial is a task on some node. Runs on the job's first node."""

import os
import time
from collections import Counter

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

NODES = int(os.environ["SLURM_NNODES"])
RATES = [0.001, 0.01, 0.03, 0.1, 0.3, 0.9]


@ray.remote(num_cpus=1)
def trial(rate: float) -> tuple[float, float, str]:
    """Fit y = 3x + 2 by gradient descent; the rate, the loss at the end, and the node."""
    slope = offset = 0.0
    points = [(x / 50 - 1, 3 * (x / 50 - 1) + 2) for x in range(100)]
    for _ in range(200):
        errors = [(slope * x + offset - y, x) for x, y in points]
        slope -= rate * 2 * sum(error * x for error, x in errors) / len(points)
        offset -= rate * 2 * sum(error for error, _ in errors) / len(points)
    loss = sum((slope * x + offset - y) ** 2 for x, y in points) / len(points)
    return rate, loss, os.environ["SLURMD_NODENAME"]


ray.init(address="auto", log_to_driver=False)
while len([node for node in ray.nodes() if node["Alive"]]) < NODES:
    time.sleep(0.2)
has = ray.cluster_resources()
print(f"{NODES} nodes, {has.get('CPU', 0):.0f} CPUs, {has.get('GPU', 0):.0f} GPUs")

# One CPU on each node. Without a placement group Ray prefers nodes where it has a process already.
group = placement_group([{"CPU": 1}] * NODES, strategy="STRICT_SPREAD")
places = [PlacementGroupSchedulingStrategy(group, at) for at in range(NODES)]
trials = [trial.options(scheduling_strategy=places[at % NODES]).remote(rate) for at, rate in enumerate(RATES)]
results = ray.get(trials)
for rate, loss, node in results:
    print(f"rate {rate:<6} loss {loss:.2e} on {node}")
rate, loss, _ = min(results, key=lambda result: result[1])
print(f"best rate: {rate}, loss {loss:.2e}; trials by node: {dict(Counter(node for *_, node in results))}")
assert len({node for *_, node in results}) == NODES, "a node got no trial"
