"""What each page shows: asked of the head API as every user of the head may, and kept for a moment for all visitors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from meshd.api import endpoints as e
from meshd.api import schema as s
from meshd.api.faults import Unknown
from meshd.api.glance import frozen, memory, silent, tightest, where
from meshd.api.handlers import Handlers
from meshd.api.shorten import merge_attempts, merge_problems
from meshd.api.web import rows
from meshd.api.web.plots import CHARTS, Plot, plot
from meshd.errors import MeshdError
from meshd.plaintext import age, counted, usd
from meshd.plan.samples import SPANS, Sample, Span
from meshd.runtime.clock import Clock
from meshd.runtime.singleflight import SingleFlight

FRESH_S: Final = 2.0
"""So long an answer serves all who look: they cost meshd together as much as one."""
COST_S: Final = 30.0
"""Money is read from the journal, all else from memory."""
PLAN_S: Final = 10.0
SHORT: Final = 10
"""Rows of the tables on the first page."""
LONG: Final = 200
"""Rows of events and problems on their own pages."""

SampleReader = Callable[[int, datetime, datetime], Sequence[Sample]]
"""Reads the samples of a length in seconds between two times. Raises StoreError."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page: the template that renders it, its title, and what the template needs."""

    template: str
    title: str
    facts: Mapping[str, Any]


class Pages:
    """Makes the pages.

    Args:
        handlers: answer; only what everybody may ask is asked.
        samples: for the plots.
        clock: time.
    """

    def __init__(self, handlers: Callable[[], Handlers], samples: SampleReader, clock: Clock) -> None:
        self._handlers = handlers
        self._samples = samples
        self._clock = clock
        self._status = SingleFlight(lambda: self._ask(e.STATUS), FRESH_S, clock)
        self._nodes = SingleFlight(lambda: self._ask(e.NODES), FRESH_S, clock)
        self._jobs = SingleFlight(lambda: self._ask(e.JOBS, s.JobsQuery(limit=s.JOBS_MAX)), FRESH_S, clock)
        self._events = SingleFlight(lambda: self._ask(e.EVENTS, s.EventsQuery(limit=LONG)), FRESH_S, clock)
        self._plan = SingleFlight(lambda: self._ask(e.PLAN), PLAN_S, clock)
        self._cost = SingleFlight(self._todays_cost, COST_S, clock)

    async def frame(self) -> Mapping[str, Any]:
        """What all pages show: the cluster, whether it is frozen, what is silent, and how many problems there are."""
        status = await self._status()
        problems = merge_problems(status.problems)
        errors = sum(row.severity == "error" for row in problems)
        warnings = sum(row.severity == "warning" for row in problems)
        words = [counted(errors, "error")] * bool(errors) + [counted(warnings, "warning")] * bool(warnings)
        return {
            "cluster": status.cluster, "version": status.version, "at": status.at,
            "frozen": frozen(status.freeze) if status.freeze else "", "silent": list(silent(status)),
            "problem_count": ", ".join(words) or "no problems", "problem_tone": _worst(errors, warnings),
            "title_mark": "FROZEN " if status.freeze else f"({errors}) " if errors else "",
        }  # fmt: skip

    async def overview(self, _query: Mapping[str, str]) -> Page:
        """The first page."""
        status, nodes, events = await self._status(), await self._nodes(), await self._events()
        jobs, now = await self._jobs(), status.at
        problems = merge_problems(status.problems)
        return Page("overview.html", "Overview", {
            "figures": await self._figures(status, nodes, jobs),
            "problems": rows.problems(problems, now, SHORT) if problems else None,
            "pools": rows.pools(status.pools, nodes.nodes, status.head),
            "waiting": rows.waiting(status.waiting, now, SHORT) if status.waiting else None,
            **await self._next(status),
            "plots": self._plots(_span("day"), ("gpus", "queue", "cost")),
            "events": rows.events(events.events[-SHORT:]),
        })  # fmt: skip

    async def problems(self, _query: Mapping[str, str]) -> Page:
        """All problems, with what to do."""
        status = await self._status()
        return Page("table.html", "Problems", {
            "table": rows.problems(merge_problems(status.problems), status.at, LONG),
        })  # fmt: skip

    async def nodes(self, query: Mapping[str, str]) -> Page:
        """The machines."""
        view = await self._nodes()
        orders = rows.node_orders(view.at)
        part = rows.part(view.nodes, rows.Asked.of(query, orders), rows.node_text, orders)
        return Page("list.html", "Nodes", {
            "part": part, "table": rows.nodes(part.rows, view.at, part.says("node")),
            "orders": {"": "slot", "gpu": "GPU use", "usd": "price", "age": "time in phase"},
        })  # fmt: skip

    async def jobs(self, query: Mapping[str, str]) -> Page:
        """Slurm's queue."""
        view, loads = await self._jobs(), _loads(await self._nodes())
        orders = rows.job_orders(loads)
        part = rows.part(view.jobs, rows.Asked.of(query, orders), rows.job_text, orders)
        more = f"; {counted(view.left_out, 'more job')} in Slurm" if view.left_out else ""
        unread = "" if view.read_at else "Slurm's queue cannot be read now"
        return Page("list.html", "Jobs", {
            "part": part, "table": rows.jobs(part.rows, loads, unread or part.says("job") + more),
            "orders": {"": "number", "gpu": "GPU use", "time": "time", "gpus": "GPUs"},
        })  # fmt: skip

    async def node(self, name: str) -> Page:
        """One machine. Raises Unknown."""
        explained = await self._ask(e.EXPLAIN, s.ExplainQuery(subject=name))
        if explained.job or not explained.machine:
            raise Unknown(f"there is no machine {name}", "see the list of nodes")
        row = next((one for one in (await self._nodes()).nodes if one.machine == explained.machine), None)
        here = [one for one in (await self._jobs()).jobs if row and row.slot in one.nodes]
        health = explained.health
        return Page("node.html", f"Node {explained.slot or explained.machine}", {
            "explained": explained, "row": row, "facts": _facts(explained, row), "health": health,
            "gpus": row.gpu_load if row else [],
            "jobs": rows.jobs(here, {row.slot: row.gpu_load} if row else {}) if here else None,
            "attempts": merge_attempts(explained.rungs), "events": rows.events(explained.events),
            "log": health.log if health else [], "age": age, "usd": usd,
        })  # fmt: skip

    async def job(self, number: str) -> Page:
        """One job of the queue. Raises Unknown."""
        view, nodes, status = await self._jobs(), await self._nodes(), await self._status()
        row = next((one for one in view.jobs if one.job == number), None)
        if row is None:
            raise Unknown(
                f"there is no job {number} in the queue", "see the list of jobs; sacct knows those that ended"
            )
        waits = next((one for one in status.waiting if one.job == number), None)
        there = [one for one in nodes.nodes if one.slot in row.nodes or number in one.for_jobs]
        facts = {
            "User": row.user, "Account": row.account, "State": row.state, "Pool": row.pool or row.partition,
            "GPUs": f"{row.gpus}" if row.gpus else "",
            "Nodes": rows.folded(row.nodes) if row.nodes else f"{row.node_count or ''}",
            "Runs for": age(row.run_s) if row.run_s is not None else "",
            "GPU use": rows.busy(rows.job_loads(row, _loads(nodes))).text if row.nodes else "",
            "GPU memory": memory(rows.job_loads(row, _loads(nodes))) if row.nodes else "",
        }  # fmt: skip
        expected, more = "", rows.left_out(there, rows.ROWS_MAX, "node")
        if waits and waits.until and waits.until > status.at:
            expected = f"expected in {age((waits.until - status.at).total_seconds())}"
        return Page("job.html", f"Job {number}", {
            "row": row, "facts": {name: value for name, value in facts.items() if value},
            "why": waits.text if waits else row.reason, "expected": expected,
            "nodes": rows.nodes(there[: rows.ROWS_MAX], nodes.at, more) if there else None,
        })  # fmt: skip

    async def events(self, _query: Mapping[str, str]) -> Page:
        """The newest events."""
        view = await self._events()
        note = f"the newest {LONG}; `meshctl events` has older ones" if len(view.events) >= LONG else ""
        return Page("table.html", "Events", {"table": rows.events(view.events, note)})

    async def plots(self, query: Mapping[str, str]) -> Page:
        """All plots of a span."""
        span = _span(query.get("span", ""))
        return Page("plots.html", "Plots", {
            "span": span, "spans": SPANS, "plots": self._plots(span, tuple(chart.id for chart in CHARTS)),
        })  # fmt: skip

    # -- inside ---------------------------------------------------------------------------------------------------

    async def _ask(self, endpoint: e.Endpoint[Any, Any], request: Any = None) -> Any:
        if not isinstance(endpoint, e.Read):
            raise TypeError(f"{endpoint.name} is not for everybody")
        return await self._handlers().call(endpoint, request)

    async def _todays_cost(self) -> s.CostView | None:
        """None where the journal cannot be read: all else can still be shown."""
        midnight = self._clock.now().replace(hour=0, minute=0, second=0, microsecond=0)
        try:
            found: s.CostView = await self._ask(e.COST, s.CostQuery(by="day", since=midnight))
        except MeshdError:
            return None
        return found

    async def _figures(self, status: s.StatusView, nodes: s.NodesView, jobs: s.JobsView) -> list[tuple[str, str, str]]:
        """What stands in large letters: the label, the value, and a word more."""
        wanted = sum(pool.wanted_gpus for pool in status.pools)
        loads = [load for row in nodes.nodes for load in row.gpu_load]
        use, cost = rows.busy(loads).text, await self._cost()
        running = sum(bool(job.nodes) for job in jobs.jobs)
        found = [
            ("GPUs ready", f"{sum(pool.ready_gpus for pool in status.pools)}", f"of {wanted} wanted" if wanted else ""),
            ("GPU use", use, f"{memory(loads)} of memory" if loads else ""),
            ("Machines", f"{len(nodes.nodes)}", ""),
            ("Jobs", f"{running} run", f"{len(jobs.jobs) - running + jobs.left_out} wait"),
            ("Per hour", usd(status.spend.usd_per_hour), ""),
        ]
        if cost is not None:
            found.append(("Today (UTC)", usd(cost.usd), f"{usd(cost.month_usd)} this month"))
            if (row := tightest(cost.budget)) is not None:
                whose = f"{row.pool}, " if row.pool else ""
                found.append(("Budget left", usd(row.left_usd), f"of {usd(row.limit_usd)} ({whose}a {row.period})"))
        return found

    async def _next(self, status: s.StatusView) -> Mapping[str, Any]:
        if status.freeze:
            return {"steps": None, "outlook": "Nothing: meshd is frozen."}
        try:
            plan: s.PlanView = await self._plan()
        except MeshdError as error:
            return {"steps": None, "outlook": f"Not known: {error}"}
        words = []
        if plan.adds:
            words.append(f"rents {counted(plan.adds, 'machine')}")
        if plan.removes:
            words.append(f"gives back {counted(len(plan.removes), 'machine')}")
        if not words:
            return {
                "steps": rows.steps(plan, SHORT) if plan.steps else None,
                "outlook": "meshd rents and ends nothing now.",
            }
        before, after = usd(plan.usd_per_hour_before), usd(plan.usd_per_hour_after)
        outlook = f"meshd {' and '.join(words)}: {before} an hour become {after}."
        return {"steps": rows.steps(plan, SHORT), "outlook": outlook}

    def _plots(self, span: Span, ids: Sequence[str]) -> list[Plot]:
        now = self._clock.now()
        found = self._samples(span.step_s, now - span.length, now)
        return [plot(chart, found, span, now) for chart in CHARTS if chart.id in ids]


def _worst(errors: int, warnings: int) -> str:
    return "bad" if errors else "care" if warnings else "good"


def _span(name: str) -> Span:
    return next((span for span in SPANS if span.name == name), SPANS[1])


def _loads(view: s.NodesView) -> rows.Loads:
    return {row.slot: row.gpu_load for row in view.nodes}


def _facts(explained: s.ExplainView, row: s.NodeRow | None) -> Mapping[str, str]:
    """What is known of a machine, without what is not."""
    facts = {"Machine": explained.machine, "Pool": explained.pool, "Phase": explained.phase}
    if row is not None:
        health = explained.health
        facts |= {
            "In this phase for": age((explained.at - row.since).total_seconds()),
            "Where": where(row), "Type": f"{row.instance_type}{' (a pod)' if row.pod else ''}",
            "GPUs": f"{row.gpus} {row.gpu}".strip(), "Price": f"{usd(row.usd_per_hour)} an hour",
            "Address": row.address, "Slurm": row.slurm_state, "Slurm's reason": row.slurm_reason,
            "Path to the head": row.path,
            "Last report": "" if row.heartbeat_age_s is None else f"{age(row.heartbeat_age_s)} ago",
            "Tailnet": health.tailnet if health else "",
        }  # fmt: skip
    return {name: value for name, value in facts.items() if value}
