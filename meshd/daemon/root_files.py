"""Slurm's files, which root's unit writes: it is asked by a file, and tells by another what came of it."""

from __future__ import annotations

import asyncio
import json
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

from meshd.errors import SlurmError
from meshd.runtime.atomicfile import write_atomic
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
        self._request = directory / REQUEST
        self._answer = answer
        self._clock = clock
        self._lock = asyncio.Lock()

    async def __call__(self, texts: Texts) -> None:
        """See Writer."""
        async with self._lock:
            request_id = secrets.token_hex(8)
            body = json.dumps({"id": request_id, "nodes": texts.nodes, "gres": texts.gres}).encode()
            try:
                await asyncio.to_thread(write_atomic, self._request, body, mode=0o600)
            except OSError as error:
                error.filename = str(self._request)
                raise
            told = await self._wait(request_id)
        if told.get("ok"):
            return
        detail = str(told.get("detail", ""))[:1000]
        if told.get("errno"):
            raise OSError(int(told["errno"]), detail.partition(": ")[2] or detail, detail.partition(": ")[0])
        raise SlurmError(f"root's unit does not write Slurm's files: {detail or 'it did not say why'}")

    async def _wait(self, request_id: str) -> dict[str, Any]:
        end_s = self._clock.monotonic_s() + ANSWER_TIMEOUT_S
        while self._clock.monotonic_s() < end_s:
            await self._clock.sleep(LOOK_S)
            told = self._read()
            if told.get("id") == request_id:
                return told
        taken = not self._request.exists()
        with suppress(OSError):
            self._request.unlink()  # what was given up is not written later
        if taken:
            raise SlurmError("meshd-slurm.service took the request and did not answer: journalctl -u meshd-slurm")
        raise SlurmError("Slurm's files are not written: systemctl enable --now meshd-slurm.path")

    def _read(self) -> dict[str, Any]:
        try:
            told = json.loads(self._answer.read_bytes())
        except (OSError, ValueError):
            return {}
        return told if isinstance(told, dict) else {}
