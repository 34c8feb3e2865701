"""`meshctl top` over a large cluster: time to the first node on the screen, and what viewers cost the head.

The real daemon with its journal and its socket runs over hollow machines and jobs, which do not change; a tick sees
them every 5 s. Each viewer is a real `meshctl top` on a terminal of its own, with 80 columns. The start of Python is in
the time to the first node.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import os
import pty
import re
import signal
import struct
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from statistics import median

from meshd.model.observed import Fresh, SlurmJob
from tests.bench.report import Row, report
from tests.bench.tick import Steady

ROWS, COLUMNS = 24, 80
FIRST_S = 60.0
MESHCTL = (sys.executable, "-c", "from meshd.cli.main import main; main()")
STEP_S = 0.01
SETTLE_S = 4.0


def jobs(count: int, nodes: int) -> tuple[SlurmJob, ...]:
    """Jobs that run on one node each, as long as there are nodes, and jobs that wait."""
    running = [
        SlurmJob(str(i), f"user{i % 40}", "h100", "RUNNING", (f"h100-{i}",), gpus=8) for i in range(1, nodes + 1)
    ]
    waiting = [
        SlurmJob(str(i), f"user{i % 40}", "h100", "PENDING", state_reason="Resources", gpus=8)
        for i in range(nodes + 1, count + 1)
    ]
    return tuple([*running, *waiting][:count])


class Viewer:
    """One `meshctl top` on a terminal of its own."""

    def __init__(self, socket: Path) -> None:
        self._shown = b""
        self._began_s = time.monotonic()
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            os.environ["TERM"] = "xterm-256color"
            os.execv(MESHCTL[0], [*MESHCTL, "--socket", str(socket), "top"])
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        os.set_blocking(self._terminal, False)
        asyncio.get_running_loop().add_reader(self._terminal, self._read)
        self.drawn_b = 0

    def _read(self) -> None:
        with suppress(OSError):
            data = os.read(self._terminal, 1 << 20)
            self.drawn_b += len(data)
            self._shown = (self._shown + data)[-1_000_000:]

    async def first_node_s(self) -> float:
        """Seconds from its start until a node's line is on the screen."""
        while not re.search(rb"h100-\d+ ", self._shown):
            if time.monotonic() - self._began_s > FIRST_S:
                raise TimeoutError(f"no node on the screen: {self._shown[-2000:]!r}")
            await asyncio.sleep(STEP_S)
        return time.monotonic() - self._began_s

    def cpu_s(self) -> float:
        """Its CPU time."""
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """End it."""
        asyncio.get_running_loop().remove_reader(self._terminal)
        os.kill(self._pid, signal.SIGTERM)
        os.waitpid(self._pid, 0)
        os.close(self._terminal)


@contextmanager
def viewers(count: int, socket: Path) -> Iterator[list[Viewer]]:
    """`count` viewers."""
    found = [Viewer(socket) for _ in range(count)]
    try:
        yield found
    finally:
        for viewer in found:
            viewer.close()


async def measure(nodes: int, job_count: int, count: int, seconds: float, repetitions: int) -> list[Row]:
    """All figures."""
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as name:
        steady = Steady(Path(name), nodes)
        steady.fill()
        daemon = await steady.daemon()
        current = daemon.sources.slurm.current
        assert isinstance(current, Fresh)
        view = replace(current.value, jobs=jobs(job_count, nodes))

        def tick() -> None:
            now = daemon.ports.clock.now()
            daemon.sources.slurm.current = Fresh(view, now)
            for machine in daemon.journal.machines():
                daemon.journal.note(replace(machine, heartbeat_at=now))
            daemon.machines.controller.tick()

        async def ticks() -> None:
            while True:
                await asyncio.sleep(steady.settings.timing.tick_interval_s)
                tick()

        tick()
        keeping = asyncio.create_task(ticks())
        await daemon.head.server.start()
        socket = steady.settings.cluster.socket
        try:
            first_s = []
            for _ in range(repetitions):
                with viewers(1, socket) as (viewer,):
                    first_s.append(await viewer.first_node_s())
            idle = time.process_time()
            await asyncio.sleep(seconds)
            idle = time.process_time() - idle
            with viewers(count, socket) as watching:
                for viewer in watching:
                    await viewer.first_node_s()
                await asyncio.sleep(SETTLE_S)
                busy, cpu_s = time.process_time(), [viewer.cpu_s() for viewer in watching]
                drawn_b = [viewer.drawn_b for viewer in watching]
                await asyncio.sleep(seconds)
                busy = time.process_time() - busy
                each_s = [viewer.cpu_s() - before for viewer, before in zip(watching, cpu_s, strict=True)]
                each_b = [viewer.drawn_b - before for viewer, before in zip(watching, drawn_b, strict=True)]
        finally:
            keeping.cancel()
            await daemon.head.server.stop()
        return [
            Row(f"start of meshctl to the first of {nodes:,} nodes, with {job_count:,} jobs", median(first_s), "s"),
            Row(f"head: CPU for {count} viewers", (busy - idle) / seconds * 100, "%"),
            Row("a viewer: CPU", median(each_s) / seconds * 100, "%"),
            Row("a viewer: drawn while nothing changes", median(each_b) / seconds, "B/s"),
        ]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--viewers", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--repetitions", type=int, default=5)
    given = parser.parse_args()
    rows = asyncio.run(measure(given.nodes, given.jobs, given.viewers, given.seconds, given.repetitions))
    report("top", rows, vars(given))


if __name__ == "__main__":
    main()
