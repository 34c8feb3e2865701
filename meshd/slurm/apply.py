"""I/O: bring one content into force in a running slurmctld, check that it is, or put the last good one back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime

import structlog

from meshd.errors import CommandTimeout, MeshdError, SlurmError, SlurmRefused
from meshd.model.observed import SlurmView
from meshd.runtime.clock import Clock
from meshd.slurm.capabilities import SlurmCapabilities
from meshd.slurm.checks import (
    missing_in_force,
    node_set_changes,
    refuse_if_garbled,
    refuse_if_named,
    shapes_differ,
    unsafe_slots,
)
from meshd.slurm.client import SlurmClient
from meshd.slurm.files import SlurmFiles, Texts
from meshd.slurm.node_lines import Lines
from meshd.slurm.nodes import Rendered, holding, read_lines, read_node_addrs
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


class Refusals:
    """Contents that Slurm refused: how many, and how long the last one is not tried again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._digest = ""
        self._until_s = self._pause_s = 0.0
        self.count = 0

    def note(self, content: Rendered) -> None:
        """Slurm refused this content."""
        self.count += 1
        again = self._digest == content.digest
        self._pause_s = min(2 * self._pause_s, REFUSED_RETRY_MAX_S) if again else REFUSED_RETRY_S
        self._digest = content.digest
        self._until_s = self._clock.monotonic_s() + self._pause_s

    def holds_back(self, content: Rendered) -> bool:
        """Slurm refused this very content a moment ago."""
        return self._digest == content.digest and self._clock.monotonic_s() < self._until_s

    def clear(self) -> None:
        """Slurm took a content."""
        self._digest = ""


class Applier:
    """Puts contents in force, one at a time; its caller sees to that.

    Args:
        files: where the files are.
        client: the slurmctld that reads them.
        clock: for the polling.
        restart: ends slurmctld gracefully if it runs and starts it; may raise MeshdError.
        last_errors: the end of slurmctld's log in short (`show.last_errors`), asked for after a refusal.
        wait_until_quiet: returns when slurmctld may be asked to read its files.

    Attributes:
        reconfigures, restarts: how often Slurm was made to read its files.
        refusals: contents that Slurm did not take.
        node_addrs: the address of every slot whose joined line is in force.
        nodes_conf: the nodes.conf that is in force.
        lines: its lines, with those of gres.conf.
        unsafe: slots that keep their line although another is wanted, each with why: jobs may run there.
        last_applied_at: when Slurm took a content last.

    Raises:
        OSError: the files cannot be read.
    """

    def __init__(
        self,
        files: SlurmFiles,
        client: SlurmClient,
        clock: Clock,
        restart: Callable[[], Awaitable[None]],
        last_errors: Callable[[], Awaitable[str]] | None,
        wait_until_quiet: Callable[[], Awaitable[None]] | None,
    ) -> None:
        self._files = files
        self._client = client
        self._clock = clock
        self._restart = restart
        self._last_errors = last_errors
        self._wait_until_quiet = wait_until_quiet
        self.reconfigures = self.restarts = 0
        self.refusals = Refusals(clock)
        self.last_applied_at: datetime | None = None
        good = files.good()
        self._applied_digest = good.digest if good else ""
        self.node_addrs: Mapping[str, str] = read_node_addrs(good.nodes) if good else {}
        self.nodes_conf = good.nodes if good else ""
        self.lines: Mapping[str, Lines] = read_lines(good.nodes, good.gres) if good else {}
        self.unsafe: Mapping[str, str] = {}

    def is_applied(self, content: Rendered) -> bool:
        """This content is in force, and in the files."""
        return content.digest == self._applied_digest and self._files.current_digest() == content.digest

    async def wait_until_quiet(self) -> None:
        """Return when slurmctld may be asked to read its files."""
        if self._wait_until_quiet is not None:
            await self._wait_until_quiet()

    async def apply(self, wanted: Rendered) -> bool:
        """Put this content in force, with the slots as they are that may have jobs.

        Returns:
            False when it was in force already.

        Raises:
            SlurmRefused: Slurm did not take it, and the last good one is back.
            SlurmError: it was not tried; nothing has changed.
            OSError: the files cannot be written.
        """
        back = await self._begin_from_last_good()
        capabilities = await self._client.capabilities()
        view = await self._client.view()
        refuse_if_garbled(wanted)
        wanted = self._with_unsafe_held(wanted, view, back)
        if self.is_applied(wanted):
            return False
        leaving = leaving_of_texts(wanted.nodes_conf, back.nodes)
        if leaving:
            refuse_if_named(leaving, view, await self._client.reservations())
        restart = self._needs_restart(wanted, view, back, capabilities)
        if restart:
            await self._wait_for_saved_jobs()
        await self.wait_until_quiet()
        texts = Texts(wanted.nodes_conf, wanted.gres_conf)
        await self._files.install(texts)
        why = await self._put_in_force(wanted, restart=restart)
        if why:
            await self._put_back(back, wanted, why)
        self._applied_digest = texts.digest
        self.node_addrs = dict(wanted.node_addrs)
        self.nodes_conf = wanted.nodes_conf
        self.lines = read_lines(texts.nodes, texts.gres)
        self.last_applied_at = self._clock.now()
        self.refusals.clear()
        self._files.mark_good(texts)
        return True

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
        if self.is_applied(merged):
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

    def _needs_restart(self, wanted: Rendered, view: SlurmView, back: Texts, capabilities: SlurmCapabilities) -> bool:
        """Slurm before 23.11 ends with fatal() on a reconfigure with another node set."""
        if node_set_changes(wanted, view, back.nodes) and capabilities.restart_when_node_set_changes:
            return True
        return not capabilities.may_change_shapes and shapes_differ(wanted.nodes_conf, back.nodes)

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
            self.restarts += 1
            try:
                await self._restart()
            except MeshdError as error:
                return str(error)
        else:
            self.reconfigures += 1
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
        errors = await self._ask_last_errors()
        await self._files.install(back)
        self.refusals.note(wanted)
        after = "the last good configuration is back"
        try:
            if await self._alive():
                await self._client.reconfigure()
            else:
                self.restarts += 1
                await self._restart()
                if not await self._comes_alive():
                    after += ", but slurmctld does not start: see its log"
        except MeshdError as error:
            after += f", but slurmctld does not take it either: {error}"
        raise SlurmRefused("; ".join(text for text in (f"Slurm refused: {why}", errors, after) if text))

    async def _ask_last_errors(self) -> str:
        return await self._last_errors() if self._last_errors else ""

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
