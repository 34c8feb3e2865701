"""An interrupt reaches the workers of pytest-xdist, which take down what their fixtures made before they end.

By itself pytest-xdist tells its workers nothing, and kills them ten seconds later. Machines and mounts would be left.
"""

from __future__ import annotations

import os
import signal
import time
from queue import Empty
from typing import Any

import pytest

CLEANED_WITHIN_S = 240.0
"""To take down a sandbox takes seconds; more where the machine is busy."""

ENDED = ("workerfinished", "errordown")


class Workers:
    """A plugin for the process that has workers, for a worker, and for pytest without workers."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self) -> None:
        """A worker is interrupted once: nothing may break off what it now takes down."""
        if "PYTEST_XDIST_WORKER" in os.environ:
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Interrupt the workers that still run, and wait for their end: pytest-xdist ends them after this."""
        xdist: Any = session.config.pluginmanager.getplugin("dsession")
        running = set() if xdist is None else set(xdist._active_nodes)
        for worker in running:
            os.kill(worker.gateway._io.popen.pid, signal.SIGINT)
        end_s = time.monotonic() + CLEANED_WITHIN_S
        while running and time.monotonic() < end_s:
            try:
                name, event = xdist.queue.get(timeout=1)
            except Empty:
                continue
            if name in ENDED:
                running.discard(event["node"])
