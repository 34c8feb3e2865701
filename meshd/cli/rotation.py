"""A rotation of the auth key as text, and how it ended."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from rich.console import Group, RenderableType
from rich.live import Live

from meshd.api.schema import KeyRow, RotationNodeRow, RotationView
from meshd.cli import render
from meshd.cli.console import console
from meshd.cli.exits import CliError, Exit, QuietError, interrupted
from meshd.cli.follow import LineProgress, Progress
from meshd.cli.session import say
from meshd.cli.sheet import Sheet
from meshd.model.words import counted

STATUS_CURE = "see `meshctl rotate-key --status`"
_STYLES = {"confirmed": "green", "failed": "bold red", "pending": "yellow", "waived": "yellow"}
_SETTLED = frozenset({"confirmed", "waived", "gone"})


def view(seen: RotationView) -> list[RenderableType]:
    """How a rotation stands: a line on the whole, the warnings, a table of the nodes."""
    if not seen.id:
        if seen.steps:
            return [*plan(seen)]
        return [render.text(f"no key was rotated yet; in use: {_key(seen.in_use)}"), *_own_keys(seen)]
    parts: list[RenderableType] = [
        render.text(f"rotation {seen.id}: {headline(seen)}", "bold"),
        render.text(f"  {_change(seen)}, {seen.reason}, by {seen.by}"),
        *_own_keys(seen),
    ]
    parts += [render.text(f"  warning: {warning}", "yellow") for warning in seen.warnings]
    if seen.nodes:
        parts.append(_nodes(seen.nodes, seen.at))
    if seen.newcomers:
        parts += newcomers(seen)
    return parts


def _change(seen: RotationView) -> str:
    if seen.source == "none":
        return "new spare keys, and nodes log in anew" if seen.reauth else "new spare keys"
    return f"{_key(seen.old)} -> {_key(seen.new)}"


def _own_keys(seen: RotationView) -> list[RenderableType]:
    if not seen.own_key_nodes:
        return []
    text = f"joined with keys of their own: {', '.join(seen.own_key_nodes)}"
    return [render.text(f"  {text}; a rotation exchanges the spare that each holds")]


def headline(seen: RotationView) -> str:
    """The stage, how far the nodes are, and what goes wrong."""
    words = seen.stage
    if seen.nodes:
        words += f", {_counts(seen.nodes)}"
    if seen.taken_back:
        words += f"; taken back: {seen.taken_back}"
    if seen.failure:
        words += f"; {seen.failure}"
    return words


def plan(seen: RotationView) -> list[RenderableType]:
    """What a rotation would do."""
    lines = [f"{number}. {step}" for number, step in enumerate(seen.steps, start=1)]
    return [render.text(f"the key in use: {_key(seen.in_use)}"), *(render.text(line) for line in lines)]


def newcomers(seen: RotationView) -> list[RenderableType]:
    """Devices born since the key may have been known to strangers."""
    strangers = sum(not one.machine for one in seen.newcomers)
    born = counted(len(seen.newcomers), "device")
    head = f"born since the key leaked: {born}, {strangers} of them nobody's"
    rows = [
        (
            one.hostname,
            one.address,
            one.device_id,
            one.machine or "NOBODY'S",
            f"{one.created:%Y-%m-%d %H:%M}" if one.created else "",
        )
        for one in seen.newcomers
    ]
    return [render.text(head, "bold"), Sheet(("DEVICE", "ADDRESS", "ID", "MACHINE", "CREATED"), rows)]


def _nodes(nodes: list[RotationNodeRow], at: datetime) -> RenderableType:
    rows = [
        (
            node.slot, node.machine, render.text(node.state, _STYLES.get(node.state, "cyan")),
            render.age((at - node.since).total_seconds()), f"{node.gap_s * 1000:.0f} ms" if node.gap_s else "",
            node.reason,
        )
        for node in nodes
    ]  # fmt: skip
    return Sheet(("SLOT", "MACHINE", "KEY", "FOR", "LOGIN", "WHY"), rows, spare=("LOGIN", "FOR", "MACHINE"))


def _counts(nodes: list[RotationNodeRow]) -> str:
    counts = Counter(node.state for node in nodes)
    done = sum(counts[state] for state in _SETTLED)
    others = [f"{count} {state}" for state, count in sorted(counts.items()) if state not in _SETTLED]
    return ", ".join([f"{done} of {counted(len(nodes), 'node')} done", *others])


def _key(key: KeyRow | None) -> str:
    if key is None:
        return "no key that is shared"
    until = f" (until {key.expires:%Y-%m-%d})" if key.expires else ""
    return f"{key.id or f'key {key.sha256}'}{until}"


class LiveProgress:
    """A table that is redrawn in place: the whole, and the nodes that are not done."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._noted = ""

    def update(self, seen: RotationView, elapsed_s: float) -> None:
        """Draw."""
        parts: list[RenderableType] = [render.text(f"{headline(seen)}, {render.age(elapsed_s)} elapsed", "bold")]
        undone = [node for node in seen.nodes if node.state not in _SETTLED]
        if undone:
            parts.append(_nodes(undone[:20], seen.at))
        self._live.update(Group(*parts))

    def note(self, text: str) -> None:
        """A line above the table, once in a row."""
        if text != self._noted:
            self._live.console.print(render.text(text, "yellow"))
        self._noted = text


@contextmanager
def shown() -> Iterator[Progress[RotationView]]:
    """The way that suits stderr."""
    if not sys.stderr.isatty():
        yield LineProgress(headline)
        return
    with Live(console=console(sys.stderr), refresh_per_second=4) as live:
        yield LiveProgress(live)


def left_running() -> QuietError:
    """After Ctrl-C."""
    return interrupted("stopped watching; meshd goes on with the rotation", f"{STATUS_CURE}; `--abort` takes it back")


def conclude(seen: RotationView, *, aborting: bool) -> None:
    """Say how it ended.

    Raises:
        CliError: it has not ended, or not as it should.
    """
    if seen.active:
        undone = [node.slot for node in seen.nodes if node.state not in _SETTLED]
        waits = f": it waits for {', '.join(undone[:10])}" if undone else f": {seen.failure or seen.stage}"
        raise CliError(
            f"the rotation has not ended{waits}",
            f"meshd goes on; {STATUS_CURE}; `--waive NODE` or `--abort` end it",
            code=Exit.TIMED_OUT,
            kind="timed_out",
        )
    if seen.stage == "aborted":
        if aborting:
            say(f"taken back: {_key(seen.in_use)} is in use")
            return
        raise CliError(
            f"the rotation was taken back: {seen.taken_back}", f"{_key(seen.in_use)} is in use; {STATUS_CURE}"
        )
    counts = Counter(node.state for node in seen.nodes)
    took = (seen.ended_at - seen.started_at).total_seconds() if seen.ended_at and seen.started_at else 0.0
    if aborting:
        raise CliError("it was too late: the rotation is done", STATUS_CURE)
    in_use = "" if seen.source == "none" else f"{_key(seen.in_use)} is in use, "
    say(f"done: {in_use}{counted(counts['confirmed'], 'node')} confirmed, after {render.age(took)}")
    if counts["waived"]:
        raise QuietError(f"waived: {counted(counts['waived'], 'node')}", STATUS_CURE, code=Exit.PARTLY, kind="partly")
