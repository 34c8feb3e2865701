"""The live view: pools above, tabs of nodes, jobs, events and problems below."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import ClassVar

from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Footer, RichLog, Static, Tab, TabbedContent, TabPane

from meshd.api import endpoints
from meshd.api.schema import DrainRequest, MachineAnswer
from meshd.cli.client import HeadClient
from meshd.cli.errors import CliError
from meshd.cli.render.status import event
from meshd.cli.render.terminal import clean_text
from meshd.cli.top import tables
from meshd.cli.top.board import Board
from meshd.cli.top.feed import EVENTS_MAX, Feed
from meshd.cli.top.live_table import LiveTable
from meshd.cli.top.screens import AskScreen, ExplainScreen, LogScreen
from meshd.cli.top.summary import PROBLEMS_SHOWN, problems, summary
from meshd.runtime.clock import Clock, SystemClock

TABS = ("nodes", "jobs", "events", "problems")
SIDES = 2
"""Columns that the summary leaves free."""
_RETRY_S = 2.0


class TopApp(App[None]):
    """Asks the daemon every `every_s` seconds, and shows what it says.

    Args:
        head: the daemon.
        every_s: seconds between two rounds of questions.
        clock: this host's.
    """

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #summary, #short { height: auto; padding: 0 1; }
    #short { text-wrap: nowrap; text-overflow: ellipsis; }
    #pools { height: auto; max-height: 8; }
    TabbedContent { height: 1fr; }
    TabPane { padding: 0; }
    #nodes, #jobs, #events { height: 1fr; }
    AskScreen { align: center middle; }
    #ask { width: 70; max-width: 100%; height: auto; padding: 1 2; border: round $primary; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(f"{number}", f"tab('{name}')", name.title(), show=False) for number, name in enumerate(TABS, 1)),
        Binding("enter", "open", "Explain"),
        Binding("l", "logs", "Logs"),
        Binding("d", "drain", "Drain"),
        Binding("u", "undrain", "Undrain"),
        Binding("s", "sort", "Sort"),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("q", "quit", "Quit"),
    ]

    def __init__(self, head: HeadClient, *, every_s: float = 2.0, clock: Clock | None = None) -> None:
        super().__init__()
        self._head, self._every_s, self._clock = head, every_s, clock or SystemClock()
        self._feed = Feed(head, self._clock)
        self._words = {"nodes": "", "jobs": ""}
        self._order = {"nodes": "", "jobs": ""}
        self._summary, self._short, self._problems = (Static(id=name) for name in ("summary", "short", "problems"))
        self._pools = LiveTable(tables.POOLS, id="pools")
        self._tables = {"nodes": LiveTable(tables.NODES, id="nodes"), "jobs": LiveTable(tables.JOBS, id="jobs")}
        self._events = RichLog(id="events", max_lines=EVENTS_MAX, wrap=True, markup=False)
        self._tabs = TabbedContent(initial="tab-nodes")
        self._labels: dict[str, Tab] = {}

    def compose(self) -> ComposeResult:
        """The summary, the problems, the pools, the tabs and the keys."""
        yield self._summary
        yield self._short
        yield self._pools
        with self._tabs:
            inside = {**self._tables, "events": self._events, "problems": self._problems}
            for number, name in enumerate(TABS, 1):
                with TabPane(f"{number} {name.title()}", id=f"tab-{name}"):
                    yield inside[name]
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Begin to ask."""
        self._pools.can_focus = False
        self._tables["nodes"].focus()
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        self._labels = {name: self._tabs.get_tab(f"tab-{name}") for name in self._tables}
        self.run_worker(self._rounds(), group="rounds")
        self.run_worker(self._follow(), group="events")

    async def _rounds(self) -> None:
        while True:
            await self._feed.round()
            self.draw()
            await self._clock.sleep(self._every_s)

    async def _follow(self) -> None:
        while True:
            try:
                view = await self._feed.events()
            except CliError:
                # The summary says that the daemon does not answer.
                await self._clock.sleep(_RETRY_S)
                continue
            for row in view.events:
                self._events.write(clean_text(event(row)))
            # With nothing to write, give others their turn: the daemon may answer at once.
            await asyncio.sleep(0)

    # -- drawing --------------------------------------------------------------------------------------------------

    @property
    def board(self) -> Board:
        """What is known."""
        return self._feed.board

    def draw(self) -> None:
        """Show what is known."""
        board, width = self.board, self.size.width
        self._summary.update(summary(board, self._clock.now(), width - SIDES))
        self._short.update(problems(board.status, most=PROBLEMS_SHOWN))
        self._short.display = bool(board.status and board.status.problems) and self._tab != "problems"
        self._problems.update(problems(board.status))
        self._pools.show(tables.pools(board), width)
        there = {"nodes": len(board.machines), "jobs": len(board.jobs.jobs) if board.jobs else 0}
        for name, make in (("nodes", tables.nodes), ("jobs", tables.jobs)):
            count = there[name]
            # A thousand lines that nobody sees would take as long as those that somebody does.
            if name == self._tab or self._words[name]:
                shown = tables.select(make(board), words=self._words[name], order=self._order[name])
                count = len(shown)
                if name == self._tab:
                    self._tables[name].show(shown, width)
            self._title(name, count, there[name])

    def _title(self, name: str, shown: int, there: int) -> None:
        more = [f"{shown} of {there} with {self._words[name]!r}"] if self._words[name] else [f"{there}"]
        more += [f"by {self._order[name]}"] if self._order[name] else []
        tab = self._labels[name]
        label = f"{TABS.index(name) + 1} {name.title()} ({', '.join(more)})"
        if f"{tab.label}" != label:
            # A string would be read as markup.
            tab.label = Content(label)

    def on_resize(self, _event: events.Resize) -> None:
        """The terminal has another size: other columns may fit."""
        if self.board.status is not None:
            self.draw()

    # -- keys -----------------------------------------------------------------------------------------------------

    @property
    def _tab(self) -> str:
        return self._tabs.active.removeprefix("tab-")

    def _chosen(self, name: str) -> str:
        """The key of the line under the cursor, where that tab is open."""
        return self._tables[name].chosen if self._tab == name else ""

    def action_tab(self, name: str) -> None:
        """Open a tab."""
        self._tabs.active = f"tab-{name}"
        if name in self._tables:
            self._tables[name].focus()

    def on_tabbed_content_tab_activated(self, _event: TabbedContent.TabActivated) -> None:
        """By a key or by a click."""
        if self.board.status is not None:
            self.draw()

    def on_data_table_row_selected(self, _event: LiveTable.RowSelected) -> None:
        """Enter, or a click on the line under the cursor."""
        self.action_open()

    def action_open(self) -> None:
        """Explain a node or a job that waits; of a job that runs, show the nodes."""
        if machine := self._chosen("nodes"):
            self.push_screen(ExplainScreen(self._head, machine))
        elif job := self._chosen("jobs"):
            rows = self.board.jobs.jobs if self.board.jobs else []
            if any(row.job == job and row.state == "RUNNING" for row in rows):
                self._words["nodes"] = job
                self.action_tab("nodes")
                self.draw()
            else:
                self.push_screen(ExplainScreen(self._head, job))

    def action_logs(self) -> None:
        """Follow the logs of a node."""
        if machine := self._chosen("nodes"):
            self.push_screen(LogScreen(self._head, machine))

    def action_sort(self) -> None:
        """Take the next order."""
        orders = {"nodes": tables.NODE_ORDERS, "jobs": tables.JOB_ORDERS}.get(self._tab)
        if orders:
            now = orders.index(self._order[self._tab])
            self._order[self._tab] = orders[(now + 1) % len(orders)]
            self.draw()

    def action_filter(self) -> None:
        """Ask for the words that lines must have."""
        name = self._tab
        if name not in self._words:
            return

        def filtered(words: str | None) -> None:
            if words is not None:
                self._words[name] = words.strip()
                self.draw()

        self.push_screen(AskScreen(f"Show only {name} with these words (none shows all)", self._words[name]), filtered)

    def action_drain(self) -> None:
        """Ask for a reason, and drain a node."""
        if machine := self._may_change():

            def answered(reason: str | None) -> None:
                if reason is not None:
                    request = DrainRequest(machine=machine, reason=reason)
                    self._change(lambda: self._head.call(endpoints.DRAIN, request))

            self.push_screen(AskScreen(f"Drain {machine}: no new jobs, running jobs go on. Why?"), answered)

    def action_undrain(self) -> None:
        """Let a node take jobs again."""
        if machine := self._may_change():
            request = DrainRequest(machine=machine)
            self._change(lambda: self._head.call(endpoints.UNDRAIN, request))

    def _may_change(self) -> str:
        """The node under the cursor; "" where there is none, or this user may not change it."""
        machine = self._chosen("nodes")
        if machine and self.board.may_write is False:
            self._say("only root and the members of meshd's group may drain nodes", failed=True)
            return ""
        return machine

    def _change(self, call: Callable[[], Awaitable[MachineAnswer]]) -> None:
        async def do() -> None:
            try:
                answer = await call()
            except CliError as error:
                self._say(f"{error.message}. {error.cure}".rstrip(". "), failed=True)
                return
            self._say("; ".join((answer.text, *answer.warnings)))
            await self._feed.round()
            self.draw()

        self.run_worker(do(), group="changes")

    def _say(self, text: str, *, failed: bool = False) -> None:
        self.notify(clean_text(text).plain, severity="error" if failed else "information", markup=False)
