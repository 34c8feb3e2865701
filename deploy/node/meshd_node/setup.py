"""The section `setup`: a script of the pool that runs once as root on a new machine, before its first job.

Its output goes into a log of its own. When it succeeds, the machine remembers that, and never runs a set-up again: not
after a reboot, nor when the pool gets another script. A failed one is run again, TRIES times in all and within its
deadline.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import Hopeless, ToolFailed
from .files import read_json, write_atomic
from .tools import around, search_path

if TYPE_CHECKING:
    from .node import Node

TRIES = 3
LOOK_S = 0.1
TELL_EVERY_S = 10.0
SHOWN_CHARS = 300
READ_B = 64 * 1024
"""Of the end of the log."""


def apply(node: Node, value: dict[str, Any], tell: Callable[[str], None]) -> None:
    """Run the script, unless a set-up has succeeded on this machine.

    Args:
        node: this machine.
        value: {"script": its text, "" for none; "timeout_s": for all tries together; "pool": the pool's name}.
        tell: called with the last line of its output.

    Raises:
        ToolFailed: it failed; it may be run again.
        Hopeless: it failed TRIES times, or did not end in time.
        OSError: it cannot be started, e.g. since the program behind #! is missing.
    """
    script, timeout_s = str(value["script"]), float(value["timeout_s"])
    if not script or node.paths.setup_done.exists():
        return
    kept = read_json(node.paths.setup_tries)
    began_unix = min(float(kept.get("began_unix") or time.time()), time.time())
    tries = int(kept.get("tries") or 0) + 1 if kept.get("script") == script else 1
    if tries == 1:
        began_unix = time.time()
    now = {"script": script, "tries": tries, "began_unix": began_unix}
    write_atomic(node.paths.setup_tries, json.dumps(now).encode(), 0o600)
    write_atomic(node.paths.setup_script, script.encode(), 0o700)
    left_s = began_unix + timeout_s - time.time()
    with around("setup"):
        code = _run(node, str(value["pool"]), max(left_s, 0.0), tell)
    if code is None:
        raise Hopeless(f"the script did not end within {timeout_s:g} s: {_end(node.paths.setup_log)}")
    if code != 0:
        text = f"the script ended with exit code {code} (try {tries} of {TRIES}): {_end(node.paths.setup_log)}"
        raise Hopeless(text) if tries >= TRIES else _Failed(text)
    write_atomic(node.paths.setup_done, b"", 0o600)
    node.paths.setup_tries.unlink(missing_ok=True)


class _Failed(ToolFailed):
    """The script failed; another try may help."""

    def __init__(self, text: str) -> None:
        self.program = "setup"
        Exception.__init__(self, text)


def _run(node: Node, pool: str, timeout_s: float, tell: Callable[[str], None]) -> int | None:
    """Run the script; its exit code, or None when it was killed since it did not end in time."""
    env = {
        "PATH": search_path(), "HOME": "/root", "LANG": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive",
        "MESHD_POOL": pool, "MESHD_NODE": node.state.slot, "MESHD_CLUSTER": node.state.cluster,
    }  # fmt: skip
    log = node.paths.setup_log
    log.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "wb") as out:
        process = subprocess.Popen(
            _argv(node.paths.setup_script), stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env,
            cwd=str(node.paths.root), start_new_session=True,
        )  # fmt: skip
    end_s, told_s = time.monotonic() + timeout_s, time.monotonic()
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(min(LOOK_S, max(end_s - time.monotonic(), 0.0)))
        if time.monotonic() >= end_s:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return None
        if time.monotonic() >= told_s + TELL_EVERY_S:
            told_s = time.monotonic()
            tell(_end(log).rpartition(" | ")[2])


def _argv(script: Path) -> list[str]:
    """How to start the script: itself where it names its interpreter, otherwise with sh. No file is executed that is
    being written: its writer's child of another thread would make that fail (ETXTBSY).
    """
    with script.open("rb") as file:
        first = file.readline().decode("utf-8", "replace").strip()
    words = first[2:].split(None, 1) if first.startswith("#!") else ["/bin/sh"]
    return [*words, str(script)]


def _end(log: Path) -> str:
    """The last lines of the output, on one line."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - READ_B))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    text = " | ".join(" ".join(line.split()) for line in lines if line.strip())
    return text[-SHOWN_CHARS:] or "no output"
