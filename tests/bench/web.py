"""The web page with 1,000 nodes and 5,000 jobs in Chromium: how long until it is painted, what it costs the head."""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import replace
from statistics import median

from tests.bench.report import Row, report
from tests.browser.chromium import chromium
from tests.web_room import ANN, Room

PATHS = ("/", "/nodes", "/jobs", "/plots?span=month")
TIMES = 7
PAINTED = """new Promise(done => {
    const look = () => {
        const [entry] = performance.getEntriesByName("first-contentful-paint");
        const [page] = performance.getEntriesByType("navigation");
        entry ? done([entry.startTime, page.encodedBodySize]) : setTimeout(look, 5);
    };
    look();
})"""
"""Milliseconds from the visitor's request to the first content, and the page's size on the wire."""


async def measure(nodes: int, jobs: int) -> list[Row]:
    """Each page several times, when no answer is kept from before."""
    room = Room(nodes=nodes, running=nodes, waiting=jobs - nodes)
    room.tailnet.known["127.0.0.1"] = replace(room.tailnet.known[ANN], addresses=("127.0.0.1",))
    found: list[Row] = []
    async with room.serve(), chromium() as browser:
        for path in PATHS:
            painted, sizes, cpu = [], [], []
            for _ in range(TIMES):
                room.clock.t_s += 60
                context = await browser.new_context()
                page = await context.new_page()
                began_s = time.process_time()
                await page.goto(room.base + path)
                paint_ms, size = await page.evaluate(PAINTED)
                cpu.append(time.process_time() - began_s)
                painted.append(paint_ms / 1000)
                sizes.append(size / 1024)
                await context.close()
            found += [
                Row(f"{path}: painted after", median(painted), "s"),
                Row(f"{path}: painted after, at most", max(painted), "s"),
                Row(f"{path}: on the wire", median(sizes), "KiB"),
                Row(f"{path}: CPU of the head and of the browser's driver", median(cpu), "s"),
            ]
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=5000)
    arguments = parser.parse_args()
    rows = asyncio.run(measure(arguments.nodes, arguments.jobs))
    report("web", rows, {"nodes": arguments.nodes, "jobs": arguments.jobs})


if __name__ == "__main__":
    main()
