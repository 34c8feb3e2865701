"""A demonstration that stays: it goes on in a process of its own, until somebody takes it down."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from deploy.sandbox import pods
from deploy.sandbox.demo import checks
from deploy.sandbox.nspawn import inside, leader_of
from deploy.sandbox.presence import STATE_ROOT
from deploy.sandbox.processes import PidFolder, ProcessId, wait_gone
from deploy.sandbox.world import World

_GRACE_S = 90.0


def in_background(body: Callable[[Callable[[Path], None]], int]) -> int:
    """Run `body` in a child process of its own session, until it ends or says that it stays.

    Ctrl-C reaches the child through this process, which waits until the child has cleaned up.

    Args:
        body: gets a function to call when it wants to stay, with the file that its later output goes to.

    Returns:
        What body returned, or 0 when it stays.
    """
    reading, writing = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.setsid()

        def stay(log: Path) -> None:
            sys.stdout.flush()
            nowhere = os.open(os.devnull, os.O_RDONLY)
            file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            for source, target in ((nowhere, 0), (file, 1), (file, 2)):
                os.dup2(source, target)
            os.write(writing, b"k")
            os.close(writing)

        status = 1
        try:
            status = body(stay)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    os.close(writing)

    def forward(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, forward)
    if os.read(reading, 1):
        return 0
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def owner(sandbox_id: str) -> ProcessId | None:
    """The process that a sandbox lives in; None when there is none."""
    process = PidFolder(STATE_ROOT / sandbox_id / "owner").get("owner")
    return process if process and process.alive() else None


async def down(sandbox_id: str, say: Callable[[str], None]) -> int:
    """End a demonstration, kept, running or crashed, and remove every trace of it."""
    process = owner(sandbox_id)
    pids = PidFolder(STATE_ROOT / sandbox_id / "pids").recorded()
    if process:
        say(f"sandbox {sandbox_id}: process {process.pid} is asked to end it ...")
        process.kill(signal.SIGTERM)
        if not await wait_gone(process, _GRACE_S):
            say(f"it has not after {_GRACE_S:.0f} s and is killed")
            process.kill()
            await wait_gone(process, 10.0)
    await World.down(sandbox_id)
    left = checks.traces(sandbox_id, pids)
    for trace in left:
        say(f"left behind: {trace}")
    say(f"sandbox {sandbox_id}: {'not all of it is gone' if left else 'nothing is left'}")
    return 1 if left else 0


def shell(sandbox_id: str, machine: str, argv: list[str]) -> int:
    """Become a root shell (or another program) inside a machine of a sandbox that runs; returns only on failure."""
    pids = PidFolder(STATE_ROOT / sandbox_id / "pids")
    process = pids.get(machine)
    leader = leader_of(process.pid) if process and process.alive() else None
    if leader:
        argv, home = argv or ["/bin/bash", "--login"], STATE_ROOT / sandbox_id / "machines" / machine
        pod = pods.is_pod(home)
        words = pods.inside(home, machine, argv, tty=sys.stdin.isatty()) if pod else inside(leader, argv)
        os.execvp(words[0], words)  # noqa: S606 - this process becomes the machine's
    folder = STATE_ROOT / sandbox_id / "machines"
    there = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    known = f"machines are {', '.join(there)}" if there else "nothing runs: `deploy/demo --keep` first"
    print(f"demo: there is no machine {machine!r} in sandbox {sandbox_id!r}; {known}", file=sys.stderr)
    return 1


def run_until_stopped(body: Callable[[], asyncio.Task[int]]) -> int:
    """Run a task to its end; a signal cancels it once, further ones wait for its cleaning up."""

    async def main() -> int:
        task = body()
        loop = asyncio.get_running_loop()
        told = False

        def stop(number: int) -> None:
            nonlocal told
            print(f"\n{signal.Signals(number).name}: {'still ' if told else ''}cleaning up ...", file=sys.stderr)
            if not told:
                told = True
                task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, stop, number)
        return await task

    return asyncio.run(main())
