"""Tells a waiting person what is going on, with the time that has passed."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

_QUIET_S = 10.0
_LINE_WIDTH = 90

_started = time.monotonic()


def say(message: str) -> None:
    """Print one line to standard error, with the seconds since this program started."""
    print(f"  [{time.monotonic() - _started:5.1f}s] {message}", file=sys.stderr, flush=True)


@contextlib.asynccontextmanager
async def step(title: str, log: Path | None = None, speak: Callable[[str], None] = say) -> AsyncIterator[None]:
    """Announce a step, repeat what it is at while it lasts, and say how long it took.

    Args:
        title: what is being done, in plain words.
        log: a file that the step writes to; its last line is shown while the step lasts.
        speak: where the lines go.
    """
    begun = time.monotonic()
    speak(f"{title} ...")
    ticker = asyncio.create_task(_tick(title, log, speak))
    try:
        yield
    finally:
        ticker.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ticker
    speak(f"{title}: done in {time.monotonic() - begun:.1f} s")


async def _tick(title: str, log: Path | None, speak: Callable[[str], None]) -> None:
    while True:
        await asyncio.sleep(_QUIET_S)
        speak(f"{title}: {last_line(log)}" if log else f"{title}: still at it")


def last_line(log: Path) -> str:
    """The last line of a file that has something in it, cut to a terminal's width."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 4096))
            lines = file.read().decode(errors="replace").replace("\r", "\n").splitlines()
    except FileNotFoundError:
        return ""
    return next((line.strip()[:_LINE_WIDTH] for line in reversed(lines) if line.strip()), "")
