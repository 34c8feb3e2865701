"""`meshctl rotate-key --tokens`: renews the tokens with which nodes speak to the head."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rich.console import RenderableType

from meshd.api import endpoints
from meshd.api.schema import TokenRenewalRequest, TokenRenewalView
from meshd.cli.errors import CliError, ExitCode
from meshd.cli.progress import LineProgress
from meshd.cli.render.table import Table
from meshd.cli.render.terminal import clean_text, show
from meshd.cli.rotations.common import HeadlineChanges, RotateOptions, wait_for_rotation
from meshd.cli.session import Session, confirm, print_json, say

SEE_STATUS = "see `meshctl rotate-key --tokens --status`"
_ORDER = ("done", "waiting", "offline", "failed", "locked_out", "gone")


def run(session: Session, options: RotateOptions) -> None:
    """Show or begin, as the options say.

    Raises:
        CliError: refused; or a node failed (FAILED), or the renewal did not end in time (TIMED_OUT).
    """
    if options.status:
        _print(session.ask(lambda head: head.call(endpoints.NODE_TOKEN_RENEWAL)), as_json=options.as_json)
        return
    request = TokenRenewalRequest(machines=options.nodes, compromised=options.compromised, dry_run=True)
    preview = session.ask(lambda head: head.call(endpoints.RENEW_NODE_TOKENS, request))
    if options.dry_run:
        _print(preview, as_json=options.as_json)
        return
    show(*_parts(preview), err=True)
    if options.compromised:
        confirm("Give these machines back?", yes=options.yes, why="this locks the machines out and gives them back")
    else:
        confirm("Renew the node tokens now?", yes=options.yes, why="this changes the token of each of these machines")
    begun = session.ask(
        lambda head: head.call(endpoints.RENEW_NODE_TOKENS, request.model_copy(update={"dry_run": False}))
    )
    if not options.wait:
        _print(begun, as_json=options.as_json)
        return
    view = _wait(session, begun.id, options.timeout_s)
    _print(view, as_json=options.as_json)
    _conclude(view, options.timeout_s)


def _wait(session: Session, renewal_id: str, timeout_s: float) -> TokenRenewalView:
    from meshd.runtime.clock import SystemClock

    return session.ask(
        lambda head: wait_for_rotation(
            lambda: head.call(endpoints.NODE_TOKEN_RENEWAL), renewal_id, LineProgress(HeadlineChanges(_headline)),
            timeout_s=timeout_s, clock=SystemClock(), cure=SEE_STATUS,
        ),
        if_interrupted=f"interrupted: meshd goes on with the renewal; {SEE_STATUS}",
    )  # fmt: skip


def _conclude(view: TokenRenewalView, timeout_s: float) -> None:
    if view.active:
        raise CliError(
            f"the renewal of node tokens has not ended after {timeout_s:g} s: {_headline(view)}",
            f"meshd goes on; {SEE_STATUS}", code=ExitCode.TIMED_OUT, kind="timed_out",
        )  # fmt: skip
    states = Counter(node.state for node in view.nodes)
    if states["offline"]:
        say(f"warning: nodes that are off keep their old token until they return: {states['offline']}; {SEE_STATUS}")
    if states["failed"]:
        raise CliError(f"nodes without their new token: {states['failed']}", f"meshd tries again; {SEE_STATUS}")


def _headline(view: TokenRenewalView) -> str:
    states = Counter(node.state for node in view.nodes)
    return ", ".join(f"{states[name]} {name.replace('_', ' ')}" for name in _ORDER if states[name]) or "no nodes"


def _print(view: TokenRenewalView, *, as_json: bool) -> None:
    if as_json:
        print_json(view)
    else:
        show(*_parts(view))


def _parts(view: TokenRenewalView) -> Iterable[RenderableType]:
    yield from map(clean_text, _lines(view))
    if view.nodes:
        rows = [(node.slot, node.machine, str(node.generation), node.state, node.reason) for node in view.nodes]
        yield Table(("SLOT", "MACHINE", "GENERATION", "STATE", "WHY"), rows, optional=("GENERATION", "MACHINE"))


def _lines(view: TokenRenewalView) -> Iterable[str]:
    if view.steps:
        yield "a renewal of node tokens would:"
        yield from (f"  {number}. {step}" for number, step in enumerate(view.steps, start=1))
    elif not view.id:
        yield "node tokens were never renewed"
    else:
        yield f"node tokens {'locked out' if view.compromised else 'renewed'}, begun by {view.by}: {_headline(view)}"
