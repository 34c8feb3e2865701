"""The command line of deploy/demo."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from deploy.sandbox.demo import keep

PROVIDERS = ("aws", "gce", "runpod", "lambda", "paperspace")


def main() -> int:
    """Entry; returns the exit status."""
    options = parser().parse_args()
    if os.geteuid() != 0:
        print("demo: needs root, since it boots machines and makes network namespaces: use sudo", file=sys.stderr)
        return 1
    if options.action == "down":
        return asyncio.run(keep.down(options.id, lambda text: print(text, flush=True)))
    if options.action == "shell":
        return keep.shell(options.id, options.machine, options.command)
    # What follows takes seconds to load, which the actions above need not wait for. Until the stages begin there is
    # nothing to clean up, and Ctrl-C ends it at once.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from deploy.sandbox.demo.show import Options, Show, default_gpus

    gpus = options.gpus if options.gpus is not None else default_gpus(options.providers, options.gpus_per_node)
    wanted = Options(options.id, options.providers, gpus, options.gpus_per_node, options.keep, options.torch)
    problem = wanted.problem()
    if problem:
        print(f"demo: {problem}", file=sys.stderr)
        return 2
    other = keep.owner(options.id)
    if other:
        print(f"demo: one is there already (process {other.pid}); `deploy/demo down` ends it", file=sys.stderr)
        return 1

    def perform(stay: Callable[[Path], None] | None) -> int:
        return keep.run_until_stopped(lambda: asyncio.create_task(Show(wanted, stay).perform()))

    return keep.in_background(perform) if options.keep else perform(None)


def _providers(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    wrong = [name for name in names if name not in PROVIDERS]
    if wrong:
        raise argparse.ArgumentTypeError(f"there is no provider {wrong[0]!r}; there are {', '.join(PROVIDERS)}")
    return names


def _one_provider(text: str) -> tuple[str, ...]:
    names = _providers(text)
    if len(names) > 1:
        raise argparse.ArgumentTypeError("this takes one; several go to --providers")
    return names


def parser() -> argparse.ArgumentParser:
    """What deploy/demo takes."""
    parser = argparse.ArgumentParser(prog="deploy/demo", description="Bring a cluster up, use it, and remove it.")
    parser.add_argument("--id", default="demo", help="name of the sandbox, 1 to 12 letters and digits")
    whose = parser.add_mutually_exclusive_group()
    whose.add_argument(
        "--providers",
        type=_providers,
        default=("aws",),
        metavar="A,B,...",
        help=f"whose stand-ins rent the machines, of {', '.join(PROVIDERS)}; each has room for its share only (aws)",
    )
    whose.add_argument(
        "--provider", dest="providers", type=_one_provider, default=argparse.SUPPRESS, metavar="A", help="only one"
    )
    parser.add_argument(
        "--gpus", type=int, metavar="N", help="how many GPUs in all (8; with several providers two machines of each)"
    )
    parser.add_argument("--gpus-per-node", type=int, default=1, metavar="N", help="how many in each machine (1)")
    parser.add_argument("--keep", action="store_true", help="leave all of it running after the job")
    parser.add_argument("--torch", action="store_true", help="nodes with PyTorch, and MLflow: all that recipes/ needs")
    actions = parser.add_subparsers(dest="action", title="afterwards")
    down = actions.add_parser("down", help="end a demonstration and remove every trace of it, also of a crashed one")
    shell = actions.add_parser("shell", help="a root shell in a machine of a kept demonstration")
    shell.add_argument("machine", nargs="?", default="head")
    shell.add_argument("command", nargs=argparse.REMAINDER, help="a program instead of the shell")
    for action in (down, shell):
        action.add_argument("--id", default=argparse.SUPPRESS, help="name of the sandbox (demo)")
    return parser
