"""`meshctl run`: a command on many nodes at once."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from meshd.api import endpoints
from meshd.api.schema import NodeRow, NodesView
from meshd.cli.client import HeadClient
from meshd.cli.commands.ssh import find_node
from meshd.cli.errors import CliError
from meshd.cli.fanout import Ended, Fanout, Job, remote_command, worst
from meshd.cli.params.hostlist import expand
from meshd.cli.params.options import run_nodes_argument, words_argument
from meshd.cli.params.values import WholeNumber, optional_duration
from meshd.cli.session import Session, find_ssh_key, say
from meshd.cli.ssh import root_key, ssh_argv, ssh_program, target
from meshd.runtime.terminal import clean

AT_ONCE = 32
SSH_FAILED = 255

EXAMPLES = """\b
Examples:
  meshctl run h100 -- nvidia-smi -L                 on all nodes of a pool
  meshctl run 'h100-[1-4]' -- uptime
  meshctl run -b h100,a100-2 -- uname -r            equal output once
  meshctl run --no-prefix h100-1 -- tar c /etc >etc.tar
"""


@click.command("run", epilog=EXAMPLES, context_settings={"allow_interspersed_args": False})
@click.option("-b", "--gather", is_flag=True, help="Print equal output of several nodes once, at the end.")
@click.option("--no-prefix", is_flag=True, help="Print the bytes of one node as they are.")
@click.option(
    "-p", "--parallel", metavar="N", type=WholeNumber(1, 256), default=AT_ONCE, show_default=True,
    help="How many nodes at once.",
)  # fmt: skip
@click.option(
    "--timeout", "timeout_s", metavar="TIME", callback=optional_duration, default=None,
    help="End the command on a node after this time: 90s, 30m, 2h.",
)  # fmt: skip
@run_nodes_argument
@words_argument(required=True)
@click.pass_context
def command(
    ctx: click.Context,
    *,
    gather: bool,
    no_prefix: bool,
    parallel: int,
    timeout_s: float | None,
    nodes: str,
    words: tuple[str, ...],
) -> None:
    """Run a command on nodes at once, by ssh, without a terminal.

    NODES are slots, machines or pools: h100, 'h100-[1-4]', h100-1,a100-2. Each line is printed behind its node's name.
    The command runs as with `meshctl ssh`, and reads nothing. Ctrl-C ends it on all nodes. The exit code is the highest
    of all nodes: 255 if ssh fails, 124 after a timeout.
    """
    session: Session = ctx.obj
    if gather and no_prefix:
        raise click.UsageError("--gather and --no-prefix exclude each other")
    names = expand((nodes,))
    key = root_key(find_ssh_key(session.config))
    rows = session.ask(lambda head: find_nodes(head, names))
    if no_prefix and len(rows) != 1:
        raise click.UsageError(f"--no-prefix is for one node, not for {len(rows)}")
    program, remote = ssh_program(), remote_command(words)
    options = ("-T", "-o", "BatchMode=yes")
    jobs, refused = [], []
    for row in rows:
        try:
            to = target(row, root=key is not None)
            jobs.append(Job(row.slot, ssh_argv(to, key, program=program, options=options, words=(remote,))))
        except CliError as error:
            if len(rows) == 1:
                raise
            refused.append((row.slot, error))
    fanout = Fanout(parallel, timeout_s, None if gather else _raw if no_prefix else _printed, raw=no_prefix)
    ended = session.run(fanout.run(jobs))
    if gather:
        _print_gathered(ended)
    for name, why in refused:
        say(f"{name}: {why.message}")
    for one in ended:
        if one.timed_out:
            say(f"{one.name}: ended after {timeout_s:g} s")
        elif one.code and not no_prefix:
            say(f"{one.name}: exit code {one.code}")
    ctx.exit(max(worst(ended), SSH_FAILED if refused else 0))


async def find_nodes(head: HeadClient, names: Sequence[str]) -> list[NodeRow]:
    """The machines of these names, each once: those of a pool that have joined and stay, and each that is named itself.

    Raises:
        CliError: a name has no machine.
    """
    view = await head.call(endpoints.NODES)
    found: dict[str, NodeRow] = {}
    for name in names:
        of_pool = _of_pool(view, name)
        for row in of_pool or [await find_node(head, name)]:
            found[row.machine] = row
    return list(found.values())


def _of_pool(view: NodesView, pool: str) -> list[NodeRow]:
    return [
        row for row in view.nodes
        if row.pool == pool and row.joined and row.address and row.phase not in ("terminating", "lost")
    ]  # fmt: skip


def _raw(_name: str, number: int, data: bytes) -> None:
    stream = sys.stdout.buffer if number == 1 else sys.stderr.buffer
    stream.write(data)
    stream.flush()


def _printed(name: str, number: int, data: bytes) -> None:
    text = clean(data.decode("utf-8", "replace").replace("\r\n", "\n"))
    lines = "".join(f"{name}: {line}\n" for line in text.splitlines())
    stream = sys.stdout if number == 1 else sys.stderr
    stream.write(lines)
    stream.flush()


def _print_gathered(ended: Sequence[Ended]) -> None:
    """Equal outputs once, below the nodes that have it, as clush does."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet  # slow to import, and rarely needed

    groups: dict[bytes, list[str]] = {}
    for one in ended:
        groups.setdefault(one.output, []).append(one.name)
    rule = "-" * 15
    for output, names in groups.items():
        nodes = NodeSet.fromlist(names, resolver=RESOLVER_NOGROUP)
        count = f" ({len(names)})" if len(names) > 1 else ""
        click.echo(f"{rule}\n{nodes}{count}\n{rule}")
        text = clean(output.decode("utf-8", "replace").replace("\r\n", "\n"))
        click.echo(text, nl=bool(text) and not text.endswith("\n"))
    for one in ended:
        if one.cut:
            say(f"{one.name}: its output is longer: the rest was left out")
