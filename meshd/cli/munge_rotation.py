"""`meshctl rotate-key --munge`: the munge key of head and nodes, the fleet running."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from rich.console import RenderableType

from meshd.api import endpoints
from meshd.api.schema import AbortRotationRequest, MungeRotationView, RotateMungeKeyRequest
from meshd.cli import render
from meshd.cli.exits import CliError, Exit
from meshd.cli.follow import LineProgress, follow
from meshd.cli.onmachines import waive_each
from meshd.cli.session import Session, confirm, print_json
from meshd.cli.sheet import Sheet

STILL_GOING_ON = "interrupted: the rotation goes on in meshd; `meshctl rotate-key --munge --status` shows it"


def command(
    session: Session, *, status: bool, abort: bool, waive: tuple[str, ...], dry_run: bool, wait: bool, timeout_s: float,
    yes: bool, as_json: bool,
) -> None:  # fmt: skip
    """What `meshctl rotate-key --munge` does, by its options; at most one of the first four is given.

    Raises:
        CliError: refused; or it ended badly (FAILED), or not in time (TIMED_OUT).
    """
    if status:
        _print(session.ask(lambda head: head.call(endpoints.MUNGE_KEY_ROTATION)), as_json=as_json)
    elif abort:
        _abort(session, wait=wait, timeout_s=timeout_s, as_json=as_json)
    elif waive:
        waive_each(session, endpoints.WAIVE_MUNGE_KEY_NODE, waive, partial(_print, as_json=as_json))
    else:
        _rotate(session, dry_run=dry_run, wait=wait, timeout_s=timeout_s, yes=yes, as_json=as_json)


def _rotate(session: Session, *, dry_run: bool, wait: bool, timeout_s: float, yes: bool, as_json: bool) -> None:
    """Begin a rotation, and stay until it has ended."""
    preview = session.ask(lambda head: head.call(endpoints.ROTATE_MUNGE_KEY, RotateMungeKeyRequest(dry_run=True)))
    if dry_run:
        _print(preview, as_json=as_json)
        return
    render.show(*_shown(preview), err=True)
    confirm(
        "Rotate the munge key now?", yes=yes,
        why="this changes the munge key of the head and of all nodes; jobs run on, and Slurm's commands wait a moment",
    )  # fmt: skip
    begun = session.ask(lambda head: head.call(endpoints.ROTATE_MUNGE_KEY, RotateMungeKeyRequest()))
    if wait:
        _stay(session, begun.id, timeout_s, as_json=as_json)
    else:
        _print(begun, as_json=as_json)


def _abort(session: Session, *, wait: bool, timeout_s: float, as_json: bool) -> None:
    """Have everybody keep the old key, or go back to it."""
    view = session.ask(lambda head: head.call(endpoints.ABORT_MUNGE_KEY_ROTATION, AbortRotationRequest()))
    if wait and view.active:
        view = _followed(session, view.id, timeout_s)
    _print(view, as_json=as_json)


def _stay(session: Session, rotation_id: str, timeout_s: float, *, as_json: bool) -> None:
    view = _followed(session, rotation_id, timeout_s)
    _print(view, as_json=as_json)
    if view.stage != "done":
        raise CliError(f"the munge key was not rotated: {view.taken_back}", "see `meshctl events`")


def _followed(session: Session, rotation_id: str, timeout_s: float) -> MungeRotationView:
    """Watch it to its end, and tell each stage.

    Raises:
        CliError: it has not ended in time, or another one was begun.
    """
    from meshd.runtime.clock import SystemClock

    seen = session.ask(
        lambda head: follow(
            lambda: head.call(endpoints.MUNGE_KEY_ROTATION), rotation_id, LineProgress(_headline), timeout_s=timeout_s,
            clock=SystemClock(), cure="look with --status",
        ),
        if_interrupted=STILL_GOING_ON,
    )  # fmt: skip
    if seen.active:
        raise CliError(
            f"the rotation of the munge key has not ended after {timeout_s:g} s: {_headline(seen)}",
            "it goes on; --status shows it, --waive MACHINE goes on without one, --abort takes it back",
            code=Exit.TIMED_OUT, kind="timed_out",
        )  # fmt: skip
    return seen


def _headline(view: MungeRotationView) -> str:
    return f"{view.stage}{': ' + view.failure if view.failure else ''}"


def _print(view: MungeRotationView, *, as_json: bool) -> None:
    if as_json:
        print_json(view)
    else:
        render.show(*_shown(view))


def _shown(view: MungeRotationView) -> Iterable[RenderableType]:
    if view.steps:
        yield f"munge key {view.old}; a rotation would:"
        yield from (f"  {number}. {step}" for number, step in enumerate(view.steps, start=1))
    elif not view.id:
        yield f"munge key {view.key}; it was not rotated yet"
    else:
        yield f"munge key {view.old} -> {view.new or '(not made yet)'}: {view.stage}, begun by {view.by}"
        if view.failure or view.taken_back:
            yield f"  {view.failure or view.taken_back}"
        if view.spread_ms:
            yield (
                f"  munged was away for {view.longest_away_ms:.0f} ms at most; {view.spread_ms:.0f} ms from the first "
                "that stopped to the last that came back"
            )
    if view.nodes:
        rows = [(node.slot, node.machine, node.state, node.key or "not known", node.reason) for node in view.nodes]
        yield Sheet(("SLOT", "MACHINE", "STATE", "KEY", "WHY"), rows, spare=("KEY", "MACHINE"))
