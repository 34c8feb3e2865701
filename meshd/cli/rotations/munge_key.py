"""`meshctl rotate-key --munge`: rotates the munge key of the head and all nodes while jobs run."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from rich.console import RenderableType

from meshd.api import endpoints
from meshd.api.schema import AbortRotationRequest, MungeRotationView, RotateMungeKeyRequest
from meshd.cli.errors import CliError, ExitCode
from meshd.cli.progress import LineProgress
from meshd.cli.render.table import Table
from meshd.cli.render.terminal import clean_text, show
from meshd.cli.rotations.common import HeadlineChanges, RotateOptions, wait_for_rotation, waive_nodes
from meshd.cli.session import Session, confirm, print_json

INTERRUPTED = "interrupted: meshd goes on with the rotation; see `meshctl rotate-key --munge --status`"


def run(session: Session, options: RotateOptions) -> None:
    """Show, abort, waive or begin, as the options say.

    Raises:
        CliError: refused; or the rotation failed (FAILED), or did not end in time (TIMED_OUT).
    """
    if options.status:
        _print(session.ask(lambda head: head.call(endpoints.MUNGE_KEY_ROTATION)), as_json=options.as_json)
    elif options.abort:
        _abort(session, options)
    elif options.waive:
        waive_nodes(session, endpoints.WAIVE_MUNGE_KEY_NODE, options.waive, partial(_print, as_json=options.as_json))
    else:
        _rotate(session, options)


def _rotate(session: Session, options: RotateOptions) -> None:
    preview = session.ask(lambda head: head.call(endpoints.ROTATE_MUNGE_KEY, RotateMungeKeyRequest(dry_run=True)))
    if options.dry_run:
        _print(preview, as_json=options.as_json)
        return
    show(*_parts(preview), err=True)
    confirm(
        "Rotate the munge key now?", yes=options.yes,
        why="this changes the munge key of the head and all nodes; jobs go on, but Slurm's commands pause for a moment",
    )  # fmt: skip
    begun = session.ask(lambda head: head.call(endpoints.ROTATE_MUNGE_KEY, RotateMungeKeyRequest()))
    if not options.wait:
        _print(begun, as_json=options.as_json)
        return
    view = _wait(session, begun.id, options.timeout_s)
    _print(view, as_json=options.as_json)
    if view.stage != "done":
        raise CliError(f"the munge key was not rotated: {view.taken_back}", "see `meshctl events`")


def _abort(session: Session, options: RotateOptions) -> None:
    view = session.ask(lambda head: head.call(endpoints.ABORT_MUNGE_KEY_ROTATION, AbortRotationRequest()))
    if options.wait and view.active:
        view = _wait(session, view.id, options.timeout_s)
    _print(view, as_json=options.as_json)


def _wait(session: Session, rotation_id: str, timeout_s: float) -> MungeRotationView:
    """Wait until the rotation has ended, and print each stage.

    Raises:
        CliError: it did not end in time, or another one was begun.
    """
    from meshd.runtime.clock import SystemClock

    view = session.ask(
        lambda head: wait_for_rotation(
            lambda: head.call(endpoints.MUNGE_KEY_ROTATION), rotation_id, LineProgress(HeadlineChanges(_headline)),
            timeout_s=timeout_s, clock=SystemClock(), cure="see `meshctl rotate-key --munge --status`",
        ),
        if_interrupted=INTERRUPTED,
    )  # fmt: skip
    if view.active:
        raise CliError(
            f"the rotation of the munge key has not ended after {timeout_s:g} s: {_headline(view)}",
            "meshd goes on; --status shows the state, --waive NODE skips a node, --abort goes back to the old key",
            code=ExitCode.TIMED_OUT, kind="timed_out",
        )  # fmt: skip
    return view


def _headline(view: MungeRotationView) -> str:
    return f"{view.stage}{': ' + view.failure if view.failure else ''}"


def _print(view: MungeRotationView, *, as_json: bool) -> None:
    if as_json:
        print_json(view)
    else:
        show(*_parts(view))


def _parts(view: MungeRotationView) -> Iterable[RenderableType]:
    yield from map(clean_text, _lines(view))
    if view.nodes:
        rows = [(node.slot, node.machine, node.state, node.key or "not known", node.reason) for node in view.nodes]
        yield Table(("SLOT", "MACHINE", "STATE", "KEY", "WHY"), rows, optional=("KEY", "MACHINE"))


def _lines(view: MungeRotationView) -> Iterable[str]:
    if view.steps:
        yield f"munge key {view.old}; a rotation would:"
        yield from (f"  {number}. {step}" for number, step in enumerate(view.steps, start=1))
    elif not view.id:
        yield f"munge key {view.key}; never rotated"
    else:
        yield f"munge key {view.old} -> {view.new or '(not made yet)'}: {view.stage}, begun by {view.by}"
        if view.failure or view.taken_back:
            yield f"  {view.failure or view.taken_back}"
        if view.spread_ms:
            yield (
                f"  munged was down for {view.longest_away_ms:.0f} ms at most on one machine, and for "
                f"{view.spread_ms:.0f} ms from the first stop to the last start"
            )
