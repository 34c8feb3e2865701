"""What opens over the tables: a node or job explained, the logs of a node, and a question."""

from __future__ import annotations

from typing import ClassVar

from rich.console import Group
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import Footer, Input, RichLog, Static

from meshd.api import endpoints
from meshd.api.schema import ExplainQuery, LogsQuery
from meshd.cli.client import HeadClient
from meshd.cli.commands.logs import FOLLOW_S, new_lines
from meshd.cli.errors import CliError
from meshd.cli.render.explain import explain
from meshd.cli.render.terminal import clean_text

LOG_LINES = 500
ANSWER_MAX = 200
"""Of a line of text: a reason for a drain may not be longer."""
_LOG_MAX = 5000


class FollowScreen(Screen[None]):
    """Shows an answer of the daemon, asked for again every few seconds.

    Args:
        head: the daemon.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,left", "dismiss", "Back")]

    def __init__(self, head: HeadClient) -> None:
        super().__init__()
        self._head = head

    def on_mount(self) -> None:
        """Ask at once."""
        self._follow()
        self.set_interval(FOLLOW_S, self._follow)

    def _follow(self) -> None:
        self.run_worker(self.ask(), exclusive=True)

    async def ask(self) -> None:
        """Ask once, and show the answer."""
        raise NotImplementedError


class ExplainScreen(FollowScreen):
    """What `meshctl explain` says of a subject.

    Args:
        head: the daemon.
        subject: a machine, slot, pool or job.
    """

    def __init__(self, head: HeadClient, subject: str) -> None:
        super().__init__(head)
        self._subject = subject
        self._text = Static()  # an answer may be there before it is in the scroll

    def compose(self) -> ComposeResult:
        """The text, and the keys."""
        with VerticalScroll():
            yield self._text
        yield Footer(show_command_palette=False)

    async def ask(self) -> None:
        """The present explanation takes the place of the last."""
        try:
            view = await self._head.call(endpoints.EXPLAIN, ExplainQuery(subject=self._subject))
        except CliError as error:
            self._text.update(clean_text(f"{error.message}\n{error.cure}", "bold red"))
            return
        self._text.update(Group(*explain(view)))


class LogScreen(FollowScreen):
    """The logs of a machine as they grow.

    Args:
        head: the daemon.
        machine: its name.
    """

    def __init__(self, head: HeadClient, machine: str) -> None:
        super().__init__(head)
        self._machine = machine
        self._seen: dict[str, list[str]] = {}
        self._shown = self._fault = ""

    def compose(self) -> ComposeResult:
        """The lines, and the keys."""
        yield RichLog(max_lines=_LOG_MAX, wrap=True, markup=False)
        yield Footer(show_command_palette=False)

    async def ask(self) -> None:
        """Add the lines that are new."""
        log = self.query_one(RichLog)
        try:
            view = await self._head.call(endpoints.LOGS, LogsQuery(machine=self._machine, lines=LOG_LINES))
        except CliError as error:
            if error.message != self._fault:
                log.write(clean_text(f"{error.message}\n{error.cure}", "bold red"))
            self._fault = error.message
            return
        self._fault = ""
        for row in view.logs:
            lines = row.text.splitlines()
            new = new_lines(self._seen.get(row.part, []), lines)
            self._seen[row.part] = lines
            if new and self._shown != row.part:
                log.write(clean_text(f"==> {row.part} <==", "bold"))
                self._shown = row.part
            for line in new:
                log.write(clean_text(line))


class AskScreen(ModalScreen[str | None]):
    """Asks for one line of text. Its result is None after Escape.

    Args:
        question: what to ask.
        answer: what stands there at first.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "Back")]

    def __init__(self, question: str, answer: str = "") -> None:
        super().__init__()
        self._question, self._first = question, answer

    def compose(self) -> ComposeResult:
        """The question above the line."""
        with Vertical(id="ask"):
            yield Static(clean_text(self._question))
            yield Input(self._first, max_length=ANSWER_MAX)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter was pressed."""
        self.dismiss(event.value)
