"""Asks a root unit by a file, and waits for the file with its answer: the daemon's half of `meshd.runtime.request`."""

from __future__ import annotations

import asyncio
import json
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

from meshd.runtime.atomicfile import write_atomic
from meshd.runtime.clock import Clock


class NoAnswer(Exception):
    """The unit did not answer in time.

    Attributes:
        taken: it took the request, so it may still do what was asked.
    """

    def __init__(self, *, taken: bool) -> None:
        super().__init__("no answer of the root unit")
        self.taken = taken


class RootUnit:
    """One unit.

    Args:
        request: the file that its path unit watches.
        answer: the file that it writes.
        clock: for the wait.
        look_s: how often the answer is looked for, in seconds.
    """

    def __init__(self, request: Path, answer: Path, clock: Clock, look_s: float) -> None:
        self._request, self._answer, self._clock, self._look_s = request, answer, clock, look_s

    async def ask(self, body: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Lay a request and wait for the answer to it.

        Args:
            body: what is asked for; an id of its own is added.
            timeout_s: for the answer, in seconds.

        Raises:
            NoAnswer: none came in time. A request that was not taken is taken back: it is not done later.
            OSError: the request cannot be written; it names the file.
        """
        request_id = secrets.token_hex(8)
        try:
            text = json.dumps({**body, "id": request_id}).encode()
            await asyncio.to_thread(write_atomic, self._request, text, mode=0o600)
        except OSError as error:
            error.filename = str(self._request)
            raise
        end_s = self._clock.monotonic_s() + timeout_s
        while self._clock.monotonic_s() < end_s:
            await self._clock.sleep(self._look_s)
            told = await asyncio.to_thread(self._read)
            if told.get("id") == request_id:
                return told
        taken = not self._request.exists()
        with suppress(OSError):
            self._request.unlink()
        raise NoAnswer(taken=taken)

    def _read(self) -> dict[str, Any]:
        try:
            told = json.loads(self._answer.read_bytes())
        except (OSError, ValueError):
            return {}
        return told if isinstance(told, dict) else {}
