"""A desk behind the API's server, for clients that are tried on it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshd.api.auth import Accounts, Authorizer
from meshd.api.server import HeadApiServer
from meshd.obs.metrics import Metrics
from tests.unit.api.memory_desk import MemoryDesk


@dataclass
class Served:
    """A desk behind a real server on a real socket, in a thread of its own."""

    desk: MemoryDesk
    socket: Path
    loop: asyncio.AbstractEventLoop

    def do(self, coroutine: Any) -> Any:
        future: Future[Any] = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        return future.result(60)


@contextmanager
def serve(
    desk: MemoryDesk,
    socket: Path,
    *,
    group: str = "no-such-group",
    own_uid: int = 0,
    tick_s: float = 0.02,
    accounts: Accounts | None = None,
) -> Iterator[Served]:
    started = threading.Event()
    state: dict[str, Any] = {}

    async def body() -> None:
        server = HeadApiServer(
            desk.handlers(),
            path=socket,
            authorizer=Authorizer(group, own_uid=own_uid, accounts=accounts),
            metrics=Metrics().registry,
        )
        await server.start()
        stop = asyncio.Event()
        state.update(loop=asyncio.get_running_loop(), stop=stop)
        started.set()
        while not stop.is_set():
            await desk.tick()
            try:
                async with asyncio.timeout(tick_s):
                    await stop.wait()
            except TimeoutError:
                pass
        await server.stop()

    def thread() -> None:
        try:
            asyncio.run(body())
        except Exception as error:
            state["error"] = error
        finally:
            started.set()

    worker = threading.Thread(target=thread, daemon=True)
    worker.start()
    assert started.wait(60)
    if "error" in state:
        raise state["error"]
    try:
        yield Served(desk, socket, state["loop"])
    finally:
        state["loop"].call_soon_threadsafe(state["stop"].set)
        worker.join(60)
        assert not worker.is_alive()
        if "error" in state:
            raise state["error"]
