"""How long the choice of machines takes: 5,000 offers and 64 GPUs; and 10,000 GPUs in 10,000 slots.

The catalogue is made at random from a seed: five providers, 60 regions, machines with 1 to 16 GPUs, spot and on-demand,
prices around 2 USD for each GPU. What is measured is all that a tick does for it: which offers suit, and the cover.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from statistics import median

from meshd.model.desired import Pool, Target
from meshd.plan.cover import Cover, Need, cheapest
from meshd.plan.gang import cheapest_in_one
from meshd.plan.placement import usable
from meshd.provider_api import Offer, ProviderName
from tests.bench.report import Row, report

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PROVIDERS = ("aws", "gce", "runpod", "lambda", "paperspace")
MODELS = ("h100-sxm", "h100-pcie", "a100-sxm", "l40s")
TARGET_MS = 100.0


def catalogue(count: int, seed: int) -> list[Offer]:
    """So many offers."""
    rng = random.Random(seed)
    offers = []
    for index in range(count):
        provider, region = rng.choice(PROVIDERS), f"r{rng.randrange(12)}"
        gpus, spot = rng.choice((1, 2, 3, 4, 6, 8, 16)), rng.random() < 0.4
        usd = round(gpus * rng.uniform(1.0, 4.0), 4)
        offers.append(
            Offer(ProviderName(provider), region, f"{region}{'abc'[index % 3]}", f"t{index % 97}", rng.choice(MODELS),
                  gpus, 80, 64, 500_000, usd, spot)
        )  # fmt: skip
    return offers


def measured(work: Callable[[], Cover | None]) -> float:
    """Median of nine runs, in milliseconds of CPU."""
    taken = []
    for _ in range(9):
        started = time.process_time()
        if work() is None:
            sys.exit("no cover was found: the benchmark measures nothing")
        taken.append((time.process_time() - started) * 1000)
    return median(taken)


def main() -> None:
    """Measure and report."""
    offers = catalogue(5000, seed=1)
    rows = []
    for what, gpus, slots, spot, gang in (
        ("64 GPUs in one place", 64, 64, "never", True),
        ("64 GPUs anywhere", 64, 64, "never", False),
        ("64 GPUs in one place, 8 slots", 64, 8, "never", True),
        ("64 GPUs in one place, spot preferred", 64, 64, "prefer", True),
        ("10,000 GPUs in one place, 10,000 slots", 10_000, 10_000, "never", True),
        ("10,000 GPUs anywhere, 2,000 slots", 10_000, 2000, "prefer", False),
    ):
        pool = Pool("h100", "h100", 1, slots, PROVIDERS, gpus_per_node_max=16, spot=spot)
        target = Target("h100", gpus, spread=not gang)
        need = Need(gpus, slots, prefer_spot=spot == "prefer", preference={p: i for i, p in enumerate(PROVIDERS)})

        def work(pool: Pool = pool, target: Target = target, need: Need = need, gang: bool = gang) -> Cover | None:
            fit = usable(offers, pool, target, {}, NOW)
            return cheapest_in_one(fit, need) if gang else cheapest(fit, need)

        rows.append(Row(f"5,000 offers, {what}", measured(work), "ms", TARGET_MS))
    report("cover", rows, {"offers": len(offers)})


if __name__ == "__main__":
    main()
