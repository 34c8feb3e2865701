"""`meshctl rotate-key`: rotates the tailnet auth key of launches and nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from functools import partial

from rich.console import Group, RenderableType

from meshd.api import endpoints
from meshd.api.schema import AbortRotationRequest, KeyRow, RotateKeyRequest, RotationNodeRow, RotationView
from meshd.cli.errors import CliError, ExitCode, QuietError, interrupted
from meshd.cli.progress import shown
from meshd.cli.render.table import Table
from meshd.cli.render.terminal import clean_text, show
from meshd.cli.rotations.common import HeadlineChanges, RotateOptions, wait_for_rotation, waive_nodes
from meshd.cli.session import Session, confirm, print_json, say
from meshd.plaintext import age, counted

SEE_STATUS = "see `meshctl rotate-key --status`"
_STYLES = {"confirmed": "green", "failed": "bold red", "pending": "yellow", "waived": "yellow"}
_DONE = frozenset({"confirmed", "waived", "gone"})


def run(session: Session, options: RotateOptions) -> None:
    """Show, abort, waive or begin, as the options say.

    Raises:
        CliError: refused; or the rotation failed or was aborted (FAILED), did not end in time (TIMED_OUT), or ended
            without a node (PARTLY).
    """
    if options.status:
        _print(session.ask(lambda head: head.call(endpoints.AUTH_KEY_ROTATION)), as_json=options.as_json)
        return
    if options.waive:
        waive_nodes(session, endpoints.WAIVE_AUTH_KEY_NODE, options.waive, partial(_print, as_json=options.as_json))
        return
    view = (
        session.ask(lambda head: head.call(endpoints.ABORT_AUTH_KEY_ROTATION, AbortRotationRequest()))
        if options.abort
        else _begin(session, options)
    )
    if view is None:
        return
    if options.wait:
        _wait(session, view, options)
    else:
        _print(view, as_json=options.as_json)


def _begin(session: Session, options: RotateOptions) -> RotationView | None:
    """Show what will be done, ask if the key in use stops at once, and begin. None after a dry run."""
    request = RotateKeyRequest(
        reauth=options.reauth, compromised=options.compromised, leaked_at=options.since, dry_run=True
    )
    preview = session.ask(lambda head: head.call(endpoints.ROTATE_AUTH_KEY, request))
    if options.dry_run:
        _print(preview, as_json=options.as_json)
        return None
    show(*_preview(preview), err=True)
    if options.compromised:
        confirm(
            "This revokes the key in use at once. Go on?", yes=options.yes, why="this revokes the key in use at once"
        )
    return session.ask(
        lambda head: head.call(endpoints.ROTATE_AUTH_KEY, request.model_copy(update={"dry_run": False})),
        if_interrupted=f"interrupted; the rotation may have begun: {SEE_STATUS}",
    )


def _wait(session: Session, begun: RotationView, options: RotateOptions) -> None:
    from meshd.runtime.clock import SystemClock

    try:
        with shown(HeadlineChanges(_headline), _draw) as progress:
            view = session.ask(
                lambda head: wait_for_rotation(
                    lambda: head.call(endpoints.AUTH_KEY_ROTATION),
                    begun.id,
                    progress,
                    timeout_s=options.timeout_s,
                    clock=SystemClock(),
                    cure=SEE_STATUS,
                )
            )
    except CliError as error:
        if error.exit_code == ExitCode.INTERRUPTED:
            goes_on = "stopped waiting; meshd goes on with the rotation"
            raise interrupted(goes_on, f"{SEE_STATUS}; --abort goes back to the old key") from None
        raise
    if options.as_json:
        print_json(view)
    for warning in view.warnings:
        say(f"warning: {warning}")
    if view.newcomers and not options.as_json:
        show(*_newcomers(view))
    _conclude(view, aborting=options.abort)


def _conclude(view: RotationView, *, aborting: bool) -> None:
    """Say how it ended.

    Raises:
        CliError: it has not ended, or not as the user asked.
    """
    if view.active:
        undone = [node.slot for node in view.nodes if node.state not in _DONE]
        waits = f": it waits for {', '.join(undone[:10])}" if undone else f": {view.failure or view.stage}"
        raise CliError(
            f"the rotation has not ended{waits}",
            f"meshd goes on; {SEE_STATUS}; `--waive NODE` skips a node, `--abort` goes back to the old key",
            code=ExitCode.TIMED_OUT,
            kind="timed_out",
        )
    in_use = _key(view.in_use)
    if view.stage == "aborted":
        if aborting:
            say(f"aborted: {in_use} is in use")
            return
        raise CliError(f"the rotation was aborted: {view.taken_back}", f"{in_use} is in use; {SEE_STATUS}")
    if aborting:
        raise CliError("too late to abort: the rotation is done", SEE_STATUS)
    counts = Counter(node.state for node in view.nodes)
    took = (view.ended_at - view.started_at).total_seconds() if view.ended_at and view.started_at else 0.0
    key = "" if view.source == "none" else f"{in_use} is in use, "
    say(f"done: {key}{counted(counts['confirmed'], 'node')} confirmed, after {age(took)}")
    if counts["waived"]:
        waived = counted(counts["waived"], "node")
        raise QuietError(f"waived: {waived}", SEE_STATUS, code=ExitCode.PARTLY, kind="partly")


def _print(view: RotationView, *, as_json: bool) -> None:
    if as_json:
        print_json(view)
    else:
        show(*_parts(view))


def _parts(view: RotationView) -> list[RenderableType]:
    """A summary, the warnings, and a table of the nodes."""
    if not view.id:
        if view.steps:
            return _preview(view)
        return [clean_text(f"the key was never rotated; in use: {_key(view.in_use)}"), *_own_keys(view)]
    parts: list[RenderableType] = [
        clean_text(f"rotation {view.id}: {_headline(view)}", "bold"),
        clean_text(f"  {_change(view)}, {view.reason}, by {view.by}"),
        *_own_keys(view),
    ]
    parts += [clean_text(f"  warning: {warning}", "yellow") for warning in view.warnings]
    if view.nodes:
        parts.append(_nodes(view.nodes, view.at))
    if view.newcomers:
        parts += _newcomers(view)
    return parts


def _preview(view: RotationView) -> list[RenderableType]:
    lines = [f"{number}. {step}" for number, step in enumerate(view.steps, start=1)]
    return [clean_text(f"the key in use: {_key(view.in_use)}"), *(clean_text(line) for line in lines)]


def _draw(view: RotationView, elapsed_s: float) -> RenderableType:
    """The headline and a table of the nodes that are not done."""
    parts: list[RenderableType] = [clean_text(f"{_headline(view)}, {age(elapsed_s)} elapsed", "bold")]
    undone = [node for node in view.nodes if node.state not in _DONE]
    if undone:
        parts.append(_nodes(undone[:20], view.at))
    return Group(*parts)


def _headline(view: RotationView) -> str:
    """The stage, how many nodes are done, and what went wrong."""
    words = view.stage
    if view.nodes:
        words += f", {_counts(view.nodes)}"
    if view.taken_back:
        words += f"; aborted: {view.taken_back}"
    if view.failure:
        words += f"; {view.failure}"
    return words


def _counts(nodes: Sequence[RotationNodeRow]) -> str:
    counts = Counter(node.state for node in nodes)
    done = sum(counts[state] for state in _DONE)
    others = [f"{count} {state}" for state, count in sorted(counts.items()) if state not in _DONE]
    return ", ".join([f"{done} of {counted(len(nodes), 'node')} done", *others])


def _change(view: RotationView) -> str:
    if view.source == "none":
        return "new spare keys, and nodes log in again" if view.reauth else "new spare keys"
    return f"{_key(view.old)} -> {_key(view.new)}"


def _own_keys(view: RotationView) -> list[RenderableType]:
    if not view.own_key_nodes:
        return []
    text = f"joined with a key of their own: {', '.join(view.own_key_nodes)}"
    return [clean_text(f"  {text}; a rotation replaces the spare key of each")]


def _key(key: KeyRow | None) -> str:
    if key is None:
        return "no shared key"
    until = f" (until {key.expires:%Y-%m-%d})" if key.expires else ""
    return f"{key.id or f'key {key.sha256}'}{until}"


def _nodes(nodes: Sequence[RotationNodeRow], at: datetime) -> Table:
    rows = [
        (
            node.slot, node.machine, clean_text(node.state, _STYLES.get(node.state, "cyan")),
            age((at - node.since).total_seconds()), f"{node.gap_s * 1000:.0f} ms" if node.gap_s else "", node.reason,
        )
        for node in nodes
    ]  # fmt: skip
    return Table(("SLOT", "MACHINE", "KEY", "FOR", "LOGIN", "WHY"), rows, optional=("LOGIN", "FOR", "MACHINE"))


def _newcomers(view: RotationView) -> list[RenderableType]:
    """The devices that joined the tailnet since the key leaked."""
    unknown = sum(not one.machine for one in view.newcomers)
    summary = f"joined since the key leaked: {counted(len(view.newcomers), 'device')}, {unknown} not meshd's"
    rows = [
        (
            one.hostname,
            one.address,
            one.device_id,
            one.machine or "NOT MESHD'S",
            f"{one.created:%Y-%m-%d %H:%M}" if one.created else "",
        )
        for one in view.newcomers
    ]
    return [clean_text(summary, "bold"), Table(("DEVICE", "ADDRESS", "ID", "MACHINE", "CREATED"), rows)]
