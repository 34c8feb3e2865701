"""I/O: apply new Slurm files: install them, make slurmctld read them, verify, and roll back when Slurm refuses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime

import structlog

from meshd.errors import CommandTimeout, MeshdError, SlotsKept, SlurmError, SlurmRefused
from meshd.model.observed import SlurmView
from meshd.runtime.clock import Clock
from meshd.slurm.capabilities import SlurmCapabilities
from meshd.slurm.checks import (
    kept_slots,
    leaves_power_saving,
    missing_in_force,
    node_set_changes,
    refuse_if_garbled,
    refuse_if_named,
    shapes_differ,
)
from meshd.slurm.client import SlurmClient
from meshd.slurm.files import SlurmFiles, Texts
from meshd.slurm.node_addrs import addrs_to_set
from meshd.slurm.node_lines import Lines
from meshd.slurm.nodes import Rendered, holding
from meshd.slurm.read_back import read_lines, read_node_addrs
from meshd.slurm.retained import leaving_of_texts

VERIFY_TIMEOUT_S = 20.0
"""How long slurmctld may take until it shows the new addresses (10,000 nodes: about 4 s)."""

DEAD_AFTER_S = 3.0
"""meshd takes slurmctld for dead when it answers no ping for this long."""

START_S = 10.0
"""A slurmctld that was just restarted may take this long to answer: 0.4 s with few nodes on a quiet head, more with
many nodes or on a busy head."""

POLL_S = 0.1
JOB_SETTLE_S = 6
"""After this time a job start is in slurmctld's saved state. An earlier restart can lose the job."""

JOB_SETTLE_MAX_S = 60.0
REFUSED_RETRY_S = 10.0
"""meshd tries a refused content again after this. Each consecutive refusal doubles the pause."""

REFUSED_RETRY_MAX_S = 300.0

log = structlog.get_logger(__name__)


class Refusals:
    """Counts the contents that Slurm refused, and holds the last one back for a pause."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._digest = ""
        self._until_s = self._pause_s = 0.0
        self.count = 0

    def note(self, content: Rendered) -> None:
        """Record that Slurm refused this content."""
        self.count += 1
        again = self._digest == content.digest
        self._pause_s = min(2 * self._pause_s, REFUSED_RETRY_MAX_S) if again else REFUSED_RETRY_S
        self._digest = content.digest
        self._until_s = self._clock.monotonic_s() + self._pause_s

    def holds_back(self, content: Rendered) -> bool:
        """Whether Slurm refused this same content less than a pause ago."""
        return self._digest == content.digest and self._clock.monotonic_s() < self._until_s

    def clear(self) -> None:
        """Record that Slurm accepted a content: nothing is held back."""
        self._digest = ""


class Applier:
    """Applies contents. Not safe for concurrent calls: `Publisher` holds a lock.

    Args:
        files: the files that slurmctld reads.
        client: queries slurmctld.
        clock: for polling.
        restart: stops slurmctld gracefully if it runs, and starts it; may raise MeshdError.
        last_errors: the last errors in slurmctld's log (`show.last_errors`); called after a refusal.
        wait_until_quiet: returns when slurmctld may reconfigure.

    Attributes:
        reconfigures, restarts: how often meshd made Slurm read its files.
        refusals: contents that Slurm refused.
        node_addrs: the address of every slot whose joined line is in force.
        nodes_conf, gres_conf: the texts that are in force.
        lines: its lines, with those of gres.conf.
        unsafe: by slot, why it keeps its old line for now: jobs may run there.
        last_applied_at: when Slurm last accepted a content.
        read_s: by the monotonic clock, when meshd last made Slurm read its files; None before that.

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
        self.read_s: float | None = None
        good = files.good()
        self._applied_digest = good.digest if good else ""
        self.node_addrs: Mapping[str, str] = read_node_addrs(good.nodes) if good else {}
        self.nodes_conf, self.gres_conf = (good.nodes, good.gres) if good else ("", "")
        self.lines: Mapping[str, Lines] = read_lines(good.nodes, good.gres) if good else {}
        self.unsafe: Mapping[str, str] = {}

    def is_applied(self, content: Rendered) -> bool:
        """Whether this content is in force and in the files."""
        return content.digest == self._applied_digest and self._files.current_digest() == content.digest

    async def wait_until_quiet(self) -> None:
        """Return when slurmctld may reconfigure."""
        if self._wait_until_quiet is not None:
            await self._wait_until_quiet()

    async def apply(self, wanted: Rendered) -> bool:
        """Put this content in force. Slots that may have jobs keep their old line.

        Returns:
            False when it was in force already.

        Raises:
            SlurmRefused: Slurm refused it, and the last good content is back.
            SlurmError: meshd did not try it; nothing has changed.
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
        why = await self._put_in_force(wanted, view, back, restart=restart)
        if why:
            await self._put_back(back, wanted, why)
        self._applied_digest = texts.digest
        self.node_addrs = dict(wanted.node_addrs)
        self.nodes_conf, self.gres_conf = wanted.nodes_conf, wanted.gres_conf
        self.lines = read_lines(texts.nodes, texts.gres)
        self.last_applied_at = self._clock.now()
        self.refusals.clear()
        self._files.mark_good(texts)
        return True

    def _with_unsafe_held(self, wanted: Rendered, view: SlurmView, back: Texts) -> Rendered:
        """The content in which slots that may have jobs keep their old lines. All other changes stay.

        Raises:
            SlotsKept: no other change is left.
        """
        kept = kept_slots(wanted, view, back.nodes, back.gres)
        self.unsafe = kept.reasons
        if not self.unsafe:
            return wanted
        reasons = "; ".join(self.unsafe.values())
        if wanted.source is None:
            raise SlotsKept(reasons)
        merged = holding(wanted, {**read_lines(back.nodes, back.gres), **kept.lines}, kept.lines.keys())
        refuse_if_garbled(merged)
        if self.is_applied(merged):
            raise SlotsKept(reasons)
        return merged

    async def _begin_from_last_good(self) -> Texts:
        """Put the last good files back where an edit or a crash changed them, and return them.

        Slurm's commands parse these files too: with a broken file no query works.
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
        """Whether a reconfigure is not enough.

        Before 23.11 a changed node set ends slurmctld with fatal(), and a CLOUD node stays one until a restart.
        """
        if node_set_changes(wanted, view, back.nodes) and capabilities.restart_when_node_set_changes:
            return True
        old, new = back.nodes, wanted.nodes_conf
        return not capabilities.may_change_shapes and (shapes_differ(new, old) or leaves_power_saving(new, old))

    async def _wait_for_saved_jobs(self) -> None:
        """Wait until the last job start is in slurmctld's saved state, at most JOB_SETTLE_MAX_S on a busy cluster."""
        end = self._clock.monotonic_s() + JOB_SETTLE_MAX_S
        while self._clock.monotonic_s() < end:
            age_s = await self._client.youngest_job_s()
            if age_s is None or age_s >= JOB_SETTLE_S:
                return
            await self._clock.sleep(JOB_SETTLE_S - age_s)

    async def reconfigure(self) -> None:
        """Make slurmctld read the files that it has. Raises SlurmError."""
        self.reconfigures += 1
        self.read_s = self._clock.monotonic_s()
        await self._client.reconfigure()

    async def _put_in_force(self, wanted: Rendered, view: SlurmView, back: Texts, *, restart: bool) -> str:
        """Make slurmctld read the files. Returns why Slurm refused them; "" when they are in force."""
        answered, self.read_s = False, self._clock.monotonic_s()
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
                # After a timeout the reconfigure may have happened: verify below. Any other answer is a refusal.
                if not isinstance(error.__cause__, CommandTimeout):
                    return str(error)
        silent_s = START_S if restart else DEAD_AFTER_S
        return await self._not_in_force(wanted, view, back, alive=answered, silent_s=silent_s)

    async def _not_in_force(
        self, wanted: Rendered, view: SlurmView, back: Texts, *, alive: bool, silent_s: float
    ) -> str:
        """Poll until slurmctld shows the new addresses, and return ""; or return why it does not show them.

        Sets those of CLOUD nodes, which the files do not decide on.

        Args:
            wanted: the content that was installed.
            view: Slurm before that.
            back: the content before that.
            alive: slurmctld has just answered, so the first query needs no ping.
            silent_s: how long slurmctld may stay silent before its first answer; after that, DEAD_AFTER_S.
        """
        start = answered = self._clock.monotonic_s()
        while True:
            try:
                if alive or await self._client.ping():
                    answered, silent_s = self._clock.monotonic_s(), DEAD_AFTER_S
                    nodes = await self._client.nodes()
                    why = missing_in_force(wanted, nodes)
                    if not why:
                        await self._set_node_addrs(addrs_to_set(wanted, nodes, view.nodes, back.nodes))
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

    async def _set_node_addrs(self, addrs: Mapping[str, str]) -> None:
        try:
            await self._client.set_node_addrs(addrs)
        except SlurmError as error:  # the caller of `apply` looks at the addresses in force, again and again
            log.warning("slurm_addresses_not_set", slots=sorted(addrs)[:5], error=str(error))

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
            after += f", but slurmctld refuses it too: {error}"
        raise SlurmRefused("; ".join(text for text in (f"Slurm refused: {why}", errors, after) if text))

    async def _ask_last_errors(self) -> str:
        return await self._last_errors() if self._last_errors else ""

    async def _alive(self) -> bool:
        """Whether slurmctld answers a ping; True when scontrol fails: with a broken file it cannot ping at all."""
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
