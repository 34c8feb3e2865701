"""`meshctl rotate-key`: rotates the auth key, the munge key, or the node tokens."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import click

from meshd.cli.params.options import as_json_option, node_option, timeout_option, yes_option
from meshd.cli.params.values import past_moment
from meshd.cli.rotations import auth_key, munge_key, node_tokens
from meshd.cli.rotations.common import RotateOptions
from meshd.cli.session import Session

EXAMPLES = """\b
Examples:
  meshctl rotate-key --dry-run                       show what it would do, and on which nodes
  meshctl rotate-key                                 rotate the auth key without an interruption
  meshctl rotate-key --compromised --since 2026-11-28T09:30
                                                     revoke the old key first; all nodes log in again
  meshctl rotate-key --waive h100-3                  go on without a node that is away
  meshctl rotate-key --munge                         rotate the munge key while jobs run
  meshctl rotate-key --tokens                        renew the tokens of all nodes
  meshctl rotate-key --tokens --node h100-3 --compromised
                                                     lock a node out at once and give it back
"""


@click.command("rotate-key", epilog=EXAMPLES)
@click.option("--reauth", is_flag=True, help="Nodes also log in again: first one idle node, then a few at a time.")
@click.option(
    "--compromised",
    is_flag=True,
    help="Others know the key: revoke it first, and list the devices that have joined since.",
)
@click.option(
    "--since",
    metavar="TIME",
    callback=past_moment,
    help="With --compromised: when the key leaked, e.g. 2026-11-28T09:30, in UTC or with a time zone. "
    "By default when it was made.",
)
@click.option("--munge", is_flag=True, help="Rotate the munge key of the head and all nodes instead.")
@click.option("--tokens", is_flag=True, help="Renew the node tokens instead. An old one ends when the new one is used.")
@node_option("--node", also="--nodes", help_text="With --tokens: only these nodes, e.g. 'h100-[1-4]'.")
@click.option("--status", is_flag=True, help="Show the last rotation, node by node.")
@click.option("--abort", is_flag=True, help="Go back to the old key, for launches and nodes.")
@node_option("--waive", help_text="Do not wait for these nodes, e.g. 'h100-[1-4]'. They get the key later.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.option(
    "--wait/--no-wait",
    default=True,
    show_default=True,
    help="Wait until the rotation has ended. Ctrl-C ends the wait, not the rotation.",
)
@timeout_option
@yes_option
@as_json_option
@click.pass_obj
def command(session: Session, /, *, munge: bool, tokens: bool, **given: Any) -> None:
    """Rotate the auth key, the munge key, or the node tokens.

    The tailnet auth key changes for new machines and on all nodes. meshd first proves that the new key works. It
    revokes the old key only when every node has confirmed the new one or was waived; until then --abort goes back.
    Jobs and nodes are not interrupted. A node that joined with a key of its own gets a new spare key.

    With --munge, munged on the head and all nodes changes to a new key. Jobs go on, but Slurm's commands pause for a
    moment.

    With --tokens, each node gets a new token for the head. Jobs are not touched. A node that is off gets it when it
    returns. With --compromised the old token stops at once: the node is locked out, and given back after its jobs.
    """
    options = RotateOptions(**{field.name: given[field.name] for field in fields(RotateOptions)})
    _check(options, munge=munge, tokens=tokens)
    if tokens:
        node_tokens.run(session, options)
    elif munge:
        munge_key.run(session, options)
    else:
        auth_key.run(session, options)


def _check(options: RotateOptions, *, munge: bool, tokens: bool) -> None:
    """Refuse options that do not go together.

    Raises:
        click.UsageError: with the reason.
    """
    if tokens and (munge or options.reauth or options.since or options.abort or options.waive):
        raise click.UsageError("--tokens does not go with --munge, --reauth, --since, --abort or --waive")
    if options.nodes and not tokens:
        raise click.UsageError("--node needs --tokens")
    if munge and (options.reauth or options.compromised):
        raise click.UsageError("--munge does not go with --reauth or --compromised: they are for the auth key")
    begins = options.dry_run or (not tokens and (options.reauth or options.compromised))
    if sum([begins, options.status, options.abort, bool(options.waive)]) > 1:
        raise click.UsageError("--status, --abort and --waive go with no other option that acts")
    if options.since is not None and not options.compromised:
        raise click.UsageError("--since needs --compromised")
