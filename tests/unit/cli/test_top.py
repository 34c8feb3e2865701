"""`meshctl top` on a terminal: what it shows, and what its keys do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, RichLog, TabbedContent

from meshd.api import endpoints
from meshd.api.endpoints import A, Endpoint
from meshd.api.faults import NotReady, Refused
from meshd.api.schema import (
    CallerView,
    CostView,
    DrainRequest,
    EventRow,
    EventsQuery,
    EventsView,
    ExplainQuery,
    FreezeView,
    GpuLoadRow,
    JobRow,
    JobsView,
    LogRow,
    LogsView,
    MachineAnswer,
    NodesView,
    ProblemView,
    PublishView,
)
from meshd.cli.client import HeadClient, Query
from meshd.cli.top.app import TopApp
from meshd.cli.top.live_table import LiveTable
from meshd.cli.top.screens import AskScreen, ExplainScreen, LogScreen
from tests.unit.api.sim_head import SimHead
from tests.unit.cli.conftest import NODES, STATUS, Meshctl
from tests.unit.cli.helpers import NOW, on_terminal

JOBS = JobsView(
    at=NOW, read_at=NOW,
    jobs=[
        JobRow(job="4711", user="alice", pool="a100", partition="a100", state="RUNNING", nodes=["a100-1"], gpus=4),
        JobRow(job="4713", user="bob", pool="a100", partition="a100", state="PENDING", node_count=2),
    ],
)  # fmt: skip
EVENT = EventRow(id=7, at=NOW, kind="phase", text="ready: slurmd \x1b[31manswers", machine="lab-a100-1-k7q2m1")
ANSWER = MachineAnswer(machine="lab-a100-1-k7q2m1", slot="a100-1", phase="ready", text="no new jobs")


class Onlooker(HeadClient):
    """The client of a user who may not write: the tests' own user may."""

    async def _ask(self, endpoint: Endpoint[Any, A], query: Query, body: str | None, timeout_s: float) -> A:
        answer = await super()._ask(endpoint, query, body, timeout_s)
        return answer.model_copy(update={"may_write": False}) if isinstance(answer, CallerView) else answer


@pytest.fixture
def shown(still: SimHead) -> SimHead:
    """A head that has an answer to everything that the live view asks."""
    still.give(endpoints.JOBS, JOBS)
    still.give(endpoints.COST, CostView(at=NOW, by="day", since=NOW, until=NOW, usd=4.5))
    still.read(endpoints.EVENTS, _events)
    still.give(endpoints.DRAIN, ANSWER)
    still.give(endpoints.UNDRAIN, ANSWER)
    return still


async def _events(query: EventsQuery) -> EventsView:
    return await _events_of(EVENT, query)


async def _events_of(row: EventRow, query: EventsQuery) -> EventsView:
    """One event, and then none: a daemon that answers at once keeps this process busy, and a key is through when it is
    idle."""
    if query.after_id:
        await asyncio.sleep(0.2)
    return EventsView(events=[] if query.after_id else [row], last_id=7)


@asynccontextmanager
async def running(
    socket: Path, size: tuple[int, int] = (80, 24), client: type[HeadClient] = HeadClient, every_s: float = 0.5
) -> AsyncIterator[tuple[TopApp, Pilot[None]]]:
    async with client(socket) as head:
        app = TopApp(head, every_s=every_s)
        async with app.run_test(size=size, notifications=True) as pilot:
            await until(pilot, lambda: app.board.cost is not None and table(app, "nodes").row_count > 0)
            yield app, pilot


async def until(pilot: Pilot[None], wanted: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not wanted():
            await pilot.pause(0.01)


def table(app: TopApp, name: str) -> LiveTable:
    return app.screen_stack[0].query_one(f"#{name}", LiveTable)


def text_of(app: TopApp) -> str:
    """The screen as a person sees it."""
    return "\n".join("".join(part.text for part in line).rstrip() for line in app.screen._compositor.render_strips())


async def test_all_fits_into_80_columns(shown: SimHead, served: SimHead, socket_path: Path) -> None:
    async with running(socket_path) as (app, pilot):
        await pilot.pause()
        text = text_of(app)
        for words in ("lab  up 2h", "$30.00/h", "today $4.50", "a100-1", "booting", "1 Nodes (3)", "2 Jobs (2)",
                      "InternalError", "Explain", "q Quit"):  # fmt: skip
            assert words in text, text
        assert "\x1b" not in text


async def test_a_long_problem_takes_one_line_above_the_tables(
    shown: SimHead, served: SimHead, socket_path: Path
) -> None:
    text = "the cloud says: " + "no capacity " * 60
    rows = [ProblemView(severity="error", text=f"{number} {text}", cure="wait") for number in range(3)]
    shown.give(endpoints.STATUS, STATUS.model_copy(update={"problems": rows}))
    async with running(socket_path) as (app, pilot):
        await pilot.pause()
        assert app.query_one("#short").size.height == 3 and "1 more problem" in text_of(app)
        await pilot.press("4")
        await until(pilot, lambda: app.query_one("#short").size.height == 0)
        assert "do: wait" in text_of(app)


async def test_wide_terminals_show_more_columns(shown: SimHead, served: SimHead, socket_path: Path) -> None:
    async with running(socket_path) as (app, pilot):
        narrow = len(table(app, "nodes").columns)
        await pilot.resize_terminal(200, 40)
        await until(pilot, lambda: len(table(app, "nodes").columns) > narrow)
        await until(pilot, lambda: "p4d.24xlarge" in text_of(app))


async def test_only_what_changed_is_drawn(shown: SimHead, served: SimHead, socket_path: Path) -> None:
    async with running(socket_path) as (app, pilot):
        await pilot.press("down", "down")
        nodes = table(app, "nodes")
        drawn = nodes._update_count
        changed = NODES.nodes[0].model_copy(update={"gpu_load": [GpuLoadRow(index=0, utilization_percent=83)]})
        shown.give(endpoints.NODES, NODES.model_copy(update={"nodes": [changed, *NODES.nodes[1:]]}))
        await until(pilot, lambda: "83%" in text_of(app))
        assert nodes._update_count - drawn == 2, "its load and its memory"
        assert nodes.chosen == NODES.nodes[2].machine


async def test_the_cursor_stays_on_its_node(shown: SimHead, served: SimHead, socket_path: Path) -> None:
    async with running(socket_path) as (app, pilot):
        await pilot.press("down", "down")
        assert table(app, "nodes").chosen == NODES.nodes[2].machine
        shown.give(endpoints.NODES, NODES.model_copy(update={"nodes": NODES.nodes[1:]}))
        await until(pilot, lambda: table(app, "nodes").row_count == 2)
        assert table(app, "nodes").chosen == NODES.nodes[2].machine
        shown.give(endpoints.NODES, NodesView(at=NOW))
        await until(pilot, lambda: table(app, "nodes").row_count == 0)
        assert table(app, "nodes").chosen == ""
        await pilot.press("enter", "l", "d", "u")
        assert len(app.screen_stack) == 1


async def test_enter_explains_a_node(shown: SimHead, served: SimHead, socket_path: Path) -> None:
    shown.give(endpoints.EXPLAIN, Refused("not now", "wait"))
    async with running(socket_path) as (app, pilot):
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ExplainScreen) and "not now" in text_of(app))
        assert shown.asked(endpoints.EXPLAIN)[0] == ExplainQuery(subject=NODES.nodes[0].machine)
        await pilot.press("escape")
        await until(pilot, lambda: len(app.screen_stack) == 1)


async def test_enter_on_a_job_shows_its_nodes_or_what_it_waits_for(
    shown: SimHead, served: SimHead, socket_path: Path
) -> None:
    shown.give(endpoints.EXPLAIN, Refused("it waits", "wait"))
    async with running(socket_path) as (app, pilot):
        await pilot.press("2", "enter")
        await until(pilot, lambda: app.screen.query_one(TabbedContent).active == "tab-nodes")
        await until(pilot, lambda: table(app, "nodes").row_count == 1 and "1 of 3 with '4711'" in text_of(app))
        await pilot.press("2", "down", "enter")
        await until(pilot, lambda: "it waits" in text_of(app))
        assert shown.asked(endpoints.EXPLAIN)[-1].subject == "4713"


async def test_logs_are_followed(shown: SimHead, served: SimHead, socket_path: Path) -> None:
    view = LogsView(machine="m", slot="a100-1", provider="aws", phase="ready",
                    logs=[LogRow(part="slurmd", source="agent", at=NOW, text="one\n\x1b]0;title\x07two")])  # fmt: skip
    shown.give(endpoints.LOGS, view)
    async with running(socket_path) as (app, pilot):
        await pilot.press("l")
        await until(pilot, lambda: isinstance(app.screen, LogScreen) and "two" in text_of(app))
        assert "==> slurmd <==" in text_of(app) and "\x1b" not in text_of(app)
        assert shown.asked(endpoints.LOGS)[0].machine == NODES.nodes[0].machine


async def test_drain_asks_for_a_reason(shown: SimHead, served: SimHead, socket_path: Path) -> None:
    async with running(socket_path) as (app, pilot):
        await pilot.press("d")
        await until(pilot, lambda: isinstance(app.screen, AskScreen))
        await pilot.press("escape")
        await until(pilot, lambda: len(app.screen_stack) == 1)
        assert shown.asked(endpoints.DRAIN) == [], "Escape changes nothing"
        await pilot.press("d", *"fans", "enter")
        await until(pilot, lambda: bool(shown.asked(endpoints.DRAIN)))
        assert shown.asked(endpoints.DRAIN) == [DrainRequest(machine=NODES.nodes[0].machine, reason="fans")]
        await until(pilot, lambda: "no new jobs" in text_of(app))
        await pilot.press("u")
        await until(pilot, lambda: bool(shown.asked(endpoints.UNDRAIN)))


async def test_a_reason_that_is_too_long_is_cut(shown: SimHead, served: SimHead, socket_path: Path) -> None:
    async with running(socket_path) as (app, pilot):
        await pilot.press("d")
        await until(pilot, lambda: isinstance(app.screen, AskScreen))
        app.screen.query_one(Input).insert_text_at_cursor("x" * 500)
        await pilot.press("y", "enter")
        await until(pilot, lambda: bool(shown.asked(endpoints.DRAIN)))
        assert len(shown.asked(endpoints.DRAIN)[0].reason) <= 200


async def test_who_may_not_write_is_told(shown: SimHead, served: SimHead, socket_path: Path) -> None:
    async with running(socket_path, client=Onlooker) as (app, pilot):
        await pilot.press("d", "u")
        await until(pilot, lambda: "only root and" in text_of(app))
        assert len(app.screen_stack) == 1 and shown.asked(endpoints.UNDRAIN) == []


async def test_sort_and_filter(shown: SimHead, served: SimHead, socket_path: Path) -> None:
    async with running(socket_path) as (app, pilot):
        await pilot.press("s", "s", "s")
        await until(pilot, lambda: table(app, "nodes").chosen == NODES.nodes[0].machine and "by age" in text_of(app))
        await pilot.press("slash", *"boot", "enter")
        await until(pilot, lambda: table(app, "nodes").row_count == 1)
        assert table(app, "nodes").chosen == NODES.nodes[1].machine


@pytest.mark.parametrize("words", ["[/x]", "[red", "a100-[1-4]", "\\[b]"])
async def test_brackets_in_a_filter_are_words(shown: SimHead, served: SimHead, socket_path: Path, words: str) -> None:
    async with running(socket_path) as (app, pilot):
        await pilot.press("slash")
        await until(pilot, lambda: isinstance(app.screen, AskScreen))
        app.screen.query_one(Input).value = words
        await pilot.press("enter")
        await until(pilot, lambda: f"0 of 3 with {words!r}" in text_of(app))


async def test_no_text_of_others_reaches_the_terminal(shown: SimHead, served: SimHead, socket_path: Path) -> None:
    """Escape sequences, markup and text that runs backwards, in all that a user, a node or a cloud may name."""
    text = "\x1b]0;x\x07\x1b[2J[red]x[/] \x9b31m\u202eevil\x00"
    row = NODES.nodes[0].model_copy(update={
        "slot": text, "pool": text, "reason": text, "slurm_state": text, "unfit": text, "unfit_text": text,
        "failure": text, "jobs": [text], "region": text, "instance_type": text, "address": text,
    })  # fmt: skip
    said: dict[str, Any] = {
        "user": text,
        "state": text,
        "reason": text,
        "account": text,
        "partition": text,
        "pool": text,
    }
    shown.give(endpoints.NODES, NODES.model_copy(update={"nodes": [row]}))
    shown.give(endpoints.JOBS, JOBS.model_copy(update={"jobs": [JobRow(job="4711", **said)]}))
    pool = STATUS.pools[0].model_copy(update={"name": text, "machines": {text: 1}})
    shown.give(endpoints.STATUS, STATUS.model_copy(update={
        "cluster": text, "freeze": FreezeView(since=NOW, by=text, reason=text), "pools": [pool],
        "problems": [ProblemView(severity=text, text=text, cure=text, machine=text)], "slurm": PublishView(error=text),
    }))  # fmt: skip
    shown.give(endpoints.EXPLAIN, NotReady(text, text))
    shown.give(
        endpoints.LOGS,
        LogsView(
            machine="m",
            slot="s",
            provider="aws",
            phase="ready",
            logs=[LogRow(part=text, source="agent", at=NOW, text=text)],
        ),
    )
    shown.read(endpoints.EVENTS, partial(_events_of, EVENT.model_copy(update={"kind": text, "text": text})))
    async with running(socket_path, size=(200, 40)) as (app, pilot):
        for key in ("1", "enter", "escape", "l", "escape", "2", "enter", "escape", "3", "4"):
            await pilot.press(key)
            await pilot.pause(0.2)
            assert all(one.isprintable() for one in text_of(app) if one != "\n"), key
        assert "[red]x[/]" in text_of(app)


async def test_events_are_followed_on(shown: SimHead, served: SimHead, socket_path: Path) -> None:
    async with running(socket_path) as (app, pilot):
        await pilot.press("3")
        await until(pilot, lambda: "ready: slurmd" in text_of(app))
        assert "\x1b" not in text_of(app)
        lines = len(app.screen.query_one("#events", RichLog).lines)
        asked = shown.asked(endpoints.EVENTS)
        await until(pilot, lambda: len(shown.asked(endpoints.EVENTS)) > len(asked))
        assert shown.asked(endpoints.EVENTS)[-1].after_id == 7
        assert len(app.screen.query_one("#events", RichLog).lines) == lines, "each is shown once"


async def test_a_daemon_that_is_away_comes_back(shown: SimHead, served: SimHead, socket_path: Path) -> None:
    async with running(socket_path) as (app, pilot):
        shown.give(endpoints.STATUS, NotReady("meshd has just started", "try again"))
        await until(pilot, lambda: "does not answer" in text_of(app))
        assert table(app, "nodes").row_count == 3, "what was known stays"
        shown.give(endpoints.STATUS, STATUS)
        await until(pilot, lambda: "does not answer" not in text_of(app))


async def test_money_that_cannot_be_read_hides_nothing_else(shown: SimHead, socket_path: Path, served: SimHead) -> None:
    shown.give(endpoints.COST, Refused("the ledger is locked", "wait"))
    async with HeadClient(socket_path) as head:
        app = TopApp(head, every_s=0.1)
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: table(app, "nodes").row_count == 3)
            assert app.board.cost is None and app.board.error == ""


def test_it_needs_a_terminal(head: SimHead, served: SimHead, meshctl: Meshctl, socket_path: Path) -> None:
    ran = meshctl("top")
    assert ran.code == 2 and "terminal" in ran.err
    code, text = on_terminal(socket_path, ["top"], "", TERM="dumb")
    assert code == 2 and "\x1b" not in text


async def test_a_thousand_nodes(shown: SimHead, served: SimHead, socket_path: Path) -> None:
    rows = [
        NODES.nodes[0].model_copy(
            update={"machine": f"lab-a100-{index}-k7q2m1", "slot": f"a100-{index}", "since": NOW - timedelta(index)}
        )
        for index in range(1, 1001)
    ]
    shown.give(endpoints.NODES, NODES.model_copy(update={"nodes": rows}))
    async with running(socket_path, every_s=60) as (app, pilot):
        await pilot.press("ctrl+end")
        await until(pilot, lambda: table(app, "nodes").chosen == rows[-1].machine and "a100-1000" in text_of(app))
