"""Background tasks that are watched: one that ends by surprise is told, never lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

log = structlog.get_logger(__name__)


async def keep_running(name: str, body: Callable[[], Awaitable[None]], *, pause_s: float = 1.0) -> None:
    """Run `body` for ever: a failure is logged with its trace and it starts again after a growing pause.

    This is the one place besides the API boundary where any exception is caught.
    """
    failures = 0
    while True:
        try:
            await body()
        except asyncio.CancelledError:
            raise
        except Exception:
            failures += 1
            log.exception("task_failed", task=name, failures=failures)
        else:
            failures = 0
            log.warning("task_ended", task=name)
        await asyncio.sleep(min(pause_s * 2 ** min(failures, 6), 60.0))
