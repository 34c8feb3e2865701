"""libmeshnet and meshnetd: they carry connections to the tailnet on a machine without a TUN device.

tailscaled runs in user space there, and offers proxies at 127.0.0.1:1055. The agent itself uses the HTTP proxy. All
other programs get libmeshnet through /etc/ld.so.preload; it talks to meshnetd (deploy/container/meshnet).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from .console import say
from .errors import NotPossible
from .files import write_file
from .node import Node
from .paths import Paths
from .pod import build
from .tools import run

PROXY = ("127.0.0.1", 1055)
LIBRARY = "libmeshnet.so"
SOCKET_WAIT_S = 20.0
STEP_S = 0.02


def prepare(node: Node, report: Callable[[str], None] = lambda _text: None) -> None:
    """Have the library loaded into every program that starts from now on, where it is needed. Idempotent.

    Args:
        node: this machine.
        report: called with the error text of each try to install a compiler that fails.

    Raises:
        NotPossible, ToolFailed: it cannot be built, or does not load. Or systemd runs here: stage 1 and meshd know
            tailscaled in user space only in containers.
    """
    paths = node.paths
    library = str(paths.pod / LIBRARY)
    if node.tun:
        _set_preloaded(paths, library, wanted=False)
        return
    if node.systemd:
        raise NotPossible("this machine has systemd and no TUN device", "load the kernel's module tun", "tailnet")
    build(paths, report)
    node.meshnetd.start()
    _wait_for_socket(node)
    _check_loads(library)
    _set_preloaded(paths, library, wanted=True)


def preloaded(text: str, library: str, wanted: bool) -> str:
    """The text of /etc/ld.so.preload with or without this library. Other libraries and comments stay as they are.

    Words are separated by blanks, line breaks and colons.
    """
    lines = []
    found = False
    for line in text.splitlines():
        words, mark, comment = line.partition("#")
        if library not in words.replace(":", " ").split():
            lines.append(line)
            continue
        rest = [word for word in words.replace(":", " ").split() if word != library]
        if wanted:
            lines.append(line)
            found = True
        elif rest or mark:
            lines.append(" ".join(rest) + mark + comment)
    if wanted and not found:
        lines.append(library)
    return "".join(f"{line}\n" for line in lines)


def _set_preloaded(paths: Paths, library: str, wanted: bool) -> None:
    try:
        old = paths.preload.read_text("utf-8", "surrogateescape")
    except FileNotFoundError:
        old = ""
    new = preloaded(old, library, wanted)
    if new != old:
        write_file(paths.preload, new.encode("utf-8", "surrogateescape"), 0o644)
        say(f"{paths.preload} {'names' if wanted else 'no longer names'} {library}")


def _wait_for_socket(node: Node) -> None:
    deadline = time.monotonic() + SOCKET_WAIT_S
    while not node.paths.meshnetd_socket.exists():
        if time.monotonic() > deadline:
            state = "runs" if node.meshnetd.alive() else "does not run"
            raise NotPossible(f"meshnetd {state} but made no socket", "see its log")
        time.sleep(STEP_S)


def _check_loads(library: str) -> None:
    """The loader only warns of a library that it cannot load, at each start of each program."""
    result = run(["env", f"LD_PRELOAD={library}", "true"], 10.0)
    if library in result.stderr:
        raise NotPossible(f"libmeshnet does not load: {result.stderr.strip()[-200:]}", "see its build")
