"""`meshctl rotate-key --tokens`: other node tokens for machines that have joined."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rich.console import RenderableType

from meshd.api import endpoints
from meshd.api.schema import TokenRenewalRequest, TokenRenewalView
from meshd.cli import render
from meshd.cli.exits import CliError, Exit
from meshd.cli.follow import LineProgress, follow
from meshd.cli.session import Session, confirm, print_json, say
from meshd.cli.sheet import Sheet

STATUS = "`meshctl rotate-key --tokens --status` shows it"
STILL_GOING_ON = f"interrupted: the renewal goes on in meshd; {STATUS}"
ORDER = ("done", "waiting", "offline", "failed", "locked_out", "gone")


def command(
    session: Session, *, nodes: tuple[str, ...], compromised: bool, status: bool, dry_run: bool, wait: bool,
    timeout_s: float, yes: bool, as_json: bool,
) -> None:  # fmt: skip
    """What `meshctl rotate-key --tokens` does, by its options.

    Raises:
        CliError: refused; or some node failed (FAILED), or it did not end in time (TIMED_OUT).
    """
    if status:
        _print(session.ask(lambda head: head.call(endpoints.NODE_TOKEN_RENEWAL)), as_json=as_json)
        return
    request = TokenRenewalRequest(machines=nodes, compromised=compromised, dry_run=True)
    preview = session.ask(lambda head: head.call(endpoints.RENEW_NODE_TOKENS, request))
    if dry_run:
        _print(preview, as_json=as_json)
        return
    render.show(*_shown(preview), err=True)
    if compromised:
        confirm("Give these machines back?", yes=yes, why="this locks the machines out at once and gives them back")
    else:
        confirm("Renew the node tokens now?", yes=yes, why="this changes the token of each of these machines")
    begun = session.ask(
        lambda head: head.call(endpoints.RENEW_NODE_TOKENS, request.model_copy(update={"dry_run": False}))
    )
    if not wait:
        _print(begun, as_json=as_json)
        return
    _conclude(_followed(session, begun.id, timeout_s), timeout_s, as_json=as_json)


def _followed(session: Session, renewal_id: str, timeout_s: float) -> TokenRenewalView:
    from meshd.runtime.clock import SystemClock

    return session.ask(
        lambda head: follow(
            lambda: head.call(endpoints.NODE_TOKEN_RENEWAL), renewal_id, LineProgress(_headline), timeout_s=timeout_s,
            clock=SystemClock(), cure=STATUS,
        ),
        if_interrupted=STILL_GOING_ON,
    )  # fmt: skip


def _conclude(view: TokenRenewalView, timeout_s: float, *, as_json: bool) -> None:
    _print(view, as_json=as_json)
    if view.active:
        raise CliError(
            f"the renewal of node tokens has not ended after {timeout_s:g} s: {_headline(view)}",
            f"it goes on; {STATUS}", code=Exit.TIMED_OUT, kind="timed_out",
        )  # fmt: skip
    states = Counter(node.state for node in view.nodes)
    if states["offline"]:
        say(f"warning: {states['offline']} nodes are off and keep their old token until they return; {STATUS}")
    if states["failed"]:
        raise CliError(f"{states['failed']} nodes did not take their new token", f"meshd asks them again; {STATUS}")


def _headline(view: TokenRenewalView) -> str:
    states = Counter(node.state for node in view.nodes)
    return ", ".join(f"{states[name]} {name.replace('_', ' ')}" for name in ORDER if states[name]) or "no node"


def _print(view: TokenRenewalView, *, as_json: bool) -> None:
    if as_json:
        print_json(view)
    else:
        render.show(*_shown(view))


def _shown(view: TokenRenewalView) -> Iterable[RenderableType]:
    if view.steps:
        yield "a renewal of node tokens would:"
        yield from (f"  {number}. {step}" for number, step in enumerate(view.steps, start=1))
    elif not view.id:
        yield "node tokens were not renewed yet"
    else:
        yield f"node tokens {'stopped' if view.compromised else 'renewed'}, begun by {view.by}: {_headline(view)}"
    if view.nodes:
        rows = [(node.slot, node.machine, str(node.generation), node.state, node.reason) for node in view.nodes]
        yield Sheet(("SLOT", "MACHINE", "GENERATION", "STATE", "WHY"), rows, spare=("GENERATION", "MACHINE"))
