"""The command line: `meshd-node.pyz [--root DIR] [--systemctl PROGRAM] [--proc DIR] run|install|facts`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from . import VERSION
from .console import say, use_console
from .errors import NodeError
from .files import read_json
from .install import install
from .node import Node
from .paths import Paths

EXIT_FAILED = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb; the exit code: 0 done, 1 failed, 75 ended by the dead-man switch."""
    parser = argparse.ArgumentParser("meshd-node", description="makes this machine a node of a meshd cluster")
    parser.add_argument("--version", action="version", version=VERSION)
    parser.add_argument("--root", type=Path, default=Path("/"), help="directory that stands for /")
    parser.add_argument("--proc", type=Path, default=Path("/proc"), help="directory that stands for /proc")
    parser.add_argument("--systemctl", default="systemctl", help="program that stands for systemctl")
    parser.add_argument("--refused-pause-s", type=float, default=30.0, help="pause after a refusal")
    parser.add_argument("verb", choices=("run", "install", "facts"))
    options = parser.parse_args(argv)
    paths = Paths(options.root, options.proc)
    use_console(paths.console)
    try:
        if options.verb == "facts":
            from . import facts

            sys.stdout.write(json.dumps(facts.gather(paths, lambda: 0.0), indent=2) + "\n")
            return 0
        node = Node(paths, options.systemctl)
        if options.verb == "install":
            install(node, ["--root", str(options.root), "--proc", str(options.proc)])
            return 0
        return _run(node, options.refused_pause_s)
    except (NodeError, OSError) as error:
        say(f"{options.verb} failed: {error}", urgent=True)
        return EXIT_FAILED


def _run(node: Node, refused_pause_s: float) -> int:
    # imported here: `install` is in a hurry and needs neither
    from .agent import Agent
    from .headlink import HeadLink

    config = read_json(node.paths.join_file)
    heads = [str(head) for head in config.get("heads") or []]
    if not heads:
        say(f"{node.paths.join_file} names no head: nothing can be joined", urgent=True)
        return EXIT_FAILED
    link = HeadLink(heads, int(config.get("port", 7677)))
    dead_man_s = float(config.get("dead_man_s") or 0.0)
    return Agent(node, link, str(config.get("token", "")), dead_man_s, refused_pause_s).run()
