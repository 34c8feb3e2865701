"""Slurm's files, which root's unit writes: it is asked by a file, and tells by another what came of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from meshd.daemon.root_unit import NoAnswer, RootUnit
from meshd.errors import SlurmError
from meshd.runtime.clock import Clock
from meshd.slurm.files import Texts
from meshd.slurm.headfiles import ANSWER, REQUEST

ANSWER_TIMEOUT_S = 15.0
LOOK_S = 0.01


class RootFiles:
    """The Writer of the daemon: speaks with meshd-slurm.service by files.

    Args:
        directory: meshd's runtime directory, where the request goes.
        clock: for the wait.
        answer: where the answer comes.
    """

    def __init__(self, directory: Path, clock: Clock, answer: Path = ANSWER) -> None:
        self._unit = RootUnit(directory / REQUEST, answer, clock, LOOK_S)
        self._lock = asyncio.Lock()

    async def __call__(self, texts: Texts) -> None:
        """See Writer."""
        try:
            async with self._lock:
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
