"""`meshctl ssh`: a shell or a command on a node."""

from __future__ import annotations

import os
import sys

import click

from meshd.api import endpoints
from meshd.api.schema import ExplainQuery, NodeRow
from meshd.cli.client import HeadClient
from meshd.cli.errors import CliError
from meshd.cli.params.options import node_argument, words_argument
from meshd.cli.session import Session, find_ssh_key
from meshd.cli.ssh import root_key, ssh_argv, ssh_program, target

EXAMPLES = """\b
Examples:
  meshctl ssh h100-3                          a shell
  meshctl ssh h100-3 nvidia-smi -L            a command
  meshctl ssh -L 6006:localhost:6006 h100-3   a forwarded port
  meshctl ssh -o ServerAliveInterval=5 h100-3
"""


@click.command("ssh", epilog=EXAMPLES, context_settings={"allow_interspersed_args": False})
@click.option("-o", "options", metavar="NAME=VALUE", multiple=True, help="An option of ssh; may be repeated.")
@click.option("-L", "forwards", metavar="SPEC", multiple=True, help="Forward a local port, as ssh does.")
@click.option("-l", "login", metavar="USER", help="Log in as this user.")
@click.option("-t", "terminal", is_flag=True, help="A terminal for the command too.")
@node_argument
@words_argument(required=False)
@click.pass_obj
def command(
    session: Session,
    *,
    options: tuple[str, ...],
    forwards: tuple[str, ...],
    login: str | None,
    terminal: bool,
    node: str,
    words: tuple[str, ...],
) -> None:
    """Open a shell on a node, or run a command there, by ssh.

    Root on the head comes in as root, with the head's key. Every other user comes in with their own account and key:
    their home must be on the node, with the public key in ~/.ssh/authorized_keys, and the node may let them in only
    while they have a job there (pam_slurm_adopt). The node must prove that it is the machine that joined. The exit code
    is the command's, or 255 if ssh fails.
    """
    key = root_key(find_ssh_key(session.config))
    row = session.ask(lambda head: find_node(head, node))
    own = [word for option in options for word in ("-o", option)]
    own += [word for forward in forwards for word in ("-L", forward)]
    own += ["-o", f"User={login}"] if login else []
    own += ["-t"] if terminal else []
    program = ssh_program()
    argv = ssh_argv(target(row, root=key is not None), key, program=program, options=own, words=words)
    sys.stdout.flush()
    os.execv(program, argv)  # noqa: S606  ssh is the user's own process, with the user's rights and no more


async def find_node(head: HeadClient, name: str) -> NodeRow:
    """The newest machine of this name or slot.

    Raises:
        CliError: there is none.
    """
    rows = [row for row in (await head.call(endpoints.NODES)).nodes if name in (row.machine, row.slot)]
    if rows:
        return max(rows, key=lambda row: (row.phase not in ("terminating", "lost"), row.since))
    why = (await head.call(endpoints.EXPLAIN, ExplainQuery(subject=name))).why
    raise CliError(f"{name} has no machine: {why}", f"see `meshctl explain {name}`", kind="refused")
