"""Runs the checks of `meshctl doctor` that only the daemon can make. Each has its own deadline; none raises."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime

import structlog

from meshd.api.schema import CheckRow
from meshd.codes import ProblemCode
from meshd.daemon.reporting import Check, fail, warn
from meshd.errors import MeshdError

CHECK_TIMEOUT_S = 20.0
LOOK_TIMEOUT_S = 8.0
"""Doctor has Slurm and the tailnet read again. What does not answer within this is shown with the age of its last
answer."""

log = structlog.get_logger(__name__)


class Doctor:
    """Runs all checks side by side.

    Args:
        checks: what there is to check, in the order in which the rows are shown.
        look: reads Slurm and the tailnet again; None: a row shows what was read last.
        now: UTC.
    """

    def __init__(
        self,
        checks: Callable[[], Iterable[Check]],
        *,
        look: Callable[[], Awaitable[object]] | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._checks = checks
        self._look = look
        self._now = now

    async def __call__(self) -> list[CheckRow]:
        """All rows, in the order of the checks."""
        began, checks = self._now(), list(self._checks())
        looked = asyncio.ensure_future(self._look_again())
        rows = await asyncio.gather(*(self._dated(check, looked, began) for check in checks), return_exceptions=True)
        return [_row_of(check.title, row) for check, row in zip(checks, rows, strict=True)]

    async def _look_again(self) -> None:
        if self._look is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_TIMEOUT_S):
                await self._look()

    async def _dated(self, check: Check, looked: asyncio.Future[None], began: datetime) -> CheckRow:
        """The row, with the time of its answer."""
        row = await check.at_once() if check.at_once is not None else None
        if row is None:
            if check.reads:
                await asyncio.wait({looked})
            row = await _run(check)
        if row.at is None:
            return row.model_copy(update={"at": self._now()})
        if self._look is None or row.at >= began or row.status != "ok":
            return row
        old_s = (self._now() - row.at).total_seconds()
        text = f"no answer within {LOOK_TIMEOUT_S:g} s; {old_s:.0f} s ago: {row.text}"
        return warn(row.name, ProblemCode.CHECK_ANSWER_OLD, text, _see(check)).model_copy(update={"at": row.at})


def _row_of(title: str, row: CheckRow | BaseException) -> CheckRow:
    """A fault of our own in one check keeps no other from being seen."""
    if isinstance(row, CheckRow):
        return row
    log.error("check_broke", check=title, exc_info=row)
    text = f"a fault inside meshd: {type(row).__name__}"
    return fail(title, ProblemCode.MESHD_FAULT, text, "see `journalctl -u meshd`")


async def _run(check: Check) -> CheckRow:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            return await check.run()
    except MeshdError as error:
        return fail(check.title, check.failed, str(error), _see(check))
    except TimeoutError:
        return fail(check.title, ProblemCode.CHECK_TIMED_OUT, f"no answer within {CHECK_TIMEOUT_S:g} s", _see(check))


def _see(check: Check) -> str:
    return f"see docs/troubleshooting.md, {check.title}"
