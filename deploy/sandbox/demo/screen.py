"""What the demonstration shows: stages with their times, live on a terminal, as plain lines elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.status import Status

_REPEAT_S = 5.0
_WIDTH = 120
"""Of tables in a file or a pipe."""


class Screen:
    """Where all output goes. It also remembers the lines, for the log.

    Attributes:
        console: rich's.
        stages: title and seconds of each stage that ended well.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        if not self.console.is_terminal:
            self.console.width = max(self.console.width, _WIDTH)
        self.stages: list[tuple[str, float]] = []
        self.lines: list[str] = []
        self._begun_s = time.monotonic()
        self._title = ""
        self._note = ""
        self._status: Status | None = None

    def line(self, text: str = "", style: str = "") -> None:
        """One line of a program's output, as it is."""
        self.lines.append(text)
        self.console.print(text, style=style or None, markup=False, soft_wrap=True)

    def block(self, text: str) -> None:
        """A program's whole output, indented."""
        for row in text.splitlines():
            self.line(f"    {row}")

    def show(self, what: RenderableType) -> None:
        """A table or the like."""
        with self.console.capture() as shown:
            self.console.print(what)
        self.lines += shown.get().splitlines()
        self.console.print(what)

    def note(self, text: str) -> None:
        """What the present stage is at."""
        self._note = text
        self.lines.append(f"    {text}")
        if self._status:
            self._status.update(self._words())
        else:
            self.console.print(f"    {text}", markup=False, soft_wrap=True)

    @contextlib.asynccontextmanager
    async def stage(self, title: str, *, speaks: bool = False) -> AsyncIterator[None]:
        """Announce a stage, show that it lives (unless it speaks itself), and say how long it took."""
        begun_s = time.monotonic()
        self._title, self._note = title, ""
        self._stage_begun_s = begun_s
        if self.console.is_terminal:
            self._status = self.console.status(self._words())
            self._status.start()
        else:
            self.line(f"[{self._clock()}] {title} ...")
        ticker = asyncio.create_task(self._tick(speaks=speaks))
        try:
            yield
        finally:
            ticker.cancel()
            if self._status:
                self._status.stop()
            self._status = None
        took_s = time.monotonic() - begun_s
        self.stages.append((title, took_s))
        self.line(f"[{self._clock()}] {title}: done in {took_s:.1f} s", "green")

    def _words(self) -> str:
        took_s = time.monotonic() - self._stage_begun_s
        return f"[bold]{escape(self._title)}[/] {took_s:3.0f} s  [dim]{escape(self._note)}[/]"

    def _clock(self) -> str:
        return f"{time.monotonic() - self._begun_s:6.1f}s"

    async def _tick(self, *, speaks: bool) -> None:
        shown = len(self.lines)
        while True:
            await asyncio.sleep(0.5 if self._status else _REPEAT_S)
            if self._status:
                self._status.update(self._words())
            elif not speaks and shown == len(self.lines):
                took_s = time.monotonic() - self._stage_begun_s
                self.console.print(f"    still at it after {took_s:.0f} s", markup=False)
            shown = len(self.lines)
