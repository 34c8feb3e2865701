"""The life of the daemon: starts its parts, serves until a signal ends it, and stops them in order."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from meshd import __version__
from meshd.config import Settings
from meshd.daemon.app import Daemon, build
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.ports import open_ports
from meshd.runtime.gc_tuning import tune_gc
from meshd.runtime.tasks import keep_running
from meshd.store.journal import Journal

log = structlog.get_logger(__name__)

STOP_GRACE_S = 15.0


async def live(settings: Settings, path: Path) -> None:
    """Run until a signal says to stop. The journal knows what was not finished.

    Args:
        settings: those that the file says.
        path: the file, for reloads.

    Raises:
        MeshdError: the daemon cannot start.
    """
    daemon = open_daemon(settings, path)
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, daemon.head.reload)
    await serve(daemon, stop)


def open_daemon(settings: Settings, path: Path) -> Daemon:
    """Build the daemon around the real ports, inside a running event loop. Raises MeshdError."""
    journal = Journal(settings.cluster.state_dir / "journal.db")
    return build(LiveSettings(settings, path, journal.machines), journal, open_ports(settings))


async def serve(daemon: Daemon, stop: asyncio.Event) -> None:
    """Start the parts, wait for `stop`, and end them."""
    log.info(
        "meshd_starts", version=__version__, cluster=daemon.live.settings.cluster.name,
        providers=sorted(daemon.ports.providers),
    )  # fmt: skip
    tasks = [_task(daemon, "tailnet", daemon.tailnet.run)]
    try:
        await daemon.sources.first_look()
        tune_gc()
        await daemon.slurm_files.start()
        await daemon.head.server.start()
        bodies: dict[str, Callable[[], Awaitable[None]]] = {one.name: one.run for one in daemon.controllers}
        bodies |= {"node_api": daemon.node_api.run, "metrics": daemon.head.metrics.run, "web": daemon.web.run}
        bodies |= daemon.sources.bodies()
        tasks += [_task(daemon, name, body) for name, body in bodies.items()]
        daemon.notifier.ready("looking around")
        await stop.wait()
    finally:
        await _end(daemon, tasks)


def _task(daemon: Daemon, name: str, body: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
    return asyncio.create_task(keep_running(name, body, daemon.ports.clock), name=name)


async def _end(daemon: Daemon, tasks: list[asyncio.Task[None]]) -> None:
    daemon.notifier.stopping("finishing the steps in flight")
    await daemon.head.server.stop()
    # No new steps; those in flight may need the node API and the sources to come to their end.
    for task in tasks:
        if task.get_name() == daemon.machines.controller.name:
            task.cancel()
    await daemon.machines.executor.aclose(STOP_GRACE_S)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await daemon.prices.aclose()
    for provider in daemon.ports.providers.values():
        await provider.aclose()
    await daemon.ports.tailscaled.aclose()
    if daemon.ports.keys.api is not None:
        await daemon.ports.keys.api.aclose()
    daemon.journal.close()
    log.info("meshd_stopped")
