"""Asks a root unit by a file, and waits for the file with its answer: the daemon's half of `meshd.runtime.request`."""

from __future__ import annotations

import asyncio
import json
import secrets
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
    """One unit. It has one file for requests, so only one of several callers asks at a time.

    Args:
        request: the file that its path unit watches.
        answer: the file that it writes.
        clock: for the wait.
        look_s: how often the answer is looked for, in seconds.
    """

    def __init__(self, request: Path, answer: Path, clock: Clock, look_s: float) -> None:
        self._request, self._answer, self._clock, self._look_s = request, answer, clock, look_s
        self._turn = asyncio.Lock()

    async def ask(self, body: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Lay a request and wait for the answer to it. A request of another caller is waited for first.

        Args:
            body: what is asked for; an id of its own is added.
            timeout_s: for its turn and the answer together, in seconds.

        Raises:
            NoAnswer: none came in time. A request that was not taken is taken back: it is not done later.
            OSError: the request cannot be written; it names the file.
        """
        end_s = self._clock.monotonic_s() + timeout_s
        while self._turn.locked():
            if self._clock.monotonic_s() >= end_s:
                raise NoAnswer(taken=False)
            await self._clock.sleep(self._look_s)
        async with self._turn:
            request_id = secrets.token_hex(8)
            try:
                await self._lay(json.dumps({**body, "id": request_id}).encode())
                while self._clock.monotonic_s() < end_s:
                    await self._clock.sleep(self._look_s)
                    told = await asyncio.to_thread(self._read)
                    if told.get("id") == request_id:
                        return told
            except OSError as error:
                error.filename = str(self._request)
                raise
            except asyncio.CancelledError:
                self._take_back()
                raise
            raise NoAnswer(taken=not self._take_back())

    async def _lay(self, text: bytes) -> None:
        """Write the request. A caller that is cancelled meanwhile waits: no thread writes after its turn."""
        writing = asyncio.create_task(asyncio.to_thread(write_atomic, self._request, text, mode=0o600))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait([writing])
            raise

    def _take_back(self) -> bool:
        """Remove the request; whether it was still there."""
        try:
            self._request.unlink()
        except FileNotFoundError:
            return False
        except OSError:
            pass  # what is there is no file that meshd wrote: the unit refuses it
        return True

    def _read(self) -> dict[str, Any]:
        try:
            told = json.loads(self._answer.read_bytes())
        except (OSError, ValueError):
            return {}
        return told if isinstance(told, dict) else {}
