"""Boots and destroys machines for the clouds, which may run in other threads than the hypervisor."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from deploy.sandbox.hypervisor import Hypervisor, MachineSpec


@dataclass(frozen=True, slots=True)
class BootDefaults:
    """Options for the next machines of all clouds.

    Attributes:
        image: of machines; a pod's begins with the same suite.
        clock_offset_s: seconds that their clocks are off.
        missing_gpus: how many GPUs do not show up.
        hard_nat: pods get a NAT that takes another port for each destination.
    """

    image: str = "trixie"
    clock_offset_s: int = 0
    missing_gpus: int = 0
    hard_nat: bool = False


class Host:
    """Boots and destroys machines in the background, for each machine one action after the other.

    Create it inside the running event loop.
    """

    def __init__(self, hypervisor: Hypervisor) -> None:
        self.boot_defaults = BootDefaults()
        self.names: Mapping[str, str] = {}
        """Hosts that the next machines that boot can look up, each with its address."""
        self.certificate = ""
        """Of a server that they trust, in PEM."""
        self._hypervisor = hypervisor
        self._loop = asyncio.get_running_loop()
        self._last: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._pending = 0
        self._lock = threading.Lock()
        self._idle = asyncio.Event()
        self._idle.set()

    def boot(self, spec: MachineSpec, on_up: Callable[[str], None], on_failure: Callable[[str], None]) -> None:
        """Start to boot a machine and return at once. Calls one of the callbacks later, in the event loop."""

        async def work() -> None:
            try:
                on_up(await self._hypervisor.boot(spec))
            except RuntimeError as error:
                on_failure(str(error))

        self._submit(spec.name, work)

    def destroy(self, name: str) -> None:
        """Start to destroy a machine and return at once."""

        async def work() -> None:
            await self._hypervisor.destroy(name)

        self._submit(name, work)

    def snapshot(self, name: str, image: str, on_done: Callable[[], None], on_failure: Callable[[], None]) -> None:
        """Start to make an image of a machine that is off, and return at once. Calls one of the callbacks later."""

        async def work() -> None:
            try:
                await self._hypervisor.snapshot(name, image)
            except RuntimeError:
                on_failure()
            else:
                on_done()

        self._submit(name, work)

    def restart(self, name: str) -> None:
        """Start to restart a pod's container and return at once."""

        async def work() -> None:
            await self._hypervisor.restart(name)

        self._submit(name, work)

    def alive(self, name: str) -> bool:
        """Whether the machine runs."""
        return self._hypervisor.alive(name)

    def console(self, name: str) -> str:
        """What the machine wrote to its console."""
        return self._hypervisor.console(name)

    async def settle(self) -> None:
        """Wait until all actions are done."""
        while True:
            await self._idle.wait()
            with self._lock:
                if not self._pending:
                    return
            await asyncio.sleep(0)

    def _submit(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        with self._lock:
            self._pending += 1
        self._loop.call_soon_threadsafe(self._start, name, work)

    def _start(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._idle.clear()
        task = self._loop.create_task(self._after(self._last.get(name), work), name=f"host {name}")
        self._last[name] = task
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._finish(name, done))

    @staticmethod
    async def _after(previous: asyncio.Task[None] | None, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if previous is not None:
            await asyncio.wait({previous})
        await work()

    def _finish(self, name: str, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._last.get(name) is task:
            del self._last[name]
        with self._lock:
            self._pending -= 1
        if not self._tasks:
            self._idle.set()
