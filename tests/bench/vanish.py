"""From the end of an instance at its cloud to meshd's first order about its node to Slurm.

The loops of the real daemon over hollow machines, as in `idle`: EC2 says "terminated" in its listing from a random
moment on, and the machine's agent is silent. The clock ends when `scontrol update` is called for the node.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from pathlib import Path

import aiohttp

from tests.bench import ec2_pages
from tests.bench.idle import MORE, programs
from tests.bench.report import Row, report, spread
from tests.bench.tick import Steady

INTERVAL_S = 15.0
"""Between two listings, as by default."""
DEADLINE_S = 120.0


async def measure(count: int, tries: int) -> list[float]:
    """Seconds, for each instance that ended."""
    taken = []
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as name, ec2_pages.serving(count) as url:
        directory = Path(name)
        programs(directory, count)
        updates = directory / "updates"
        updates.touch()
        more = MORE.format(slurm_s=5.0, cloud_s=INTERVAL_S)
        steady = Steady(directory, count, endpoint_url=url, more=more)
        steady.fill()
        daemon = await steady.daemon()
        listing = daemon.sources.listings["aws"]
        loops = [
            asyncio.create_task(body)
            for body in (daemon.sources.slurm.run(), listing.run(), daemon.machines.controller.run())
        ]
        async with aiohttp.ClientSession() as session:
            for index in range(1, tries + 1):
                await asyncio.sleep(random.uniform(1, 1 + INTERVAL_S))
                began_s = time.monotonic()
                async with session.get(f"{url}/end/{index}") as answer:
                    answer.raise_for_status()
                async with asyncio.timeout(DEADLINE_S):
                    while f"nodename=h100-{index} " not in updates.read_text().lower():  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
                taken.append(time.monotonic() - began_s)
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        await daemon.machines.executor.aclose(0.1)
        daemon.journal.close()
    return taken


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="machines")
    parser.add_argument("--tries", type=int, default=10, help="instances that end, one after the other")
    arguments = parser.parse_args()
    seen = spread(asyncio.run(measure(arguments.count, arguments.tries)))
    rows = [
        Row(f"end of an instance to the first order to Slurm, {key}", seen[key], "s")
        for key in ("median", "min", "max")
    ]
    report("vanish", rows, {"count": arguments.count, "seconds": seen})


if __name__ == "__main__":
    main()
