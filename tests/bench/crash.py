"""Histories of faults and kills in simulated time (tests/property/sim.py, in the world of meshd/simulate), each from
its own seed, on all cores.

A seed fails when a machine leaks, is rented twice, loses a running job to housekeeping, or when the whole does not come
to what is wanted once the faults have ended.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import structlog

from meshd.runtime.gc_tuning import tune_gc
from tests.bench.report import Row, report
from tests.property.sim import Setting, live_through

CHUNK = 25


def live(seeds: range) -> list[tuple[int, str]]:
    """The seeds that fail, each with its reason."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    failed = []
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="meshd-bench-", dir=shm if shm.is_dir() else None) as directory:
        for seed in seeds:
            try:
                # Of two seeds one has a cloud whose create calls may be repeated.
                asyncio.run(live_through(seed, Path(directory), setting=Setting(idempotent=seed % 2 == 1)))
            except Exception as error:
                failed.append((seed, f"{type(error).__name__}: {error}"[:500]))
            for left in Path(directory).glob(f"{seed}.*"):
                left.unlink()
    return failed


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--at-most-s", type=float, default=float("inf"), help="stop early, and say after how many")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    last = arguments.first + arguments.seeds
    chunks = [range(at, min(at + CHUNK, last)) for at in range(arguments.first, last, CHUNK)]
    started, cpu = time.monotonic(), os.times()
    failed: list[tuple[int, str]] = []
    seeds = 0
    with ProcessPoolExecutor(arguments.processes, initializer=tune_gc) as pool:
        for chunk, found in zip(chunks, pool.map(live, chunks), strict=True):
            failed += found
            seeds += len(chunk)
            for seed, why in found:
                print(f"seed {seed}: {why}", flush=True)
            if seeds % 500 == 0:
                print(f"{seeds} seeds, {len(failed)} failed, {time.monotonic() - started:.0f} s", flush=True)
            if time.monotonic() - started > arguments.at_most_s:
                pool.shutdown(wait=True, cancel_futures=True)
                break
    wall_s = time.monotonic() - started
    spent = os.times()
    cpu_s = spent.children_user + spent.children_system - cpu.children_user - cpu.children_system
    rows = [
        Row("seeds that fail", len(failed), "", 0),
        Row("seeds", seeds, ""),
        Row("seeds a second", seeds / wall_s, "1/s"),
        Row("CPU a seed", 1000 * cpu_s / seeds, "ms"),
    ]
    report("crash", rows, {"failed": failed, "first": arguments.first, "processes": arguments.processes})


if __name__ == "__main__":
    main()
