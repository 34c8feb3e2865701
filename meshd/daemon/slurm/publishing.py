"""What Slurm's files shall say, from pools and journal; when to say it; and how it stands.

A change waits for those that are about to follow it: as long as other machines are on their way in or out, up to
`slurm.reconfigure_max_wait_s`, and in a burst that goes on for longer up to twice and then four times that; when nobody
is expected, only `slurm.reconfigure_quiet_s`. So the last of a burst does not wait, and a burst is few reconfigures.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path

import structlog

from meshd.api.schema import CheckRow, ProblemView, PublishView
from meshd.codes import CheckName, ProblemCode
from meshd.config import Settings
from meshd.daemon.controller import Controller
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.observe.source import Readable
from meshd.daemon.reporting import Check, fail, ok, problem, warn
from meshd.daemon.slurm import report
from meshd.daemon.slurm.held_lines import HeldLines
from meshd.daemon.slurm.report import GpuDevices
from meshd.errors import SlurmError
from meshd.model.machine import IN_SLURM, Machine, Phase
from meshd.model.observed import Fresh, SlurmView
from meshd.plan.limits import as_word, usable
from meshd.runtime.atomicfile import write_atomic
from meshd.runtime.clock import Clock
from meshd.slurm.capabilities import capabilities, parse_version
from meshd.slurm.client import SlurmClient
from meshd.slurm.conf import parse
from meshd.slurm.files import SlurmFiles, Writer
from meshd.slurm.headfiles import DIRECTORY, GRES, NODES
from meshd.slurm.initplan import NODES_INCLUDES
from meshd.slurm.nodes import JoinedNode, PoolLine, Rendered, render
from meshd.slurm.pools import pool_lines
from meshd.slurm.publish import Publisher
from meshd.slurm.show import complaints
from meshd.store.journal import Journal

log = structlog.get_logger(__name__)

RESTART_TIMEOUT_S = 90.0
LOOK_S = 0.05
IDLE_S = 1.0
"""While no change waits. Each tick wakes it besides."""
ASK_AGAIN_S = 3.0
LOG_TAIL_B = 65536
LONGER_MAX = 4
"""A burst that goes on makes a change wait at most this many times `reconfigure_max_wait_s`."""
NEWER_SLURM = "with Slurm 23.11 or newer machines of several sizes can be in one pool"
ON_THEIR_WAY_IN = frozenset({Phase.BOOTING, Phase.JOINING})


class Publishing(Controller):
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
        directory: Path = DIRECTORY,
        write: Writer | None = None,
    ) -> None:
        """Make it.

        Args:
            live: the settings.
            journal: the machines.
            client: Slurm's commands.
            clock: time.
            slurm: the newest word of Slurm.
            applied: called after each change of the files.
            wait_until_quiet: see Publisher.
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
        self.held = HeldLines(client, clock)
        """What the settings no longer have, and Slurm still does."""
        self._publisher: Publisher | None = None
        self._made_for: tuple[int, Settings, str, tuple[PoolLine, ...]] | None = None
        self._made_of: list[tuple[object, ...]] | None = None
        self._pools_of: tuple[object, ...] | None = None
        self._pools_made: tuple[PoolLine, ...] | None = None
        self._wanted: Rendered | None = None
        self._asked, self._asked_s = "", 0.0
        self._first_change_s: float | None = None
        self._last_change_s = 0.0
        self._longer = 1
        self._error = ""
        self._fixed_by = ""
        self._left_out: Mapping[str, str] = {}
        self._names: Mapping[str, str] = {}
        self.shapes_fixed = True
        """All nodes of a pool have to be of its smallest shape: so it is before 23.11, and until Slurm has answered."""

    @property
    def node_addrs(self) -> Mapping[str, str]:
        """The address of every slot whose joined line Slurm has."""
        return self._publisher.published if self._publisher else {}

    @property
    def left_out(self) -> Mapping[str, str]:
        """Machines whose line cannot be written, or that Slurm does not take, each with why; all others go on."""
        refused = self._publisher.culprits.reasons if self._publisher else {}
        return {**self._left_out, **{self._names.get(slot, slot): why for slot, why in refused.items()}}

    @property
    def unsafe(self) -> Mapping[str, str]:
        """The slots that keep their line although another is wanted, each with why: jobs may run there."""
        return self._publisher.unsafe if self._publisher else {}

    async def start(self) -> None:
        """Find the files. Raises SlurmError when their directory cannot be used."""
        own = self._live.settings.cluster.state_dir / "slurm"
        try:
            own.mkdir(mode=0o755, exist_ok=True)
            self._drop_former(own)
            self._publisher = Publisher(
                files=SlurmFiles(self._directory, own, self._write), client=self._client, clock=self._clock,
                restart=self._restart, last_words=self._last_words, changed=self._applied,
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
        seen = self._slurm.current
        return seen.value if isinstance(seen, Fresh) else None

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
        return LOOK_S if self._first_change_s is not None else IDLE_S

    def look(self) -> None:
        """Make the wanted content anew if anything has changed, and ask for it when it need not wait any longer."""
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
            self._first_change_s = None
            self._longer = min(2 * self._longer, LONGER_MAX) if more else 1
        if wanted.digest == self._asked and now_s - self._asked_s < ASK_AGAIN_S:
            return  # it is in force, under way, or was not taken: none of these changes within a moment
        self._asked, self._asked_s = wanted.digest, now_s
        self._publisher.request(wanted)

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
        """The content; made anew only when what stands in it, or Slurm's version, has changed."""
        view, settings = self._slurm_view(), self._live.settings
        pools = self._pools(settings, view)
        if view is None or pools is None:
            return self._wanted  # which form Slurm takes, and what must stay, is not known before it was asked
        key = (self._journal.revision, settings, view.version, pools)
        same_form = (
            self._made_for is not None
            and self._made_for[1] is settings
            and self._made_for[2:] == (view.version, pools)
        )  # fmt: skip
        if same_form and self._made_for is not None and self._made_for[0] == self._journal.revision:
            return self._wanted
        joined = [m for m in self._journal.machines() if _belongs(m, settings)]
        of: list[tuple[object, ...]] = [(m.slot, m.tailnet_ip, m.region, m.facts) for m in joined]
        if same_form and of == self._made_of:
            self._made_for, self._error = key, ""
            return self._wanted
        try:
            before = self._publisher.lines if self._publisher else {}
            self.shapes_fixed = not capabilities(parse_version(view.version)).may_change_shapes
            self._fixed_by = view.version if self.shapes_fixed else ""
            wanted = render(
                pools, [self._joined(m, settings) for m in joined], shapes_fixed=self.shapes_fixed, before=before
            )
        except SlurmError as error:
            if str(error) != self._error:
                log.error("slurm_files_cannot_be_made", reason=str(error))
            self._error = str(error)
            return None
        self._made_for, self._made_of, self._error = key, of, ""
        self._note_left_out(wanted, {m.slot: m.name for m in joined})
        return wanted

    def _pools(self, settings: Settings, view: SlurmView | None) -> tuple[PoolLine, ...] | None:
        """The pools of the settings, and what of the former ones must stay."""
        if view is None:
            return None
        nodes_conf = self._publisher.nodes_conf if self._publisher is not None else ""
        of = (settings, nodes_conf, view, self.held.revision)
        if self._pools_of is None or any(a is not b for a, b in zip(of, self._pools_of, strict=True)):
            self._pools_made = self.held.lines(pool_lines(settings.pools), nodes_conf, view)
            self._pools_of = of
        return self._pools_made

    def _note_left_out(self, wanted: Rendered, names: Mapping[str, str]) -> None:
        left_out = {names.get(slot, slot): why for slot, why in wanted.left_out.items()}
        for machine in left_out.keys() - self._left_out.keys():
            log.error("machine_left_out_of_slurm_files", machine=machine, reason=left_out[machine])
        self._left_out, self._names = left_out, names

    @staticmethod
    def _joined(machine: Machine, settings: Settings) -> JoinedNode:
        facts = machine.facts
        if facts is None:
            raise SlurmError(f"{machine.name} has no facts yet")
        offer, pool = machine.offer, settings.pools[machine.pool]
        features = [offer.provider, offer.region or machine.region, offer.gpu, "spot" if offer.spot else "ondemand"]
        return JoinedNode(
            slot=machine.slot, node_addr=machine.tailnet_ip, shape=facts.shape,
            devices=usable(facts.gpus, machine.gpus) if pool.gpus_per_node else (),
            features=tuple(as_word(feature) for feature in features if feature),
            memory_fraction=settings.slurm.memory_fraction, former_node_addrs=machine.former_ips,
        )  # fmt: skip

    async def _restart(self) -> None:
        """Have slurmctld restarted by the root unit that watches for the request."""
        settings = self._live.settings
        request = settings.cluster.socket.parent / "restart-slurmctld"
        at_work = request.with_name("restarting-slurmctld")
        try:
            write_atomic(request, b"", mode=0o644)
        except OSError as error:
            raise SlurmError(f"slurmctld's restart cannot be asked for: {request}: {error.strerror}") from error
        end_s = self._clock.monotonic_s() + RESTART_TIMEOUT_S
        while request.exists() or at_work.exists():
            if self._clock.monotonic_s() > end_s:
                raise SlurmError(
                    "slurmctld's restart was asked for, but meshd-slurmctld.path does not serve it: systemctl start it"
                )
            await self._clock.sleep(LOOK_S)

    async def _last_words(self) -> str:
        """What slurmctld complained of last, from its log: scontrol often says only "Unspecified error"."""
        return await asyncio.to_thread(_complaints, self._live.settings.slurm.conf_dir / "slurm.conf")

    def view(self) -> PublishView:
        """For `meshctl status`."""
        if self._publisher is None:
            return PublishView(error=self._error)
        status = self._publisher.status()
        return PublishView(
            reconfigures=status.reconfigures + status.restarts, refusals=status.refusals,
            last_applied_at=status.last_applied_at,
            error="; ".join(text for text in (self._error, *status.problems) if text),
        )  # fmt: skip

    def unused_ranges(self) -> str:
        """Which settings are not heeded since this Slurm cannot have nodes of several shapes; "" when all are."""
        pools = self._live.settings.pools.items() if self._fixed_by else ()
        mixed = [name for name, pool in pools if (pool.gpus_per_node_max or 0) > pool.gpus_per_node]
        which = ", ".join(f"pools.{name}.gpus_per_node_max" for name in mixed)
        text = f"{which} is not used: Slurm {self._fixed_by} cannot change a node's shape while it runs"
        return text if mixed else ""

    def problems(self) -> Iterable[ProblemView]:
        """What is wrong with Slurm's files, or stays in them for now."""
        if error := self.view().error:
            cure = "slurmctld runs on the last good files; see `meshctl doctor`"
            yield problem(ProblemCode.SLURM_FILES_REFUSED, "error", error, cure)
        if unused := self.unused_ranges():
            yield problem(ProblemCode.GPU_RANGE_UNUSED, "warning", unused, NEWER_SLURM)
        yield from self.held.problems()
        yield from report.left_out(self.left_out)
        yield from report.kept_lines(self.unsafe)

    def checks(self) -> Iterable[Check]:
        """Slurm's files, and whether jobs can open GPUs that are not theirs."""
        yield Check(CheckName.SLURM_FILES, self.check)
        yield Check(CheckName.GPU_DEVICES, GpuDevices(self._client, self._live))

    async def check(self) -> CheckRow:
        """For `meshctl doctor`: does slurm.conf include what meshd writes?"""
        confs = [self._live.settings.slurm.conf_dir / include for include in NODES_INCLUDES]
        ours = self._directory / NODES
        name, view = CheckName.SLURM_FILES, self.view()
        if view.error:
            return fail(name, ProblemCode.SLURM_FILES_REFUSED, view.error, "see docs/troubleshooting.md, Slurm files")
        if unused := self.unused_ranges():
            return warn(name, ProblemCode.GPU_RANGE_UNUSED, unused, NEWER_SLURM)
        if not any(_same(conf, ours) for conf in confs):
            text = f"{confs[0]} is not the file that meshd writes"
            return fail(name, ProblemCode.SLURM_FILES_NOT_INCLUDED, text, "run `meshctl init` as root")
        return ok(name, f"{view.reconfigures} reconfigures, {view.refusals} refused")


def _complaints(slurm_conf: Path) -> str:
    try:
        log_file = parse(slurm_conf.read_text("utf-8", "replace")).get("SlurmctldLogFile")
        if not log_file:
            return ""
        with Path(log_file).open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - LOG_TAIL_B, 0))
            return complaints(file.read().decode("utf-8", "replace"))
    except OSError:
        return ""  # its words only add to what is known


def _same(one: Path, other: Path) -> bool:
    try:
        return one.resolve() == other.resolve() and other.exists()
    except OSError:
        return False


def _belongs(machine: Machine, settings: Settings) -> bool:
    return (
        machine.phase in IN_SLURM
        and machine.facts is not None
        and bool(machine.tailnet_ip)
        and not machine.left_slurm
        and machine.pool in settings.pools
    )
