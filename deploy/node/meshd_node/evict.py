"""Takes all of meshd off an owned machine: what the node agent left is gone already.

Packages first, since their scripts change files; then the files. The head is told over the tailnet, and only then the
packages go that the invitation has brought: tailscale and Python. That is done without Python, by take_off.sh.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from .before import HOST, SEEN_BY_APT, TABLES, Before, installed, scan
from .console import say
from .errors import HeadRefused, HeadUnreachable, NodeError
from .files import read_json, write_atomic
from .headlink import HeadLink
from .host_node import become
from .node import Node
from .paths import Paths
from .snapshot import ABSENT, DIRECTORY, Snapshot, put, take
from .tools import find, run
from .undo import judge, remove_tree, take_back

PURGE_S = 600.0
TELL_S = 3600.0
"""For the head to hear that it is done; then the machine leaves without."""
PAUSE_S = 5.0
LINES_MAX, LINE_CHARS = 64, 400
_LATER = ("var/lib/tailscale", "var/cache/tailscale")
"""What goes with tailscale itself."""


def evict(
    node: Node,
    link: HeadLink | None,
    token: str,
    leave: Callable[[list[str]], None] = become,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Take everything back, tell the head, and end this process in favour of the last step.

    Args:
        node: this machine, which is no node any more.
        link: to the head; None where it has forgotten this machine.
        token: of the host.
        leave: becomes another program.
        monotonic: seconds.
        sleep: pauses, in seconds.

    Raises:
        NodeError, OSError: it did not work: try again.
    """
    paths = node.paths
    say("meshd is taken off this machine", urgent=True)
    left = restore(paths)
    if link is not None:
        _tell(link, token, left, monotonic, sleep)
    prepare(paths)
    leave(["/bin/sh", str(paths.host_agent.parent / "run")])


def restore(paths: Paths) -> list[str]:
    """Take back the layer `host` but for what needs the packages of the invitation; what could not be, a line each."""
    before = Before(paths, HOST)
    facts = before.logs[HOST].facts
    tables = {str(paths.root / table) for table in TABLES}
    # First the accounts that meshd made: scripts of packages refuse to delete some of them, and then fail.
    left = take_back(before, HOST, paths, skip=lambda path: path not in tables)
    judge(before, HOST)
    seen = scan(paths.root, SEEN_BY_APT, before.store)
    left += purge(facts.get("packages", []))
    _without_traces(before, seen, scan(paths.root, SEEN_BY_APT))
    later = set(_files_of(facts.get("script packages", [])))
    left += take_back(before, HOST, paths, skip=lambda path: path in later or "meshd-host.service" in path)
    for name in facts.get("absent", []):
        path = paths.root / name.lstrip("/")
        if str(path.relative_to(paths.root)) not in _LATER and (why := remove_tree(path)):
            left.append(f"{name}: {why}")
    left += [f"package {change}" for change in facts.get("upgraded", [])]
    saved = read_json(paths.not_restored).get("lines", [])
    left = list(dict.fromkeys([*saved, *left]))
    write_atomic(paths.not_restored, json.dumps({"lines": left}).encode(), 0o600)
    return left


def _without_traces(before: Before, old: dict[str, Snapshot], new: dict[str, Snapshot]) -> None:
    """Put back what the removal of packages has changed and their installation had not, e.g. ucf's registry."""
    known = {record.path for record in before.logs[HOST].records}
    for name in sorted({*old, *new} - known):
        was = old.get(name, Snapshot())
        if not was.same(new.get(name, Snapshot())):
            put(Path(name), was, before.store)


def purge(names: Iterable[str]) -> list[str]:
    """Remove packages with their settings; those that stay, a line each. dpkg removes none that another one needs."""
    if not find("dpkg"):
        return []
    deadline = time.monotonic() + PURGE_S
    while there := [name for name in names if name in installed()]:
        os.environ["DEBIAN_FRONTEND"] = "noninteractive"
        result = run(["dpkg", "--purge", *there], PURGE_S, check=False)
        if "lock" in result.stderr and time.monotonic() < deadline:
            time.sleep(PAUSE_S)
            continue
        break
    have = installed()
    return [f"package {name} stays: others need it, or dpkg failed" for name in names if name in have]


def prepare(paths: Paths) -> None:
    """Lay out what the last step needs: see take_off.sh."""
    folder, before = paths.last_step, Before(paths, HOST)
    log, root = before.logs[HOST], paths.last_step / "root"
    have = installed()
    later = [name for name in log.facts.get("script packages", []) if name in have]
    gone = [f"/{name}" for name in _LATER if f"/{name}" in log.facts.get("absent", [])]
    root.mkdir(parents=True, mode=0o700, exist_ok=True)
    for name in dict.fromkeys(record.path for record in log.records):
        path = Path(name)
        inside = str(path.relative_to(paths.root))
        now = take(path, content=False)
        first = next(record.before for record in log.records if record.path == name)
        if "meshd-host.service" in inside or now.kind == DIRECTORY:
            continue
        if now.kind == ABSENT or first.kind == ABSENT:
            gone.append(f"/{inside}")
        else:
            (root / inside).parent.mkdir(parents=True, exist_ok=True)
            run(["cp", "-aT", "--remove-destination", name, str(root / inside)], 60.0)
    old = paths.host_lib / "found/root/var/lib/tailscale"
    if old.is_dir():
        (root / "var/lib").mkdir(parents=True, exist_ok=True)
        run(["cp", "-a", str(old), str(root / "var/lib/")], 60.0)
    write_atomic(folder / "packages", "".join(f"{name}\n" for name in later).encode())
    write_atomic(folder / "gone", "".join(f"{name}\n" for name in gone).encode())
    for name in ("logged-in", "running"):
        if (paths.host_lib / "found" / name).exists():
            write_atomic(folder / name, b"")
    write_atomic(folder / "complete", b"")


def _tell(
    link: HeadLink, token: str, left: list[str], monotonic: Callable[[], float], sleep: Callable[[float], None]
) -> None:
    body = {"not_restored": [line[:LINE_CHARS] for line in left[:LINES_MAX]]}
    until_s = monotonic() + TELL_S
    while True:
        try:
            link.call("POST", "/v1/hosts/evicted", token, body)
            return
        except HeadRefused as error:
            if error.status == 401:
                return  # the head has heard it already, or has forgotten this machine
            say(f"the head refused: {error}")
        except HeadUnreachable as error:
            say(str(error))
        if monotonic() > until_s:
            say("the head does not hear that meshd is off this machine: going on without", urgent=True)
            return
        sleep(PAUSE_S)


def _files_of(packages: list[str]) -> list[str]:
    """The files that packages have brought, their settings too."""
    found: list[str] = []
    have = installed()
    for name in packages:
        if name in have:
            with suppress(NodeError):
                found += run(["dpkg-query", "-L", name], 30.0).stdout.splitlines()
                found += [
                    line.split()[0]
                    for line in run(["dpkg-query", "-W", "-f", "${Conffiles}\n", name], 30.0).stdout.splitlines()
                    if line.strip()
                ]
    return found
