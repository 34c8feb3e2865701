"""Queues requests for Slurm's files: the newest request wins, and `apply.py` applies one at a time.

Only this module has nodes.conf and gres.conf written. The caller decides when to request a change, and thereby combines
a burst of changes. When Slurm refuses a machine's line, `refused_lines` finds it and leaves it out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

import structlog

from meshd.errors import SlotsKept, SlurmError, SlurmRefused
from meshd.runtime.clock import Clock
from meshd.slurm.apply import Applier
from meshd.slurm.client import SlurmClient
from meshd.slurm.files import SlurmFiles
from meshd.slurm.nodes import Rendered
from meshd.slurm.refused_lines import RefusedLines

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PublishStatus:
    """For `meshctl status` and the metrics.

    Attributes:
        problems: texts for people; empty while all is well.
        pending: a change waits, or is being applied.
    """

    reconfigures: int
    restarts: int
    refusals: int
    last_applied_at: datetime | None
    problems: tuple[str, ...]
    pending: bool


class Publisher:
    """Owns the files in `files.directory`."""

    def __init__(
        self,
        *,
        files: SlurmFiles,
        client: SlurmClient,
        clock: Clock,
        restart: Callable[[], Awaitable[None]],
        last_errors: Callable[[], Awaitable[str]] | None = None,
        changed: Callable[[], None] = lambda: None,
        wait_until_quiet: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Read the content in force from the files.

        Args:
            files: the files that slurmctld reads.
            client: queries slurmctld.
            clock: for polling.
            restart: stops slurmctld gracefully if it runs, and starts it; may raise MeshdError.
            last_errors: the last errors in slurmctld's log (`show.last_errors`); called after a refusal.
            changed: called after each content that Slurm accepted, and after each failure.
            wait_until_quiet: returns when slurmctld may reconfigure. The newest request that arrives in the meantime
                wins.

        Raises:
            OSError: the files cannot be read.
        """
        self._files = files
        self._changed = changed
        self._lock = asyncio.Lock()
        self._wake = asyncio.Event()
        self._wanted: Rendered | None = None
        self._busy = self._again = False
        self._last_error = ""
        self.applier = Applier(files, client, clock, restart, last_errors, wait_until_quiet)
        self.refused_lines = RefusedLines(clock)

    def status(self) -> PublishStatus:
        """Counters, problems, and whether a change is pending."""
        return PublishStatus(
            reconfigures=self.applier.reconfigures,
            restarts=self.applier.restarts,
            refusals=self.applier.refusals.count,
            last_applied_at=self.applier.last_applied_at,
            problems=tuple(text for text in (self._last_error, self._edit_problem()) if text),
            pending=self._wanted is not None or self._busy,
        )

    def request(self, wanted: Rendered) -> None:
        """Request this content; the newest request wins. Cheap enough for every tick."""
        if self._wanted is not None:
            if self._wanted.digest == wanted.digest:
                return
        elif self.applier.is_applied(wanted):
            if not self._busy:
                self._last_error = ""  # the content that failed is no longer requested
            return
        elif self.applier.refusals.holds_back(wanted):
            return
        self._wanted = wanted
        self._wake.set()

    def reconfigure(self) -> None:
        """Have slurmctld read everything again, although its files have not changed. A change does the same."""
        self._again = True
        self._wake.set()

    async def run(self) -> None:
        """Apply requests until cancelled."""
        while True:
            await self._wake.wait()
            await self.applier.wait_until_quiet()
            self._wake.clear()
            wanted, self._wanted = self._wanted, None
            again, self._again = self._again, False
            try:
                changed = wanted is not None and await self.apply(wanted)
                if again and not changed:
                    async with self._lock:
                        await self.applier.reconfigure()
            except SlotsKept as kept:
                log.info("slurm_lines_kept", reason=str(kept))
            except SlurmError as error:
                log.warning("slurm_publish_failed", error=str(error))

    async def apply(self, wanted: Rendered) -> bool:
        """Put this content in force now. Concurrent calls wait for each other.

        Returns:
            False when it was in force already.

        Raises:
            SlurmRefused: Slurm refused it, and the last good content is back.
            SlotsKept: `applier.unsafe` is all that differs from it.
            SlurmError: meshd did not try it; nothing has changed.
        """
        async with self._lock:
            self._busy = True
            try:
                if self.applier.is_applied(wanted):
                    self._last_error, self.applier.unsafe = "", {}
                    return False
                wanted = self.refused_lines.left_out(wanted, self.applier.lines)
                if self.applier.is_applied(wanted):
                    return False
                await self._apply_most(wanted)
            except OSError as error:
                text = (
                    f"{error.filename or self._files.directory} cannot be written ({error.strerror or error}): "
                    "slurmctld keeps running on the last good configuration; make room there (df), and meshd tries "
                    "again"
                )
                self._last_error = text
                self._changed()
                raise SlurmError(text) from error
            except SlotsKept:
                self._last_error = ""  # `applier.unsafe` says it
                self._changed()
                raise
            except SlurmError as error:
                self._last_error = str(error)
                self._changed()
                raise
            finally:
                self._busy = False
            self._last_error = ""
            return True

    async def _put(self, content: Rendered) -> None:
        if await self.applier.apply(content):
            self._changed()

    async def _apply_most(self, wanted: Rendered) -> None:
        """Apply it; if Slurm refuses, apply it without the machines whose lines Slurm refuses."""
        try:
            await self._put(wanted)
        except SlurmRefused:
            if not await self.refused_lines.search(wanted, self.applier.lines, self._takes):
                raise
            for slot, why in self.refused_lines.reasons.items():
                log.error("slurm_refuses_a_machine", slot=slot, reason=why)

    async def _takes(self, content: Rendered) -> str:
        try:
            if not self.applier.is_applied(content):
                await self._put(content)
        except SlurmRefused as error:
            return str(error)
        except SlurmError:
            if not self.applier.unsafe:  # slots that keep their lines are no refusal
                raise
        return ""

    def _edit_problem(self) -> str:
        if self._files.hand_edited():
            return (
                f"{self._files.directory}: nodes.conf or gres.conf was edited by hand; meshd puts its own back "
                f"and keeps the edit in {self._files.own}/*.edited"
            )
        if self._files.edit_kept():
            return (
                f"{self._files.directory}: nodes.conf or gres.conf was edited by hand; meshd's own is back and the "
                f"edit is kept: put what you need of it into slurm.conf or meshd.toml, then remove *.edited: "
                f"`rm {self._files.own}/*.edited`"
            )
        return ""
