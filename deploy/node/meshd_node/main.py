"""The command line: `meshd-node.pyz [--root DIR] [--systemctl PROGRAM] [--proc DIR] VERB`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import VERSION
from .bounded import begin
from .console import say, use_console, use_journal
from .errors import NodeError
from .facts import Looks, missing_programs
from .files import locked, read_json
from .install import install, supervised_agent
from .node import Node
from .paths import Paths

if TYPE_CHECKING:
    from .agent import Agent

EXIT_FAILED = 1
TURN_S = 0.0005
"""What brings the machine up mostly waits for programs and for the head, beside threads that import and compute. After
each of these waits it would wait 5 ms more for its turn."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb; the exit code: 0 done, 1 failed, 75 ended by the dead-man switch."""
    parser = argparse.ArgumentParser("meshd-node", description="makes this machine a node of a meshd cluster")
    parser.add_argument("--version", action="version", version=VERSION)
    parser.add_argument("--root", type=Path, default=Path("/"), help="directory that stands for /")
    parser.add_argument("--proc", type=Path, default=Path("/proc"), help="directory that stands for /proc")
    parser.add_argument("--systemctl", default="systemctl", help="program that stands for systemctl")
    parser.add_argument("--tun", choices=("yes", "no"), help="instead of looking for a TUN device")
    parser.add_argument("--refused-pause-s", type=float, default=30.0, help="pause after a refusal")
    parser.add_argument("verb", choices=("run", "install", "facts", "reauth", "metadata", "enrol", "host"))
    parser.add_argument("--attempt", default="", help="for reauth: the name under which it keeps its result")
    options = parser.parse_args(argv)
    paths = Paths(options.root, options.proc)
    tun = options.tun == "yes" if options.tun else None
    use_console(paths.console)
    if paths.host_file.exists() and options.verb in ("run", "install", "reauth"):
        from . import audit
        from .before import Before

        sys.dont_write_bytecode = True
        audit.watch(Before(paths))
    try:
        if options.verb == "facts":
            from . import facts

            node = Node(paths, options.systemctl, tun)
            found = facts.gather(paths, lambda: 0.0, systemd=node.systemd, tun=node.tun)
            sys.stdout.write(json.dumps(found, indent=2) + "\n")
            return 0
        if options.verb == "metadata":
            from . import metadata

            why = metadata.close()
            if why:
                say(f"the metadata service is open to users: {why}", urgent=True)
            return EXIT_FAILED if why else 0
        if options.verb == "reauth":
            from . import reauth

            reauth.carry_out(Node(paths, options.systemctl, tun), options.attempt)
            return 0
        if options.verb == "enrol":
            from . import enrol

            return enrol.enrol(Node(paths, options.systemctl, tun))
        if options.verb == "host":
            from . import host

            return host.serve(Node(paths, options.systemctl, tun))
        if options.verb == "install":
            return _install(Node(paths, options.systemctl, tun), options.refused_pause_s)
        return _run(_first_node(paths, options.systemctl, tun), options.refused_pause_s)
    except (NodeError, OSError) as error:
        say(f"{options.verb} failed: {error}", urgent=True)
        return EXIT_FAILED


def _run(node: Node, refused_pause_s: float) -> int:
    config = read_json(node.paths.join_file)
    if not config.get("heads"):
        say(f"{node.paths.join_file} names no head: nothing can be joined", urgent=True)
        return EXIT_FAILED
    node.stay_up()
    if not node.tun:
        from .handshake import open_paths
        from .tailscale import Tailscale

        open_paths(Tailscale(node.paths.tailscaled_socket), [str(head) for head in config["heads"]])
    return _agent(config, node, refused_pause_s, service=True).run()


def _first_node(paths: Paths, systemctl: str, tun: bool | None) -> Node:
    """The machine with its state, after `install` has ended; does not wait for one that hangs."""
    try:
        with locked(paths.state_file.parent):
            return Node(paths, systemctl, tun)
    except TimeoutError as error:
        say(str(error), urgent=True)
        return Node(paths, systemctl, tun)


def _agent(config: dict[str, Any], node: Node, refused_pause_s: float, *, service: bool) -> Agent:
    from .agent import Agent
    from .headlink import HeadLink
    from .meshnet import PROXY

    heads = [str(head) for head in config["heads"]]
    link = HeadLink(heads, int(config.get("port", 7677)), None if node.tun else PROXY)
    watches = None
    if service:
        from .watches import ServiceWatches

        watches = ServiceWatches(node, link)
    token, dead_man_s = str(config.get("token", "")), float(config.get("dead_man_s") or 0.0)
    return Agent(node, link, token, dead_man_s, refused_pause_s, watches)


def _install(node: Node, refused_pause_s: float) -> int:
    """Start the service, and bring the machine up meanwhile: a second start of Python would take longer.

    The service waits for the lock, then goes on from the saved state.
    """
    with locked(node.paths.state_file.parent):
        if not node.systemd:
            install(node)  # a pod's files come first
            _bring_up(node, refused_pause_s)
            return 0
        use_journal()
        installed = begin("the installation", lambda: install(node))
        try:
            _bring_up(node, refused_pause_s)
        finally:
            installed()
    return 0


def _bring_up(node: Node, refused_pause_s: float) -> None:
    config = read_json(node.paths.join_file)
    if node.state.joined or not config.get("heads") or not supervised_agent(node) or missing_programs():
        return
    sys.setswitchinterval(TURN_S)
    node.looks = Looks(node.paths, systemd=node.systemd)  # programs run while the rest is imported
    try:
        _agent(config, node, refused_pause_s, service=False).bring_up()
    except (NodeError, OSError) as error:
        say(f"the service tries again: {error}")
