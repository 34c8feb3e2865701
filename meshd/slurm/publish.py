"""Takes requests for Slurm's files, one content at a time; the newest request wins. `apply.py` puts each in force.

Nothing else has nodes.conf and gres.conf written. The caller decides when to request a change, so that a burst is few
of them. A machine whose line Slurm refuses is found and left out, and all others go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

import structlog

from meshd.errors import SlurmError, SlurmRefused
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
        problems: what a person must look at; empty while all is well.
        pending: a change waits or is being put in force.
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
        """Read what is in force from the files.

        Args:
            files: where they are.
            client: the slurmctld that reads them.
            clock: for the polling.
            restart: ends slurmctld gracefully if it runs and starts it; may raise MeshdError.
            last_errors: the end of slurmctld's log in short (`show.last_errors`), asked for after a refusal.
            changed: called when something came into force, and after each failure.
            wait_until_quiet: returns when slurmctld may be asked to read its files. Of the requests that come in the
                meantime the newest wins.

        Raises:
            OSError: the files cannot be read.
        """
        self._files = files
        self._changed = changed
        self._lock = asyncio.Lock()
        self._wake = asyncio.Event()
        self._wanted: Rendered | None = None
        self._busy = False
        self._last_error = ""
        self.applier = Applier(files, client, clock, restart, last_errors, wait_until_quiet)
        self.refused_lines = RefusedLines(clock)

    def status(self) -> PublishStatus:
        """How it stands."""
        return PublishStatus(
            reconfigures=self.applier.reconfigures,
            restarts=self.applier.restarts,
            refusals=self.applier.refusals.count,
            last_applied_at=self.applier.last_applied_at,
            problems=tuple(text for text in (self._last_error, self._edit_problem()) if text),
            pending=self._wanted is not None or self._busy,
        )

    def request(self, wanted: Rendered) -> None:
        """Ask for this content; the newest request wins. Cheap: call it on every tick."""
        if self._wanted is not None:
            if self._wanted.digest == wanted.digest:
                return
        elif self.applier.is_applied(wanted):
            if not self._busy:
                self._last_error = ""  # what failed is not wanted any more
            return
        elif self.applier.refusals.holds_back(wanted):
            return
        self._wanted = wanted
        self._wake.set()

    async def run(self) -> None:
        """Serve requests for ever."""
        while True:
            await self._wake.wait()
            await self.applier.wait_until_quiet()
            self._wake.clear()
            wanted, self._wanted = self._wanted, None
            if wanted is None:
                continue
            try:
                await self.apply(wanted)
            except SlurmError as error:
                log.warning("slurm_publish_failed", error=str(error))

    async def apply(self, wanted: Rendered) -> bool:
        """Put this content in force now. One at a time.

        Returns:
            False when it was in force already.

        Raises:
            SlurmRefused: Slurm did not take it, and the last good one is back.
            SlurmError: it was not tried; nothing has changed.
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
                    "slurmctld keeps running on the last good configuration; make room there (df), meshd tries again "
                    "by itself"
                )
                self._last_error = text
                self._changed()
                raise SlurmError(text) from error
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
        """Put it in force, without the machines whose lines Slurm does not take."""
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
            if not self.applier.unsafe:  # those keep their lines: that is no refusal
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
                f"edit is kept: put what is needed of it into slurm.conf or meshd.toml, then remove *.edited: "
                f"`rm {self._files.own}/*.edited`"
            )
        return ""
