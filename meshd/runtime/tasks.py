"""Background tasks: one that fails or ends is logged and started again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from meshd.runtime.backoff import backoff_s
from meshd.runtime.clock import Clock

RETRY_FIRST_S = 1.0
RETRY_MAX_S = 60.0

log = structlog.get_logger(__name__)


async def keep_running(name: str, body: Callable[[], Awaitable[None]], clock: Clock) -> None:
    """Run `body` until cancelled. Logs a failure with its traceback, and starts `body` again after a growing pause.

    Only this function and the API boundary catch every exception.
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
        await clock.sleep(backoff_s(failures, RETRY_FIRST_S, RETRY_MAX_S))
