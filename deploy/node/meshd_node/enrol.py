"""Redeems an invitation: the machine becomes a host, and what the invitation's script has found here is kept for good.

Until the head has accepted it, nothing is changed but meshd's own directories: the script can take all back by itself.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from . import facts, units
from .before import HOST, SEEN_BY_APT, Before, installed, names_of_apt, parse_packages, scan
from .console import say
from .errors import HeadRefused, HeadUnreachable, NodeError
from .files import read_json, write_atomic
from .headlink import HeadLink
from .node import Node
from .paths import Paths
from .services import start_unit
from .snapshot import Snapshot

CALL_S = 60.0
EXIT_AGAIN, EXIT_REFUSED = 1, 4

RUN = """\
#!/bin/sh
# Written by meshd: the host agent; and when this machine is evicted, what is left to do without Python.
lib=/var/lib/meshd-host
if [ -d $lib ] && ! [ -e $lib/last/complete ]; then
  exec {python} {agent} host
fi
. /opt/meshd-host/take_off.sh
[ ! -d $lib ] || take_off $lib/last
forget_meshd
"""


def enrol(node: Node) -> int:
    """Redeem the invitation in /var/lib/meshd-host/enrol.json, and start the host agent. The exit code; idempotent."""
    paths = node.paths
    config = read_json(paths.enrol_file)
    link = HeadLink([str(head) for head in config.get("heads") or []], int(config.get("port") or 0))
    try:
        if not paths.host_file.exists():
            answer = link.call("POST", "/v1/hosts/enrol", str(config["token"]), _body(node, link), CALL_S)
            _take(paths, config, answer)
        ingest(paths)
        _start(node)
    except HeadRefused as error:
        print(error, file=sys.stderr)  # noqa: T201  the script shows its last line
        return EXIT_REFUSED if error.fatal else EXIT_AGAIN
    except (NodeError, OSError, KeyError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_AGAIN
    return 0


def _body(node: Node, link: HeadLink) -> dict[str, Any]:
    found = facts.gather(node.paths, link.clock_skew_s, systemd=True, tun=node.tun)
    if not found["shape"]["cpus"]:
        found["shape"] = {**found["shape"], "cpus": os.cpu_count() or 1, "memory_mib": memory_mib(node.paths.proc)}
    return {
        "facts": found,
        "tailnet": _device(node.paths),
        "slurm_version": found["slurmd_version"],
        "in_use": "",  # the script has looked before it changed anything
    }


def memory_mib(proc: Path) -> int:
    """The machine's memory, by the kernel."""
    for line in (proc / "meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) // 1024
    return 0


def _device(paths: Paths) -> str:
    """Whose the login on the tailnet is: "own" of the machine's owner, or "ours"."""
    return (paths.host_lib / "device").read_text().strip()


def _take(paths: Paths, config: dict[str, Any], answer: dict[str, Any]) -> None:
    """Save the head's answer, before it is used."""
    token = answer.get("host_token")
    if not isinstance(token, str) or not token:
        raise HeadUnreachable("the head's answer to the invitation cannot be used")
    kept = {
        "host": str(answer.get("host") or config["host"]),
        "heads": config["heads"],
        "port": config["port"],
        "token": token,
        "poll_hold_s": float(answer.get("poll_hold_s") or 25.0),
        "tailnet": _device(paths),
    }
    write_atomic(paths.host_file, json.dumps(kept).encode(), 0o600)
    say(f"accepted as the host {kept['host']}", urgent=True)


def ingest(paths: Paths) -> None:
    """Keep what the script has found, and what it has changed: the first records of the layer `host`. Idempotent."""
    before = Before(paths, HOST)
    log = before.logs[HOST]
    if "begun" in log.facts:
        return
    found = paths.host_lib / "found"
    packages = parse_packages(_lines(found / "packages"))
    if not packages:
        raise NodeError(f"{found}/packages names no package: all of this machine's would be meshd's")
    old = scan(paths.root, SEEN_BY_APT, before.store, seen_at=found / "root")
    new = scan(paths.root, SEEN_BY_APT, before.store)
    before.note(old, new)
    for name, shot in names_of_apt(paths.root, _lines(found / "names")).items():
        log.add(name, Snapshot(), shot)
    now = installed()
    log.learn("script packages", [name for name in now if name not in packages])
    log.learn("upgraded", [
        f"{name} {packages[name]} -> {now[name]}" for name in now if packages.get(name, now[name]) != now[name]
    ])  # fmt: skip
    log.learn("absent", _lines(found / "absent"))
    log.learn("begun", ["yes"])


def _start(node: Node) -> None:
    """Install the host agent and start it."""
    paths = node.paths
    agent = paths.host_agent.parent / "lib"
    python = sys.executable or "/usr/bin/python3"
    folder = paths.host_agent.parent
    write_atomic(folder / "take_off.sh", _script(), 0o600)
    write_atomic(folder / "run", RUN.format(python=python, agent=agent).encode(), 0o700)
    write_atomic(paths.units / units.HOST_UNIT, units.host_unit(str(folder / "run")).encode(), 0o644)
    wants = paths.units / "multi-user.target.wants"
    wants.mkdir(parents=True, exist_ok=True)
    link = wants / units.HOST_UNIT
    if not link.is_symlink():
        link.symlink_to(f"/etc/systemd/system/{units.HOST_UNIT}")
    start_unit(node.systemctl, "--no-block", "restart", units.HOST_UNIT)


def _script() -> bytes:
    import pkgutil

    return pkgutil.get_data(__package__, "take_off.sh") or b""


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text("utf-8", "surrogateescape").splitlines() if line]
    except FileNotFoundError:
        return []
