"""What root's units do for Slurm: one writes its files, one restarts slurmctld. meshd asks each by a file."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.root_unit import NoAnswer, RootUnit
from meshd.errors import SlurmError
from meshd.runtime.atomicfile import write_atomic
from meshd.runtime.clock import Clock
from meshd.slurm.conf import parse
from meshd.slurm.files import Texts
from meshd.slurm.headfiles import ANSWER, REQUEST
from meshd.slurm.show import last_errors

ANSWER_TIMEOUT_S = 15.0
LOOK_S = 0.01
RESTART_TIMEOUT_S = 90.0
RESTART_LOOK_S = 0.05
LOG_TAIL_B = 65536


class RootFiles:
    """The Writer of the daemon: speaks with meshd-slurm.service by files.

    Args:
        directory: meshd's runtime directory, where the request goes.
        clock: for the wait.
        answer: where the answer comes.
    """

    def __init__(self, directory: Path, clock: Clock, answer: Path = ANSWER) -> None:
        self._unit = RootUnit(directory / REQUEST, answer, clock, LOOK_S)

    async def __call__(self, texts: Texts) -> None:
        """See Writer."""
        try:
            told = await self._unit.ask({"nodes": texts.nodes, "gres": texts.gres}, ANSWER_TIMEOUT_S)
        except NoAnswer as error:
            if error.taken:
                text = "meshd-slurm.service took the request and did not answer: journalctl -u meshd-slurm"
                raise SlurmError(text) from error
            raise SlurmError("Slurm's files are not written: systemctl enable --now meshd-slurm.path") from error
        if told.get("ok"):
            return
        detail = str(told.get("detail", ""))[:1000]
        if told.get("errno"):
            raise OSError(int(told["errno"]), detail.partition(": ")[2] or detail, detail.partition(": ")[0])
        raise SlurmError(f"root's unit does not write Slurm's files: {detail or 'it did not say why'}")


class SlurmctldUnit:
    """Has slurmctld restarted by meshd-slurmctld.service, and reads what it complains of.

    Args:
        live: the settings: the directories.
        clock: for the wait.
    """

    def __init__(self, live: LiveSettings, clock: Clock) -> None:
        self._live = live
        self._clock = clock

    async def restart(self) -> None:
        """End slurmctld gracefully if it runs, and start it. Raises SlurmError when the unit does not do it."""
        request = self._live.settings.cluster.socket.parent / "restart-slurmctld"
        at_work = request.with_name("restarting-slurmctld")
        try:
            write_atomic(request, b"", mode=0o644)
        except OSError as error:
            raise SlurmError(f"slurmctld's restart cannot be asked for: {request}: {error.strerror}") from error
        end_s = self._clock.monotonic_s() + RESTART_TIMEOUT_S
        while request.exists() or at_work.exists():
            if self._clock.monotonic_s() > end_s:
                raise SlurmError(
                    "meshd requested a restart of slurmctld, but meshd-slurmctld.path does not serve it: start it"
                )
            await self._clock.sleep(RESTART_LOOK_S)

    async def last_errors(self) -> str:
        """What slurmctld complained of last, from its log: scontrol often says only "Unspecified error"."""
        return await asyncio.to_thread(_read_last_errors, self._live.settings.slurm.conf_dir / "slurm.conf")


def _read_last_errors(slurm_conf: Path) -> str:
    try:
        log_file = parse(slurm_conf.read_text("utf-8", "replace")).get("SlurmctldLogFile")
        if not log_file:
            return ""
        with Path(log_file).open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - LOG_TAIL_B, 0))
            return last_errors(file.read().decode("utf-8", "replace"))
    except OSError:
        return ""  # its words only add to what is known
