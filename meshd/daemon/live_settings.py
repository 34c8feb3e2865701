"""The settings that are in force, and what a reload changes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from meshd import config
from meshd.api.schema import CheckRow, ProblemView, ReloadView
from meshd.codes import CheckName, FaultCode, ProblemCode
from meshd.config import Settings
from meshd.config.setup_script import script_doubts
from meshd.daemon.controller import Wakes
from meshd.daemon.notify import Notifier
from meshd.daemon.reporting import Check, Reporter, ok, problem, warn
from meshd.errors import ConfigError, Fault
from meshd.model.ids import slot_index
from meshd.model.machine import Machine, Phase
from meshd.obs import log as logging

log = structlog.get_logger(__name__)

RELOADABLE: Final = (
    "pools", "budget", "guards", "share", "timing", "prices", "log", "slurm", "head", "mlflow", "users",
    "notify", "web",
)  # fmt: skip
"""Tables that a reload puts in force; the others need a restart."""

_CHECK: Final = "`meshctl config check` shows every fault; then `systemctl reload meshd`"


def _doubts(path: Path, settings: Settings) -> Sequence[Fault]:
    """What the file that meshd starts with can hardly mean; nothing when it has changed or gone meanwhile."""
    try:
        file = config.read(path)
    except ConfigError:
        return ()
    return _all_doubts(file, settings)


def _all_doubts(file: config.File, settings: Settings) -> Sequence[Fault]:
    """What the file can hardly mean, and scripts that cannot be read."""
    found = config.doubts(settings, file.table, file.mode, str(file.path))
    return file.placed([*found, *script_doubts(settings)])


def check_rented(settings: Settings, machines: Iterable[Machine], source: str) -> None:
    """Whether every machine that is rented still has its place in the settings.

    A pool's partition and slots are lines in Slurm's files: without them slurmctld ends the jobs on them. So a pool is
    scaled to nothing first, and removed then.

    Raises:
        ConfigError: a machine's pool, or its slot, would be no more.
    """
    stranded: dict[tuple[tuple[str, ...], str, str], list[str]] = {}
    for machine in machines:
        pool = settings.pools.get(machine.pool)
        if machine.phase in {Phase.TERMINATING, Phase.LOST}:
            continue
        if pool is None:
            text = f"pools.{machine.pool} is no more, but has machines ({{}})"
            cure = (
                f"put it back, `meshctl scale --pool {machine.pool} --gpus 0`, and remove it once they are gone: "
                "`meshctl nodes` tells"
            )
            stranded.setdefault((("pools",), text, cure), []).append(machine.name)
        elif (slot_index(machine.pool, machine.slot) or 0) > pool.max_nodes:
            text = f"pools.{machine.pool}.max_nodes = {pool.max_nodes} leaves no slot for {{}}"
            where = ("pools", machine.pool, "max_nodes")
            cure = "give them back first: `meshctl remove {}`"
            stranded.setdefault((where, text, cure), []).append(machine.name)
    if stranded:
        raise ConfigError(
            source,
            [Fault(text.format(", ".join(sorted(names)[:5])), cure.format(",".join(sorted(names)[:5])), key,
                   code=FaultCode.MACHINE_WITHOUT_PLACE)
             for (key, text, cure), names in stranded.items()],
        )  # fmt: skip


class LiveSettings(Reporter):
    """The settings, as they are now.

    Args:
        settings: those that meshd starts with.
        path: the file they are from.
        machines: those that are rented, which must keep their places.

    Attributes:
        settings: read them for each use; a reload replaces them.
        problem: why the file says something else; "" when all it says is in force.
        faults: of the file, when it is refused.
        doubts: what the settings in force can hardly mean.
        waiting: tables that changed and need a restart.

    Raises:
        ConfigError: a machine has no place in them.
    """

    def __init__(self, settings: Settings, path: Path, machines: Callable[[], Iterable[Machine]]) -> None:
        check_rented(settings, machines(), str(path))
        self.settings = settings
        self.problem = ""
        self.faults: Sequence[Fault] = ()
        self.waiting: Sequence[str] = ()
        self.doubts: Sequence[Fault] = _doubts(path, settings)
        self._path = path
        self._machines = machines
        self._held: tuple[bytes, Settings] | None = None
        """A file that machines alone keep from being in force, and what it says."""

    def wake(self) -> None:
        """A machine may have gone."""
        self.look()

    def look(self) -> None:
        """Put a file in force that was refused for machines that are gone by now, if it still says the same."""
        if self._held is None:
            return
        data, new = self._held
        with suppress(ConfigError):
            check_rented(new, self._machines(), str(self._path))
            self._held = None
            if self._bytes() == data:
                log.info("reload_goes_on", path=str(self._path))
                self.reload()

    def _bytes(self) -> bytes:
        try:
            return self._path.read_bytes()
        except OSError:
            return b""

    def view(self) -> ReloadView:
        """What came of the last reload."""
        rows = [
            CheckRow(name=f"{self._path}:{fault.line}" if fault.line else str(self._path), status="fail",
                     text=fault.text, cure=fault.cure, code=fault.code)
            for fault in self.faults
        ]  # fmt: skip
        return ReloadView(reloaded=not rows, faults=rows, waiting=list(self.waiting))

    def problems(self) -> Iterable[ProblemView]:
        """A file that is not in force, and what the settings in force can hardly mean."""
        if self.faults:
            yield problem(ProblemCode.SETTINGS_REFUSED, "error", self.problem, _CHECK)
        elif self.waiting:
            yield problem(ProblemCode.SETTINGS_NEED_RESTART, "warning", self.problem, "`systemctl restart meshd`")
        for fault in self.doubts:
            place = f" (line {fault.line})" if fault.line else ""
            cure = (
                f"{fault.cure}; then `systemctl reload meshd`" if fault.cure else "correct it: `systemctl reload meshd`"
            )
            yield problem(ProblemCode.SETTINGS_DOUBTFUL, "warning", f"settings: {fault.text}{place}", cure)

    def checks(self) -> Iterable[Check]:
        """The settings' check."""
        yield Check(CheckName.SETTINGS, self.check)

    async def check(self) -> CheckRow:
        """Whether all that the file says is in force, and means something."""
        text = self.problem or "; ".join(map(str, self.doubts))
        if not text:
            return ok(CheckName.SETTINGS, "are in use")
        code = ProblemCode.SETTINGS_DOUBTFUL
        if self.problem:
            code = ProblemCode.SETTINGS_REFUSED if self.faults else ProblemCode.SETTINGS_NEED_RESTART
        return warn(CheckName.SETTINGS, code, text, _CHECK)

    def reload(self) -> None:
        """Read the file again; the old settings stay when the new ones are wrong, and `faults` says why.

        One that machines alone keep from being in force is put in force by `look` once they are gone.
        """
        self._held = None
        data = self._bytes()
        try:
            file = config.read(self._path)
            new = config.parse(file)
            try:
                check_rented(new, self._machines(), str(self._path))
            except ConfigError as error:
                self._held = (data, new)
                raise ConfigError(error.source, file.placed(error.faults)) from error
        except ConfigError as error:
            self.faults = error.faults
            self.problem = f"the new settings are wrong, the old ones stay in use: {'; '.join(error.problems)}"
            log.error("reload_refused", problems=error.problems)
            return
        old, self.faults = self.settings, ()
        self.doubts = _all_doubts(file, new)
        self.settings = old.model_copy(update={table: getattr(new, table) for table in RELOADABLE})
        self.waiting = waiting = [
            table
            for table in Settings.model_fields
            if table not in RELOADABLE and getattr(new, table) != getattr(old, table)
        ]
        self.problem = f"changes in {', '.join(waiting)} need `systemctl restart meshd`" if waiting else ""
        logging.set_up(self.settings.log)
        log.info("reloaded", waiting_for_restart=waiting)


class Reload:
    """Reads the settings again when somebody asks.

    Args:
        live: the settings.
        notifier: tells systemd that a reload is under way.
        followers: woken afterwards: what they do follows from the settings.
    """

    def __init__(self, live: LiveSettings, notifier: Notifier, followers: Sequence[Wakes]) -> None:
        self._live = live
        self._notifier = notifier
        self._followers = followers

    def __call__(self) -> ReloadView:
        """Read them; the old ones stay when the new ones are wrong."""
        self._notifier.reloading()
        self._live.reload()
        self._notifier.ready()
        for follower in self._followers:
            follower.wake()
        return self._live.view()
