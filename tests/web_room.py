"""The web page over answers that a test gives, on loopback, for visitors at addresses of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp

from meshd.api import endpoints as e
from meshd.api import schema as s
from meshd.api.faults import Unknown
from meshd.api.web.pages import Pages
from meshd.api.web.server import WebServer
from meshd.api.web.visitors import Visitors
from meshd.errors import TailnetError
from meshd.plan.samples import KEPT, Figure, Mean, Sample, begin
from meshd.tailnet.status import Identity
from tests.clocks import HandClock
from tests.unit.api.answers import Answers

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
ANN, BOB, CI, NODE, STRANGER = (f"127.1.0.{number}" for number in range(1, 6))
"""Addresses: a user who may look, one who may not, a tagged device, a machine of the cluster, and nobody's."""
ALLOW = ("ann@example.com", "group:eng", "tag:desk")
HOST = "head.tail.ts.net"


@dataclass
class Tailnet:
    """Says who has an address, as tailscaled does.

    Attributes:
        asked: the addresses that it was asked about.
        away: it does not answer.
    """

    asked: list[str] = field(default_factory=list)
    away: bool = False
    known: dict[str, Identity] = field(
        default_factory=lambda: {
            ANN: Identity("d1", "anns-laptop", (ANN,), login="Ann@example.com"),
            BOB: Identity("d2", "bobs-laptop", (BOB,), login="bob@other.example"),
            CI: Identity("d3", "runner", (CI,), tags=("tag:ci",)),
            NODE: Identity("d4", "lab-h100-1-aaaaa1", (NODE,), login="ann@example.com"),
        }
    )

    async def identity(self, address: str) -> Identity:
        self.asked.append(address)
        if self.away:
            raise TailnetError("tailscaled did not answer whois within 5 s")
        if address not in self.known:
            raise TailnetError("tailscaled answers whois with 404: no match for IP:port")
        return self.known[address]


def node(index: int, **changes: Any) -> s.NodeRow:
    """A machine that is READY and busy."""
    load = [
        s.GpuLoadRow(index=gpu, utilization_percent=60 + (index + gpu) % 40, memory_used_mib=61440) for gpu in range(8)
    ]
    row: dict[str, Any] = {
        "machine": f"lab-h100-{index}-aaaaa{index}", "slot": f"h100-{index}", "pool": "h100", "provider": "lambda",
        "region": "us-west-1", "instance_type": "gpu_8x_h100_sxm5", "gpu": "h100-sxm", "gpus": 8, "phase": "ready",
        "since": NOW - timedelta(minutes=7 * index + 3), "address": f"100.64.{index // 250}.{index % 250 + 1}",
        "slurm_state": "ALLOCATED", "jobs": [f"{4000 + index}"], "usd_per_hour": 23.92, "gpu_load": load,
        "heartbeat_age_s": 1.0, "path": "direct 203.0.113.7:41641", "reason": "slurmd answers",
    }  # fmt: skip
    return s.NodeRow(**(row | changes))


def job(number: int, **changes: Any) -> s.JobRow:
    """A job that runs on one node."""
    row: dict[str, Any] = {
        "job": f"{number}", "user": "ann", "account": "vision", "pool": "h100", "partition": "h100",
        "state": "RUNNING", "nodes": [f"h100-{number - 4000}"], "node_count": 1, "gpus": 8,
        "run_s": 60.0 * (number % 500),
    }  # fmt: skip
    return s.JobRow(**(row | changes))


def samples(step_s: int, since: datetime, until: datetime) -> list[Sample]:
    """Waves, with a gap."""
    found = []
    for number in range(KEPT[step_s]):
        at = begin(NOW, step_s) - timedelta(seconds=number * step_s)
        if not since <= at <= until or 0.4 < number / KEPT[step_s] < 0.45:
            continue
        wave = (number * 7 // 60) % 24
        means = {
            Figure.GPUS_WANTED: 64.0, Figure.GPUS_READY: 64.0 - wave, Figure.GPUS_BUSY: 40.0 + wave / 2,
            Figure.JOBS_RUNNING: 8.0 + wave / 3, Figure.JOBS_PENDING: float(max(0, wave - 6)),
            Figure.USD_PER_HOUR: 160.0 + wave,
        }  # fmt: skip
        found.append(Sample(at, {figure: Mean(value) for figure, value in means.items()}))
        if number % 97 == 0:
            found.append(Sample(at, {Figure.JOIN_S: Mean(90.0 + wave * 9)}))
    return found


class Room(Answers):
    """A cluster's answers.

    Attributes:
        status, node_rows, job_rows, event_rows: what is answered; a test changes them.
        tailnet: who has which address.
        allow: who may look.
        clock: time; it moves when a test moves it.
        base: the page's address, once it is served.
    """

    def __init__(self, nodes: int = 3, running: int = 3, waiting: int = 2) -> None:
        super().__init__()
        self.tailnet, self.allow, self.clock, self.base = Tailnet(), ALLOW, HandClock(NOW), ""
        self.slurm_web_url = ""
        self.node_rows = [node(index) for index in range(1, nodes + 1)]
        self.job_rows = [job(4000 + index) for index in range(1, running + 1)]
        self.job_rows += [
            job(
                9000 + index,
                state="PENDING",
                user="bob",
                nodes=[],
                run_s=None,
                reason="waits for 1 node of h100: lambda has none",
            )
            for index in range(1, waiting + 1)
        ]
        self.event_rows = [
            s.EventRow(id=index, at=NOW - timedelta(minutes=60 - index), kind="phase", text="ready: slurmd answers",
                       machine=f"lab-h100-{index}-aaaaa{index}", pool="h100")
            for index in range(1, 21)
        ]  # fmt: skip
        queue = s.QueueView(running=running, pending=waiting)
        pool = s.PoolView(
            name="h100", partition="h100", target_gpus=64, wanted_gpus=64, ready_gpus=8 * nodes,
            usd_per_hour=23.92 * nodes, machines={"ready": nodes}, queue=queue,
        )  # fmt: skip
        self.status = s.StatusView(
            cluster="lab", version="0.1.0", at=NOW, uptime_s=7384, tick_at=NOW, tick_age_s=2.0, pools=[pool],
            spend=s.SpendView(usd_per_hour=23.92 * nodes), sources=[s.SourceView(name="slurm", ok=True)],
            waiting=[
                s.WaitingRow(job=f"{9000 + index}", user="bob", pool="h100", nodes=1, wait="boot",
                             until=NOW + timedelta(minutes=4), text="waits for 1 node of h100: it boots at lambda")
                for index in range(1, waiting + 1)
            ],
        )  # fmt: skip
        self.give(e.STATUS, lambda _: self.status)
        self.give(e.NODES, lambda _: s.NodesView(at=NOW, nodes=list(self.node_rows)))
        self.give(e.JOBS, self._jobs)
        self.give(e.EVENTS, lambda query: s.EventsView(events=self.event_rows[-query.limit :], last_id=20))
        self.give(e.COST, lambda query: s.CostView(
            at=NOW, by=query.by, since=query.since, until=NOW, usd=861.12, month_usd=861.12,
            budget=[s.BudgetRow(period="month", limit_usd=20000.0, spent_usd=861.12, left_usd=19138.88)],
        ))  # fmt: skip
        self.give(e.PLAN, s.PlanView(
            usd_per_hour_before=71.76, usd_per_hour_after=95.68, adds=1,
            steps=[s.StepRow(action="request_machine", subject="h100-9", reason="job 9001 waits for it")],
        ))  # fmt: skip
        self.give(e.EXPLAIN, self._explain)

    def _jobs(self, query: s.JobsQuery) -> s.JobsView:
        left_out = max(0, len(self.job_rows) - query.limit)
        return s.JobsView(at=NOW, read_at=NOW, jobs=self.job_rows[: query.limit], left_out=left_out)

    def _explain(self, query: s.ExplainQuery) -> s.ExplainView:
        row = next((one for one in self.node_rows if query.subject in {one.machine, one.slot}), None)
        if row is None:
            raise Unknown(f"there is no machine, slot or pool {query.subject}", "run `meshctl nodes`")
        health = s.HealthView(
            unfit=row.unfit, text=row.unfit_text, next="meshd replaces it in 4m", cure="look at its log",
            slurm_state=row.slurm_state, tailnet="online", log=["slurmd: started", "slurmd: <b>bold</b>"],
        )  # fmt: skip
        attempt = s.AttemptRow(at=NOW, machine=row.machine, offer="lambda/us-west-1/gpu_8x_h100", provider="lambda",
                               usd_per_hour=23.92, outcome="rented")  # fmt: skip
        return s.ExplainView(
            subject=query.subject, at=NOW, pool=row.pool, slot=row.slot, machine=row.machine, phase=row.phase,
            why=row.failure or "it is ready", rungs=[attempt], events=self.event_rows[:3], health=health,
        )  # fmt: skip

    @asynccontextmanager
    async def serve(self, address: str = "127.0.0.1") -> AsyncIterator[Room]:
        """Serve the page."""
        pages = Pages(lambda: self, samples, self.clock)
        nodes = {row.machine for row in self.node_rows}
        visitors = Visitors(self.tailnet, lambda: self.allow, lambda who: who.hostname in nodes, self.clock)
        server = WebServer(pages, visitors, lambda: {HOST, "head", address}, lambda: self.slurm_web_url)
        port = await server.start(address, 0)
        self.base = f"http://{address}:{port}"
        try:
            yield self
        finally:
            await server.stop()

    async def get(self, path: str, *, by: str = ANN, method: str = "GET", **headers: str) -> tuple[int, str, Any]:
        """Status, text and headers of an answer to somebody."""
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(local_addr=(by, 0))) as session,
            session.request(method, self.base + path, headers=headers, allow_redirects=False) as reply,
        ):
            return reply.status, await reply.text(), reply.headers
