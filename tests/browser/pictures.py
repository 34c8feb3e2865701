"""The pictures of the documents: the web page in Chromium, and `meshctl top` as its terminal shows it."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from playwright.async_api import Browser

from meshd.api import endpoints as e
from meshd.api import schema as s
from meshd.api.auth import Authorizer
from meshd.api.monitoring import MonitoringPages
from meshd.api.server import HeadApiServer
from meshd.cli.client import HeadClient
from meshd.cli.top.app import TopApp
from meshd.obs.metrics import Metrics
from meshd.runtime.clock import SystemClock
from tests.browser.chromium import chromium
from tests.web_room import ANN, NOW, Room, job, node

PAGES = (("overview", "/", "light"), ("plots", "/plots?span=day", "dark"))
SIZE = {"width": 1280, "height": 720}
COLUMNS, LINES = 110, 22


def cluster() -> Room:
    """A cluster at work: one pool is full and grows, the other has a node that is unfit and one that boots."""
    room = Room(nodes=6, running=6, waiting=2)
    a10 = {"pool": "a10g", "provider": "aws", "region": "us-east-1", "instance_type": "g5.xlarge", "gpu": "a10g",
           "gpus": 1, "usd_per_hour": 1.01}  # fmt: skip
    room.node_rows += [
        node(41, slot="a10g-1", machine="lab-a10g-1-w3k9t2", jobs=["4101"], gpu_load=_load(97, 21000), **a10),
        node(42, slot="a10g-2", machine="lab-a10g-2-p8d2xz", jobs=[], gpu_load=[], unfit="gpus_missing",
             slurm_state="DRAIN", unfit_text="1 of 1 GPUs is gone: Xid 79", **a10),
        node(43, slot="a10g-3", machine="lab-a10g-3-b6q7mm", jobs=[], gpu_load=[], phase="booting", address="",
             slurm_state="POWERING_UP", heartbeat_age_s=None, path="", reason="aws has it",
             since=NOW - timedelta(seconds=38), **a10),
    ]  # fmt: skip
    room.job_rows.append(job(4101, user="cleo", pool="a10g", partition="a10g", nodes=["a10g-1"], gpus=1))
    pools = [
        *room.status.pools,
        s.PoolView(name="a10g", partition="a10g", wanted_gpus=3, ready_gpus=1, usd_per_hour=3.03,
                   machines={"ready": 2, "booting": 1}, queue=s.QueueView(running=1)),
    ]  # fmt: skip
    room.status = room.status.model_copy(update={
        "pools": pools, "spend": s.SpendView(usd_per_hour=146.55, usd_so_far=861.12),
        "sources": [s.SourceView(name=name, ok=True) for name in ("slurm", "tailnet", "provider:aws")],
        "problems": [s.ProblemView(
            severity="warning", text="unfit: 1 of 1 GPUs is gone: Xid 79", pool="a10g",
            cure="meshd replaces it once its job ended", machine="lab-a10g-2-p8d2xz", since=NOW - timedelta(minutes=9),
        )],
    })  # fmt: skip
    room.give(e.PLAN, s.PlanView(
        usd_per_hour_before=146.55, usd_per_hour_after=170.47, adds=1,
        steps=[s.StepRow(action="request_machine", subject="h100-7", reason="job 9001 waits for it")],
    ))  # fmt: skip
    return room


def _load(percent: int, mib: int) -> list[s.GpuLoadRow]:
    return [s.GpuLoadRow(index=0, utilization_percent=percent, memory_used_mib=mib)]


async def page(browser: Browser, address: str, path: Path, scheme: str) -> None:
    """A picture of what an address shows."""
    context = await browser.new_context(viewport=SIZE, color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
    try:
        tab = await context.new_page()
        await tab.goto(address, wait_until="networkidle")
        await tab.screenshot(path=path)
    finally:
        await context.close()


async def top(browser: Browser, room: Room, path: Path) -> None:
    """A picture of the live view."""
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = HeadApiServer(
            room, path=directory / "socket", authorizer=Authorizer("root", own_uid=os.getuid()),
            monitoring=MonitoringPages(Metrics().registry, list), clock=SystemClock(),
        )  # fmt: skip
        await server.start()
        stack.push_async_callback(server.stop)
        head = await stack.enter_async_context(HeadClient(directory / "socket"))
        app = TopApp(head, every_s=0.5, clock=SystemClock())
        async with app.run_test(size=(COLUMNS, LINES)) as pilot:
            while app.board.cost is None or not app.board.nodes:
                await pilot.pause(0.1)
            await pilot.pause(1.0)
            drawn = app.export_screenshot(title="meshctl top")
    # Textual's picture loads its font from elsewhere.
    drawn = re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL)
    drawn = re.sub(r"Fira Code", "DejaVu Sans Mono", drawn)
    width, height = map(float, re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawn)[0])
    context = await browser.new_context(viewport={"width": int(width) + 1, "height": int(height) + 1})
    try:
        tab = await context.new_page()
        await tab.set_content(f"<style>body {{ margin: 0 }}</style>{drawn}")
        await tab.screenshot(path=path, omit_background=True)
    finally:
        await context.close()


async def main(directory: Path) -> None:
    """Make all pictures. Their names are their pages'."""
    room = cluster()
    room.tailnet.known["127.0.0.1"] = replace(room.tailnet.known[ANN], addresses=("127.0.0.1",))
    async with chromium() as browser, room.serve() as served:
        for name, path, scheme in PAGES:
            await page(browser, served.base + path, directory / f"page-{name}.png", scheme)
        await top(browser, room, directory / "top.png")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
