"""What the daemon reports of Slurm's power saving: whether it is in force, and whether its programs reach meshd."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from meshd.api.schema import CheckRow, ProblemView
from meshd.codes import CheckName, ProblemCode
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.observe.source import Observed
from meshd.daemon.reporting import Check, Reporter, fail, ok, problem, warn
from meshd.model.observed import Fresh, SlurmView
from meshd.slurm.client import SlurmClient
from meshd.slurm.head_programs import PROGRAMS

NAME = CheckName.POWER_SAVING
CURE = "run `meshctl init` as root, then `systemctl restart slurmctld`"
INSTALL = "run the installer of meshd again (deploy/head/install), or `meshctl init`, as root"


class PowerSavingReporter(Reporter):
    """Reports it.

    Args:
        live: the settings: which pools are scaled by the queue.
        slurm: what Slurm said last.
        client: asks slurmctld.
        bell: the FIFO that the programs write to.
        root: where the head's files are.
    """

    def __init__(
        self, live: LiveSettings, slurm: Observed[SlurmView], client: SlurmClient, bell: Path, root: Path = Path("/")
    ) -> None:
        self._live, self._slurm, self._client, self._bell, self._root = live, slurm, client, bell, root

    def _pools(self) -> list[str]:
        settings = self._live.settings
        return sorted(name for name, pool in settings.pools.items() if settings.from_queue(pool))

    def problems(self) -> Iterable[ProblemView]:
        """Pools that are scaled by hand alone, though they are to be scaled by the queue."""
        seen = self._slurm.current
        if not isinstance(seen, Fresh) or seen.value.power_saving:
            return
        for pool in self._pools():
            yield problem(
                ProblemCode.POWER_SAVING_OFF, "warning",
                "Slurm has not the settings by which the queue scales this pool (power saving with meshd's programs): "
                "only `meshctl scale` does",
                CURE, pool=pool,
            )  # fmt: skip

    def checks(self) -> Iterable[Check]:
        """The settings, the programs and the bell."""
        yield Check(NAME, self.check)

    async def check(self) -> CheckRow:
        """One row. Raises SlurmError where slurmctld does not answer."""
        pools = self._pools()
        if not (await self._client.power_saving()).on:
            if not pools:
                return ok(NAME, "off, and no pool is scaled by the queue")
            text = f"off: the queue does not scale {', '.join(pools)}"
            return fail(NAME, ProblemCode.POWER_SAVING_OFF, text, CURE)
        if fault := _fault([self._root / str(path).lstrip("/") for path in PROGRAMS]):
            return fail(NAME, ProblemCode.POWER_SAVING_BROKEN, fault, INSTALL)
        if fault := _unheard(self._bell):
            return fail(NAME, ProblemCode.POWER_SAVING_BROKEN, fault, "`systemctl restart meshd`")
        if not await self._client.starts_at_once():
            text = "slurmctld does not run meshd's PrologSlurmctld: jobs start up to 30 s after their last node is up"
            return warn(NAME, ProblemCode.PROLOG_OFF, text, CURE)
        return ok(NAME, "Slurm says which slots it wants, and jobs start when their nodes are up")


def _fault(programs: Sequence[Path]) -> str:
    """What is wrong with the programs; "" for nothing."""
    for path in programs:
        try:
            found = path.stat()
        except OSError as error:
            return f"{path}: {error.strerror}"
        if not stat.S_ISREG(found.st_mode) or not found.st_mode & 0o001:
            return f"{path} is no program that every user can run"
        if found.st_uid != 0 or found.st_mode & 0o022:
            return f"{path} can be written by others than root: Slurm refuses it"
    return ""


def _unheard(bell: Path) -> str:
    """Why a ring is not heard; "" when it is."""
    try:
        os.close(os.open(bell, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        return f"meshd does not hear its programs: {bell}: {error.strerror}"
    return ""
