"""`meshctl rotate-key`: another auth key for launches and for all nodes, another munge key, or other node tokens."""

from __future__ import annotations

from datetime import datetime
from functools import partial

import click

from meshd.api import endpoints
from meshd.api.schema import AbortRotationRequest, RotateKeyRequest, RotationView
from meshd.cli import munge_rotation, render, rotation, token_renewal
from meshd.cli.exits import CliError, Exit
from meshd.cli.follow import follow
from meshd.cli.onmachines import waive_each
from meshd.cli.params import duration, node_option, past_moment
from meshd.cli.session import Session, confirm, output_option, print_json, say

EXAMPLES = """\b
Examples:
  meshctl rotate-key --dry-run                       what would be done, and on which nodes
  meshctl rotate-key                                 another auth key, without a pause for anybody
  meshctl rotate-key --compromised --since 2026-11-28T09:30
                                                     the old key is dead at once, and all nodes log in anew
  meshctl rotate-key --waive h100-3                  go on without a node that is away
  meshctl rotate-key --munge                         another munge key, while jobs run
  meshctl rotate-key --tokens                        other node tokens, on all nodes
  meshctl rotate-key --tokens --node h100-3 --compromised
                                                     that node is locked out at once and given back
"""


@click.command("rotate-key", epilog=EXAMPLES)
@click.option("--reauth", is_flag=True, help="Nodes also log in anew: one idle node first, then a few at a time.")
@click.option("--compromised", is_flag=True, help="Strangers know the key: revoke it first, list devices born since.")
@click.option(
    "--since",
    metavar="TIME",
    callback=past_moment,
    help="With --compromised: when it leaked, as 2026-11-28T09:30 in UTC or with a zone; else the key's birth.",
)
@click.option("--munge", is_flag=True, help="The munge key of head and nodes instead, the fleet running.")
@click.option("--tokens", is_flag=True, help="The nodes' own tokens instead: an old one ends when the new one is used.")
@node_option("--node", also="--nodes", help_text="With --tokens: these nodes alone, as in 'h100-[1-4]'.")
@click.option("--status", is_flag=True, help="How the rotation stands, node by node.")
@click.option("--abort", is_flag=True, help="Take it back: launches and nodes get the old key again.")
@node_option("--waive", help_text="Do not wait for these nodes, as in 'h100-[1-4]'; they get the key later.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.option(
    "--wait/--no-wait",
    default=True,
    show_default=True,
    help="Stay until it has ended. Ctrl-C ends the waiting, not the rotation.",
)
@click.option(
    "--timeout",
    "timeout_s",
    metavar="TIME",
    callback=duration,
    default="30m",
    show_default=True,
    help="How long --wait stays: 90s, 30m, 2h.",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@output_option
@click.pass_obj
def command(
    session: Session,
    *,
    reauth: bool,
    compromised: bool,
    since: datetime | None,
    munge: bool,
    tokens: bool,
    nodes: tuple[str, ...],
    status: bool,
    abort: bool,
    waive: tuple[str, ...],
    dry_run: bool,
    wait: bool,
    timeout_s: float,
    yes: bool,
    as_json: bool,
) -> None:
    """Rotate the tailnet auth key, the munge key, or node tokens.

    The auth key changes for new machines, on all nodes and in the store. The new one is proved before anything else,
    and the old one is revoked only when every node is confirmed or waived; until then --abort leads back. Jobs and
    registrations are not touched. A node that joined with a key of its own gets a new spare one.

    With --munge it is the munge key: staged on the head and all nodes, switched at one moment, and proved from both
    sides. Jobs run on; Slurm's commands wait for a moment.

    With --tokens each node gets another token to speak to the head with. Jobs are not touched. A node that is off gets
    it when it returns. With --compromised the old token stops at once: the node is locked out, and given back after its
    jobs.
    """
    if nodes and not tokens:
        raise click.UsageError("--node goes with --tokens")
    if tokens:
        _check(False, [status, dry_run], since=since, compromised=compromised)
        if munge or reauth or since or abort or waive:
            raise click.UsageError("--tokens does not go with --munge, --reauth, --since, --abort or --waive")
        token_renewal.command(
            session, nodes=nodes, compromised=compromised, status=status, dry_run=dry_run, wait=wait,
            timeout_s=timeout_s, yes=yes, as_json=as_json,
        )  # fmt: skip
        return
    _check(reauth or compromised or dry_run, [status, abort, bool(waive)], since=since, compromised=compromised)
    if munge:
        if reauth or compromised:
            raise click.UsageError("--munge does not go with --reauth or --compromised: they are for the auth key")
        munge_rotation.command(
            session, status=status, abort=abort, waive=waive, dry_run=dry_run, wait=wait, timeout_s=timeout_s, yes=yes,
            as_json=as_json,
        )  # fmt: skip
        return
    if status:
        _show(session.ask(lambda head: head.call(endpoints.AUTH_KEY_ROTATION)), as_json=as_json)
        return
    if waive:
        waive_each(session, endpoints.WAIVE_AUTH_KEY_NODE, waive, partial(_show, as_json=as_json))
        return
    if abort:
        view = session.ask(lambda head: head.call(endpoints.ABORT_AUTH_KEY_ROTATION, AbortRotationRequest()))
    else:
        request = _request(reauth=reauth, compromised=compromised, since=since, dry_run=True)
        plan = session.ask(lambda head: head.call(endpoints.ROTATE_AUTH_KEY, request))
        if dry_run:
            _show(plan, as_json=as_json)
            return
        render.show(*rotation.plan(plan), err=True)
        if compromised:
            confirm("This revokes the key in use at once. Go on?", yes=yes, why="this revokes the key in use, for good")
        view = session.ask(
            lambda head: head.call(endpoints.ROTATE_AUTH_KEY, request.model_copy(update={"dry_run": False})),
            if_interrupted="interrupted; the rotation may have begun: see `meshctl rotate-key --status`",
        )
    if not wait:
        _show(view, as_json=as_json)
        return
    _wait(session, view, timeout_s, aborting=abort, as_json=as_json)


def _check(begins: bool, others: list[bool], *, since: datetime | None, compromised: bool) -> None:
    if sum(others) + begins > 1:
        raise click.UsageError("--status, --abort and --waive stand alone")
    if since is not None and not compromised:
        raise click.UsageError("--since goes with --compromised")


def _request(*, reauth: bool, compromised: bool, since: datetime | None, dry_run: bool) -> RotateKeyRequest:
    return RotateKeyRequest(reauth=reauth, compromised=compromised, leaked_at=since, dry_run=dry_run)


def _show(view: RotationView, *, as_json: bool) -> None:
    if as_json:
        print_json(view)
    else:
        render.show(*rotation.view(view))


def _wait(session: Session, view: RotationView, timeout_s: float, *, aborting: bool, as_json: bool) -> None:
    from meshd.runtime.clock import SystemClock

    try:
        with rotation.shown() as progress:
            seen = session.ask(
                lambda head: follow(
                    lambda: head.call(endpoints.AUTH_KEY_ROTATION),
                    view.id,
                    progress,
                    timeout_s=timeout_s,
                    clock=SystemClock(),
                    cure=rotation.STATUS_CURE,
                )
            )
    except CliError as error:
        if error.exit_code == Exit.INTERRUPTED:
            raise rotation.left_running() from None
        raise
    if as_json:
        print_json(seen)
    for warning in seen.warnings:
        say(f"warning: {warning}")
    if seen.newcomers and not as_json:
        render.show(*rotation.newcomers(seen))
    rotation.conclude(seen, aborting=aborting)
