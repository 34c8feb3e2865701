"""When Slurm's files are written, and how they are.

A change waits for those that are about to follow it: as long as other machines are on their way in or out, up to
`slurm.reconfigure_max_wait_s`, and in a burst that goes on for longer up to twice and then four times that; when nobody
is expected, only `slurm.reconfigure_quiet_s`. So the last of a burst does not wait, and a burst is few reconfigures.

A change that Slurm can do without, since it only has addresses of CLOUD nodes in it, also waits until
`slurm.reconfigure_spacing_s` after the last reconfigure. Each one restarts slurmctld's backfill (since 23.11
slurmctld itself), which looks at the queue for the first time after `bf_interval`: where machines come and go more
often than that, it never would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from pathlib import Path

import structlog

from meshd.api.schema import CheckRow, ProblemView, PublishView
from meshd.codes import CheckName, ProblemCode
from meshd.daemon.controller import Controller
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.observe.source import Readable
from meshd.daemon.reporting import Check, fail, ok, problem, warn
from meshd.daemon.slurm import report
from meshd.daemon.slurm.content import FileContent
from meshd.daemon.slurm.held_lines import HeldLines
from meshd.daemon.slurm.node_addrs import NodeAddrs
from meshd.daemon.slurm.report import GpuDevices, Records
from meshd.daemon.slurm.root_units import SlurmctldUnit
from meshd.errors import SlurmError
from meshd.model.desired import Promise
from meshd.model.machine import Phase
from meshd.model.observed import SlurmView, value_of
from meshd.runtime.clock import Clock
from meshd.slurm.client import SlurmClient
from meshd.slurm.files import SlurmFiles, Writer
from meshd.slurm.headfiles import DIRECTORY, GRES, NODES
from meshd.slurm.init.types import NODES_INCLUDES
from meshd.slurm.nodes import Rendered
from meshd.slurm.publish import Publisher
from meshd.store.journal import Journal

log = structlog.get_logger(__name__)

LOOK_S = 0.05
IDLE_S = 1.0
"""While no change waits. Each tick wakes it besides."""
ASK_AGAIN_S = 3.0
ASK_AGAIN_KEPT_S = 30.0
"""While nothing but slots with jobs is missing, and Slurm shows that their jobs go on."""
LONGER_MAX = 4
"""A burst that goes on makes a change wait at most this many times `reconfigure_max_wait_s`."""
NEWER_SLURM = "with Slurm 23.11 or newer machines of several sizes can be in one pool"
ON_THEIR_WAY_IN = frozenset({Phase.BOOTING, Phase.JOINING})


class SlurmFilesController(Controller):
    """Makes the files' content, and asks for it when it need not wait any longer."""

    name = "slurm_files"

    def __init__(
        self,
        live: LiveSettings,
        journal: Journal,
        client: SlurmClient,
        clock: Clock,
        slurm: Readable[SlurmView],
        applied: Callable[[], None],
        wait_until_quiet: Callable[[], Awaitable[None]] | None = None,
        *,
        pod_providers: Collection[str] = (),
        promises: Callable[[], Mapping[str, Promise]] = lambda: {},
        directory: Path = DIRECTORY,
        write: Writer | None = None,
    ) -> None:
        """Make it.

        Args:
            live: the settings.
            journal: the machines.
            client: Slurm's commands.
            clock: time.
            slurm: what Slurm said last.
            applied: called after each change of the files.
            wait_until_quiet: see Publisher.
            pod_providers: the providers that rent pods.
            promises: what the slots of pools promise, where that is known.
            directory: root's.
            write: has root's unit write there; see SlurmFiles.
        """
        super().__init__(clock)
        self._directory, self._write = directory, write
        self._live = live
        self._journal = journal
        self._client = client
        self._slurm = slurm
        self._applied = applied
        self._wait_until_quiet = wait_until_quiet
        self._slurmctld = SlurmctldUnit(live, clock)
        self.held = HeldLines(client, clock)
        """What the settings no longer have, and Slurm still does."""
        self._publisher: Publisher | None = None
        self._content = FileContent(live, journal, self.held, pod_providers, promises)
        self._addrs = NodeAddrs(client, clock, slurm, wait_until_quiet)
        self._wanted: Rendered | None = None
        self._asked, self._asked_s = "", 0.0
        self._first_change_s: float | None = None
        self._last_change_s = 0.0
        self._longer = 1

    @property
    def shapes_fixed(self) -> bool:
        """All nodes of a pool have to be of its smallest shape."""
        return self._content.shapes_fixed

    @property
    def node_addrs(self) -> Mapping[str, str]:
        """The address of every slot whose joined line Slurm has."""
        return self._publisher.applier.node_addrs if self._publisher else {}

    @property
    def settable_addrs(self) -> Mapping[str, str]:
        """The address of every slot whose line needs nothing but its address: see `Snapshot.settable_addrs`."""
        if self._publisher is None:
            return {}
        return self._addrs.settable(self._make(), self._publisher.applier)

    @property
    def left_out(self) -> Mapping[str, str]:
        """Machines whose line cannot be written, or that Slurm does not take, each with why; all others go on."""
        refused = self._publisher.refused_lines.reasons if self._publisher else {}
        names = self._content.names
        return {**self._content.left_out, **{names.get(slot, slot): why for slot, why in refused.items()}}

    @property
    def unsafe(self) -> Mapping[str, str]:
        """The slots that keep their line although another is wanted, each with why: jobs may run there."""
        return self._publisher.applier.unsafe if self._publisher else {}

    async def start(self) -> None:
        """Find the files. Raises SlurmError when their directory cannot be used."""
        own = self._live.settings.cluster.state_dir / "slurm"
        try:
            own.mkdir(mode=0o755, exist_ok=True)
            self._drop_former(own)
            self._publisher = Publisher(
                files=SlurmFiles(self._directory, own, self._write), client=self._client, clock=self._clock,
                restart=self._slurmctld.restart, last_errors=self._slurmctld.last_errors, changed=self._applied,
                wait_until_quiet=self._wait_until_quiet,
            )  # fmt: skip
        except OSError as error:
            raise SlurmError(f"{error.filename or own} cannot be used: {error.strerror}") from error

    def _drop_former(self, own: Path) -> None:
        """The files that an older meshd wrote itself, once Slurm reads those of root's."""
        if _same(self._live.settings.slurm.conf_dir / NODES, self._directory / NODES):
            for name in (NODES, GRES):
                (own / name).unlink(missing_ok=True)

    def _slurm_view(self) -> SlurmView | None:
        return value_of(self._slurm.current)

    async def run(self) -> None:
        """Make passes, and put in force what they ask for."""
        if self._publisher is None:
            raise SlurmError("the publisher was not started")
        async with asyncio.TaskGroup() as group:
            group.create_task(self._publisher.run(), name="publisher")
            group.create_task(super().run(), name="publisher-passes")

    async def reconcile(self) -> float:
        """Make one pass. The next one follows soon while a change waits for others, or is not in force yet."""
        await self.held.ask()
        self.look()
        if self._publisher is not None:
            await self._addrs.reconcile(self._wanted, self._publisher.applier)
        waits = self._first_change_s is not None and self._clock.monotonic_s() >= self._next_s()
        return LOOK_S if waits else IDLE_S

    def reconfigure(self) -> None:
        """Have slurmctld forget what it caches, such as the groups of users, for up to GroupUpdateTime."""
        if self._publisher is not None:
            if self._wanted is not None and self._first_change_s is not None:
                self._request(self._publisher, self._wanted)  # one reconfigure for both
            self._publisher.reconfigure()

    def look(self) -> None:
        """Make the content again if anything has changed, and request it when it need not wait any longer."""
        if self._publisher is None:
            return
        wanted = self._make()
        if wanted is None:
            return
        now_s = self._clock.monotonic_s()
        if wanted.digest != self._asked and (self._wanted is None or wanted.digest != self._wanted.digest):
            self._last_change_s = now_s
            if self._first_change_s is None:
                self._first_change_s = now_s
        self._wanted = wanted
        if self._first_change_s is not None:
            slurm = self._live.settings.slurm
            waited_s, quiet_s = now_s - self._first_change_s, now_s - self._last_change_s
            more = self._more_to_come()
            if waited_s < slurm.reconfigure_max_wait_s * self._longer and (more or quiet_s < slurm.reconfigure_quiet_s):
                return
            if now_s < self._next_s() and self._may_wait(wanted):
                return
            self._longer = min(2 * self._longer, LONGER_MAX) if more else 1
        again_s = ASK_AGAIN_KEPT_S if self._jobs_still_there() else ASK_AGAIN_S
        if wanted.digest == self._asked and now_s - self._asked_s < again_s:
            self._first_change_s = None
            return  # it is in force, under way, or was not taken: none of these changes within a moment
        self._request(self._publisher, wanted)

    def _request(self, publisher: Publisher, wanted: Rendered) -> None:
        self._first_change_s = None
        self._asked, self._asked_s = wanted.digest, self._clock.monotonic_s()
        publisher.request(wanted)

    def _next_s(self) -> float:
        """When the next reconfigure may come for a change that Slurm can do without, by the monotonic clock."""
        read_s = self._publisher.applier.read_s if self._publisher is not None else None
        return 0.0 if read_s is None else read_s + self._live.settings.slurm.reconfigure_spacing_s

    def _may_wait(self, wanted: Rendered) -> bool:
        """Slurm can do without this change."""
        return self._publisher is not None and bool(self._addrs.only(wanted, self._publisher.applier))

    def _jobs_still_there(self) -> bool:
        """Slots keep their lines, and Slurm shows none of them left by its jobs since."""
        view, kept = self._slurm_view(), self.unsafe
        if view is None or not kept:
            return False
        nodes = [view.nodes.get(slot) for slot in kept]
        return all(node is not None and (node.held or (node.up and not node.drained)) for node in nodes)

    def _more_to_come(self) -> bool:
        """Another machine is about to join or to leave."""
        view = self._slurm_view()
        return any(
            machine.phase in ON_THEIR_WAY_IN
            or (
                machine.phase is Phase.DRAINING and not machine.left_slurm and not (view and view.jobs_on(machine.slot))
            )
            for machine in self._journal.machines()
        )

    def _make(self) -> Rendered | None:
        nodes_conf, lines = (
            (self._publisher.applier.nodes_conf, self._publisher.applier.lines) if self._publisher else ("", {})
        )
        return self._content.make(self._slurm_view(), nodes_conf, lines)

    def view(self) -> PublishView:
        """For `meshctl status`."""
        if self._publisher is None:
            return PublishView(error=self._content.error)
        status = self._publisher.status()
        return PublishView(
            reconfigures=status.reconfigures + status.restarts, refusals=status.refusals,
            last_applied_at=status.last_applied_at,
            error="; ".join(text for text in (self._content.error, *status.problems) if text),
        )  # fmt: skip

    def problems(self) -> Iterable[ProblemView]:
        """What is wrong with Slurm's files, or stays in them for now."""
        if error := self.view().error:
            cure = "slurmctld runs on the last good files; see `meshctl doctor`"
            yield problem(ProblemCode.SLURM_FILES_REFUSED, "error", error, cure)
        if unused := self._content.unused_ranges():
            yield problem(ProblemCode.GPU_RANGE_UNUSED, "warning", unused, NEWER_SLURM)
        yield from self.held.problems()
        yield from report.left_out(self.left_out)
        yield from report.kept_lines(self.unsafe)

    def checks(self) -> Iterable[Check]:
        """Slurm's files, whether jobs can open GPUs that are not theirs, and the records of jobs."""
        yield Check(CheckName.SLURM_FILES, self.check)
        yield Check(CheckName.GPU_DEVICES, GpuDevices(self._client, self._live))
        yield Check(CheckName.ACCOUNTING, Records(self._client))

    async def check(self) -> CheckRow:
        """For `meshctl doctor`: does slurm.conf include what meshd writes?"""
        confs = [self._live.settings.slurm.conf_dir / include for include in NODES_INCLUDES]
        ours = self._directory / NODES
        name, view = CheckName.SLURM_FILES, self.view()
        if view.error:
            return fail(name, ProblemCode.SLURM_FILES_REFUSED, view.error, "see docs/troubleshooting.md, Slurm files")
        if unused := self._content.unused_ranges():
            return warn(name, ProblemCode.GPU_RANGE_UNUSED, unused, NEWER_SLURM)
        if not any(_same(conf, ours) for conf in confs):
            text = f"{confs[0]} is not the file that meshd writes"
            return fail(name, ProblemCode.SLURM_FILES_NOT_INCLUDED, text, "run `meshctl init` as root")
        return ok(name, f"{view.reconfigures} reconfigures, {view.refusals} refused")


def _same(one: Path, other: Path) -> bool:
    try:
        return one.resolve() == other.resolve() and other.exists()
    except OSError:
        return False
