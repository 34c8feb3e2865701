"""What one listing of EC2 costs over HTTP: CPU and memory of the real adapter and SDK at 100, 1,000, 10,000 instances.

The vendor's answers come from another process, in pages of 1,000. Each size runs in a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import time
from datetime import UTC, datetime
from statistics import median

from meshd.provider_api import ProviderContext
from meshd.runtime.gc_tuning import tune_gc
from providers.aws.provider import create
from tests.bench import ec2_pages
from tests.bench.report import Row, report
from tests.bench.tick import rss_mib

SIZES = (100, 1000, 10_000)
TIMES = 5


async def measure(count: int) -> dict[str, float]:
    """CPU of a listing (the first one apart, in which the SDK reads its model), and memory before and at the peak."""
    with ec2_pages.serving(count) as url:
        table = {"endpoint_url": url, "access_key_id": "AKIASANDBOX", "secret_access_key": "bench"}
        provider = create(
            ProviderContext(cluster="lab", settings=table, now=lambda: datetime.now(UTC), fetched_prices=lambda: None)
        )
        tune_gc()
        before_mib = rss_mib()
        taken = []
        for _ in range(TIMES + 1):
            began_s = time.process_time()
            instances = await provider.list()
            taken.append(time.process_time() - began_s)
            assert len(instances) == count
        peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        await provider.aclose()
    return {
        "first_s": taken[0], "cpu_s": median(taken[1:]), "before_mib": before_mib, "peak_mib": peak_mib,
        "after_mib": rss_mib(),
    }  # fmt: skip


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", type=int, help="measure this size only, and print JSON")
    arguments = parser.parse_args()
    if arguments.one:
        sys.stdout.write(json.dumps(asyncio.run(measure(arguments.one))))
        return
    figures = {}
    for size in SIZES:
        argv = [sys.executable, "-W", "ignore", "-m", "tests.bench.listing", "--one", str(size)]
        figures[size] = json.loads(subprocess.run(argv, check=True, stdout=subprocess.PIPE).stdout)
    rows = [
        row
        for size, found in figures.items()
        for row in (
            Row(f"{size:6} instances: CPU of a listing", found["cpu_s"], "s"),
            Row(f"{size:6} instances: CPU of the first", found["first_s"], "s"),
            Row(f"{size:6} instances: memory before", found["before_mib"], "MiB"),
            Row(f"{size:6} instances: memory at the peak", found["peak_mib"], "MiB"),
        )
    ]
    report("listing", rows, {"sizes": figures})


if __name__ == "__main__":
    main()
