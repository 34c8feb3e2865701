"""Puts a node onto an owned machine and takes it off again: the agent, its files, and all that it has changed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sys
import time
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import metadata, shares, units
from .account_files import load
from .before import NODE, Before
from .console import say
from .errors import HeadUnreachable, NodeError, ToolFailed
from .files import read_json, write_atomic
from .headlink import HeadLink
from .node import Node
from .paths import Paths
from .tools import run
from .undo import remove_tree, take_back

INSTALL_S = 900.0
"""The agent's installation joins, which may install packages."""
APT_S = 600.0
SYSTEMCTL_S = 90.0
OWN = ("etc/meshd-node", "var/lib/meshd-node", "opt/meshd-node", "run/meshd-node")


@dataclass(frozen=True)
class On:
    """Which machine of the cluster this is now. `leaving`: it is being taken off."""

    machine: str
    leaving: bool = False


def kept(paths: Paths) -> On | None:
    """What is on this machine; None when it is free."""
    found = read_json(paths.host_machine)
    return On(str(found["machine"]), bool(found.get("leaving"))) if found.get("machine") else None


def state(paths: Paths) -> tuple[str, str]:
    """(state, machine) as a poll tells them, of a machine whose agent has just started."""
    on = kept(paths)
    if on is None:
        return "free", ""
    return ("leaving" if on.leaving else "node" if paths.state_file.exists() else "joining"), on.machine


def put_on(node: Node, link: HeadLink, token: str, given: dict[str, Any]) -> None:
    """Be the node of a machine. Does nothing where that is so.

    Args:
        node: this machine.
        link: to the head.
        token: of the host.
        given: the content of join.json.

    Raises:
        NodeError, OSError: it did not work: try again.
    """
    paths, machine = node.paths, str(given["machine"])
    renew(paths.host_agent, str(given["sha256"]), link, token)
    if kept(paths) == On(machine) and read_json(paths.join_file).get("machine") == machine and node.agent.alive():
        return
    _note(paths, On(machine))
    for directory in (paths.join_file.parent, paths.state_file.parent, paths.node_agent.parent):
        directory.mkdir(parents=True, mode=0o700, exist_ok=True)
    paths.node_agent.parent.chmod(0o755)
    if read_json(paths.join_file).get("machine") != machine:
        write_atomic(paths.join_file, json.dumps(given).encode(), 0o600)
    put_agent(paths.node_agent, paths.host_agent.read_bytes())
    say(f"becomes the node {machine}", urgent=True)
    run([sys.executable, str(paths.node_agent.parent / "lib"), *_options(node), "install"], INSTALL_S)


def take_off(node: Node) -> None:
    """Be no node: end what runs, and take back what the node agent has changed. Packages stay.

    Raises:
        NodeError, OSError: it did not work: try again.
    """
    paths = node.paths
    on = kept(paths)
    if on is not None:
        _note(paths, On(on.machine, leaving=True))
    ours = Node(paths, node.systemctl, node.tun)  # with the state of the node that goes
    _stop(ours, units.NODE_UNIT)
    _wait_for_apt(paths.proc)
    _end(ours, units.SLURMD_UNIT)
    _end_users(paths)
    shares.leave(ours)
    if (paths.units / units.METADATA_UNIT).exists() and ours.guards_metadata:
        _stop(ours, units.METADATA_UNIT)
        metadata.reopen()
    if paths.munge_key.exists():
        ours.munged.stop()
    sshd = (paths.sshd_config_d / "00-meshd.conf").exists()
    before = Before(paths, NODE)
    left = take_back(before, NODE, paths)
    left += [f"/{place}: {why}" for place in OWN for why in [remove_tree(paths.root / place)] if why]
    if left:
        _remember(paths, left)
    before.forget(NODE)
    run([node.systemctl, "daemon-reload"], SYSTEMCTL_S)
    if sshd:
        for unit in ("ssh.service", "sshd.service"):
            run([node.systemctl, "try-reload-or-restart", unit], SYSTEMCTL_S, check=False)
    paths.host_machine.unlink(missing_ok=True)
    say("nothing of a node is left on this machine", urgent=True)


def put_agent(path: Path, data: bytes) -> None:
    """Put the agent's file and its unpacked form at their places."""
    new, lib = path.parent / "lib.new", path.parent / "lib"
    if path.exists() and path.read_bytes() == data and lib.is_dir():
        return
    shutil.rmtree(str(new), ignore_errors=True)
    write_atomic(path, data, 0o644)
    zipfile.ZipFile(str(path)).extractall(str(new))
    old = path.parent / "lib.old"
    shutil.rmtree(str(old), ignore_errors=True)
    if lib.exists():
        lib.rename(old)
    new.rename(lib)
    shutil.rmtree(str(old), ignore_errors=True)


def renew(path: Path, sha256: str, link: HeadLink, token: str) -> None:
    """Have the agent that the head serves. Another one than before is started in the place of this process."""
    if hashlib.sha256(path.read_bytes()).hexdigest() == sha256:
        return
    data = link.fetch("/v1/agent", token)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise HeadUnreachable("the head serves another agent than it says: is it being upgraded?")
    put_agent(path, data)
    say("the head has another agent: starting that")
    become([sys.executable, str(path.parent / "lib"), *sys.argv[1:]])


def become(words: list[str]) -> None:
    """Be another program from now on."""
    os.execv(words[0], words)  # noqa: S606


def _options(node: Node) -> list[str]:
    return ["--root", str(node.paths.root), "--proc", str(node.paths.proc), "--systemctl", node.systemctl]


def _note(paths: Paths, on: On) -> None:
    value = {"machine": on.machine, **({"leaving": True} if on.leaving else {})}
    write_atomic(paths.host_machine, json.dumps(value).encode(), 0o600)


def _remember(paths: Paths, left: list[str]) -> None:
    """Keep what could not be restored until the head is told, at the eviction."""
    old = read_json(paths.not_restored).get("lines", [])
    write_atomic(paths.not_restored, json.dumps({"lines": [*old, *left]}).encode(), 0o600)


def _stop(node: Node, unit: str) -> None:
    with suppress(ToolFailed):  # it is not there
        run([node.systemctl, "stop", unit], SYSTEMCTL_S)


def _end(node: Node, unit: str) -> None:
    """End a unit and all that it has started: steps of jobs outlive slurmd."""
    run([node.systemctl, "kill", "--signal=KILL", unit], SYSTEMCTL_S, check=False)
    _stop(node, unit)


def _wait_for_apt(proc: Path) -> None:
    """apt that the agent has started goes on when the agent ends: cut off, it would leave packages half installed."""
    deadline = time.monotonic() + APT_S
    while _runs(proc, ("apt-get", "dpkg")):
        if time.monotonic() > deadline:
            raise NodeError(f"apt has been running for over {APT_S:g} s")
        time.sleep(0.5)


def _runs(proc: Path, names: tuple[str, ...]) -> bool:
    for entry in proc.iterdir() if proc.is_dir() else ():
        if entry.name.isdigit():
            with suppress(OSError):
                if (entry / "comm").read_text().strip() in names:
                    return True
    return False


def _end_users(paths: Paths) -> None:
    """End the processes of the cluster's users, and slurmstepd's."""
    ours, _homes = load(paths)
    numbers = {uid for name, uid in ours.users.items() if name not in ours.before_users and uid > 0}
    for entry in paths.proc.iterdir() if paths.proc.is_dir() else ():
        if not entry.name.isdigit():
            continue
        with suppress(OSError, ValueError):
            step = (entry / "comm").read_text().startswith("slurmstepd")
            if step or int(_uid(entry)) in numbers:
                os.kill(int(entry.name), signal.SIGKILL)


def _uid(entry: Path) -> str:
    for line in (entry / "status").read_text("utf-8", "replace").splitlines():
        if line.startswith("Uid:"):
            return line.split()[1]
    return "-1"
