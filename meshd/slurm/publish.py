"""I/O: bring a rendered configuration into force in a running slurmctld, or put everything back.

Nothing else has nodes.conf and gres.conf written. Changes are gated by content, checked against what Slurm shows,
written whole, put in force one at a time, and verified; what Slurm does not take is undone. When a change is asked for,
so that a burst is few of them, is up to the caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

import structlog

from meshd.errors import CommandTimeout, MeshdError, SlurmError, SlurmRefused
from meshd.model.observed import SlurmView
from meshd.runtime.clock import Clock
from meshd.slurm.capabilities import Capabilities
from meshd.slurm.checks import (
    missing_in_force,
    node_set_changes,
    refuse_if_garbled,
    refuse_if_named,
    shapes_differ,
    unsafe_slots,
)
from meshd.slurm.client import SlurmClient
from meshd.slurm.culprits import Culprits
from meshd.slurm.files import SlurmFiles, Texts
from meshd.slurm.node_lines import Lines
from meshd.slurm.nodes import Rendered, holding, read_joined, read_lines
from meshd.slurm.retained import leaving_of_texts

VERIFY_TIMEOUT_S = 20.0
"""How long slurmctld may take until it shows the new addresses (10,000 nodes: about 4 s)."""

DEAD_AFTER_S = 3.0
"""slurmctld that answers no ping for this long is taken for dead."""

START_S = 10.0
"""But one that was just restarted may take this long until it answers: 0.4 s with few nodes on a quiet head, more with
many nodes or on a busy one."""

POLL_S = 0.1
JOB_SETTLE_S = 6
"""A job start is in slurmctld's saved state after this; a restart before that can lose it."""

JOB_SETTLE_MAX_S = 60.0
REFUSED_RETRY_S = 10.0
"""A refused content is tried again after this; each refusal in a row doubles the pause."""

REFUSED_RETRY_MAX_S = 300.0

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
        last_words: Callable[[], Awaitable[str]] | None = None,
        changed: Callable[[], None] = lambda: None,
        wait_until_quiet: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Read what is in force from the files.

        Args:
            files: where they are.
            client: the slurmctld that reads them.
            clock: for the polling.
            restart: ends slurmctld gracefully if it runs and starts it; may raise MeshdError.
            last_words: the end of slurmctld's log in short (`show.complaints`), asked for after a refusal.
            changed: called when something came into force, and after each failure.
            wait_until_quiet: returns when slurmctld may be asked to read its files. Of the requests that come in the
                meantime the newest wins.

        Raises:
            OSError: the files cannot be read.
        """
        self._files = files
        self._client = client
        self._clock = clock
        self._restart = restart
        self._last_words = last_words
        self._changed = changed
        self._wait_until_quiet = wait_until_quiet
        self._lock = asyncio.Lock()
        self._wake = asyncio.Event()
        self._wanted: Rendered | None = None
        self._busy = False
        self._refused = ""
        self._refused_until_s = self._refused_pause_s = 0.0
        self._reconfigures = self._restarts = self._refusals = 0
        self._last_applied_at: datetime | None = None
        self._last_error = ""
        good = files.good()
        self._applied_digest = good.digest if good else ""
        self._published: Mapping[str, str] = read_joined(good.nodes) if good else {}
        self.nodes_conf = good.nodes if good else ""
        """The nodes.conf that is in force."""
        self.lines: Mapping[str, Lines] = read_lines(good.nodes, good.gres) if good else {}
        self.unsafe: Mapping[str, str] = {}
        self.culprits = Culprits(clock)

    @property
    def published(self) -> Mapping[str, str]:
        """The address of every slot whose joined line is in force."""
        return self._published

    def status(self) -> PublishStatus:
        """How it stands."""
        return PublishStatus(
            reconfigures=self._reconfigures,
            restarts=self._restarts,
            refusals=self._refusals,
            last_applied_at=self._last_applied_at,
            problems=tuple(text for text in (self._last_error, self._edit_problem()) if text),
            pending=self._wanted is not None or self._busy,
        )

    def request(self, wanted: Rendered) -> None:
        """Ask for this content; the newest request wins. Cheap: call it on every tick."""
        if self._wanted is not None:
            if self._wanted.digest == wanted.digest:
                return
        elif self._is_applied(wanted):
            if not self._busy:
                self._last_error = ""  # what failed is not wanted any more
            return
        elif self._is_held_back(wanted):
            return
        self._wanted = wanted
        self._wake.set()

    async def run(self) -> None:
        """Serve requests for ever."""
        while True:
            await self._wake.wait()
            await self._until_quiet()
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
                if self._is_applied(wanted):
                    self._last_error, self.unsafe = "", {}
                    return False
                wanted = self.culprits.left_out(wanted, self.lines)
                if self._is_applied(wanted):
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

    async def _apply_most(self, wanted: Rendered) -> None:
        """Put it in force, without the machines whose lines Slurm does not take."""
        try:
            await self._apply(wanted)
        except SlurmRefused:
            if not await self.culprits.search(wanted, self.lines, self._takes):
                raise
            for slot, why in self.culprits.reasons.items():
                log.error("slurm_refuses_a_machine", slot=slot, reason=why)

    async def _takes(self, content: Rendered) -> str:
        try:
            if not self._is_applied(content):
                await self._apply(content)
        except SlurmRefused as error:
            return str(error)
        except SlurmError:
            if not self.unsafe:  # those keep their lines: that is no refusal
                raise
        return ""

    async def _apply(self, wanted: Rendered) -> None:
        back = await self._begin_from_last_good()
        capabilities = await self._client.capabilities()
        view = await self._client.view()
        refuse_if_garbled(wanted)
        wanted = self._with_unsafe_held(wanted, view, back)
        if self._is_applied(wanted):
            return
        leaving = leaving_of_texts(wanted.nodes_conf, back.nodes)
        if leaving:
            refuse_if_named(leaving, view, await self._client.reservations())
        restart = self._needs_restart(wanted, view, back, capabilities)
        if restart:
            await self._wait_for_saved_jobs()
        await self._until_quiet()
        texts = Texts(wanted.nodes_conf, wanted.gres_conf)
        await self._files.install(texts)
        why = await self._put_in_force(wanted, restart=restart)
        if why:
            await self._put_back(back, wanted, why)
        self._applied_digest = texts.digest
        self._published = dict(wanted.joined)
        self.nodes_conf = wanted.nodes_conf
        self.lines = read_lines(texts.nodes, texts.gres)
        self._last_applied_at = self._clock.now()
        self._refused = ""
        self._changed()
        self._files.mark_good(texts)

    def _with_unsafe_held(self, wanted: Rendered, view: SlurmView, back: Texts) -> Rendered:
        """The content with the slots as they are that may have jobs; all other changes go on.

        Raises:
            SlurmError: nothing else is to be changed, or such a slot has no line of ours that it could keep.
        """
        self.unsafe = unsafe_slots(wanted, view, back.nodes)
        if not self.unsafe:
            return wanted
        lines = read_lines(back.nodes, back.gres)
        reasons = "; ".join(self.unsafe.values())
        if wanted.source is None or not self.unsafe.keys() <= lines.keys():
            raise SlurmError(reasons)
        merged = holding(wanted, lines, self.unsafe.keys())
        refuse_if_garbled(merged)
        if self._is_applied(merged):
            raise SlurmError(reasons)
        return merged

    async def _begin_from_last_good(self) -> Texts:
        """The last good files, back in place when they are not: an edit or a crash may have left what nobody can parse.

        Slurm's commands parse the files too: with broken ones nothing could be asked.
        """
        current = self._files.current()
        back = self._files.good() or current
        if self._files.hand_edited():
            log.warning("slurm_files_hand_edited", directory=str(self._files.directory))
            self._files.keep_edit()
        if back != current:
            await self._files.install(back)
        return back

    def _needs_restart(self, wanted: Rendered, view: SlurmView, back: Texts, capabilities: Capabilities) -> bool:
        """Slurm before 23.11 ends with fatal() on a reconfigure with another node set."""
        if node_set_changes(wanted, view, back.nodes) and capabilities.restart_when_node_set_changes:
            return True
        return not capabilities.may_change_shapes and shapes_differ(wanted.nodes_conf, back.nodes)

    async def _until_quiet(self) -> None:
        if self._wait_until_quiet is not None:
            await self._wait_until_quiet()

    async def _wait_for_saved_jobs(self) -> None:
        """Wait until the last job start is old enough to be in slurmctld's saved state; bounded on a busy cluster."""
        end = self._clock.monotonic_s() + JOB_SETTLE_MAX_S
        while self._clock.monotonic_s() < end:
            age_s = await self._client.youngest_job_s()
            if age_s is None or age_s >= JOB_SETTLE_S:
                return
            await self._clock.sleep(JOB_SETTLE_S - age_s)

    async def _put_in_force(self, wanted: Rendered, *, restart: bool) -> str:
        """Make slurmctld read the files. Returns Slurm's words when it did not take them, else ""."""
        answered = False
        if restart:
            self._restarts += 1
            try:
                await self._restart()
            except MeshdError as error:
                return str(error)
        else:
            self._reconfigures += 1
            try:
                await self._client.reconfigure()
                answered = True
            except SlurmError as error:
                # After a timeout it may have happened: the verification tells. Any other answer is a refusal.
                if not isinstance(error.__cause__, CommandTimeout):
                    return str(error)
        return await self._not_in_force(wanted, alive=answered, silent_s=START_S if restart else DEAD_AFTER_S)

    async def _not_in_force(self, wanted: Rendered, *, alive: bool, silent_s: float) -> str:
        """Why the new addresses are not what slurmctld shows; "" once they are.

        Args:
            wanted: what was published.
            alive: slurmctld has just answered: it need not be pinged before it is asked.
            silent_s: it may be silent for so long until it answers first; DEAD_AFTER_S from then on.
        """
        start = answered = self._clock.monotonic_s()
        while True:
            try:
                if alive or await self._client.ping():
                    answered, silent_s = self._clock.monotonic_s(), DEAD_AFTER_S
                    why = missing_in_force(wanted, await self._client.nodes())
                    if not why:
                        return ""
                else:
                    why = "slurmctld ended"
            except SlurmError as error:
                why = str(error)
            alive = False
            now = self._clock.monotonic_s()
            if now - answered > silent_s or now - start > VERIFY_TIMEOUT_S:
                return why
            await self._clock.sleep(POLL_S)

    async def _put_back(self, back: Texts, wanted: Rendered, why: str) -> None:
        """Restore the last good files, bring slurmctld back to them, and raise."""
        words = await self._ask_last_words()
        await self._files.install(back)
        self._refusals += 1
        self._hold_back(wanted)
        after = "the last good configuration is back"
        try:
            if await self._alive():
                await self._client.reconfigure()
            else:
                self._restarts += 1
                await self._restart()
                if not await self._comes_alive():
                    after += ", but slurmctld does not start: see its log"
        except MeshdError as error:
            after += f", but slurmctld does not take it either: {error}"
        raise SlurmRefused("; ".join(text for text in (f"Slurm refused: {why}", words, after) if text))

    async def _ask_last_words(self) -> str:
        return await self._last_words() if self._last_words else ""

    async def _alive(self) -> bool:
        """Whether slurmctld answers, as far as can be told: with a file that scontrol cannot parse it says nothing."""
        with suppress(SlurmError):
            return await self._client.ping()
        return True

    async def _comes_alive(self) -> bool:
        end = self._clock.monotonic_s() + VERIFY_TIMEOUT_S
        while not await self._alive():
            if self._clock.monotonic_s() > end:
                return False
            await self._clock.sleep(POLL_S)
        return True

    def _is_applied(self, wanted: Rendered) -> bool:
        return wanted.digest == self._applied_digest and self._files.current_digest() == wanted.digest

    def _is_held_back(self, wanted: Rendered) -> bool:
        """Slurm refused this very content a moment ago."""
        return self._refused == wanted.digest and self._clock.monotonic_s() < self._refused_until_s

    def _hold_back(self, wanted: Rendered) -> None:
        again = self._refused == wanted.digest
        pause_s = min(2 * self._refused_pause_s, REFUSED_RETRY_MAX_S) if again else REFUSED_RETRY_S
        self._refused, self._refused_pause_s = wanted.digest, pause_s
        self._refused_until_s = self._clock.monotonic_s() + pause_s

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
