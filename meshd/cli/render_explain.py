"""The story of a machine, a slot or a pool as text."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from meshd.api.schema import ExplainView, RungRow
from meshd.cli.render import event, phase, text
from meshd.cli.render_offers import alternatives
from meshd.cli.sheet import Sheet
from meshd.model.words import counted

_OUTCOMES = {
    "rented": ("rented", "green"),
    "adopted": ("found again", "green"),
    "no_capacity": ("no capacity", "yellow"),
    "quota": ("over the quota", "yellow"),
    "refused": ("refused", "red"),
    "unclear": ("unclear", "yellow"),
    "failed": ("given up", "red"),
    "skipped": ("not asked", ""),
    "waiting": ("waits", "cyan"),
}
_RUNG_HEADERS = ("AT", "MACHINE", "OFFER", "USD/H", "OUTCOME", "WORDS")
_WORKS = frozenset({"ready", "draining", "terminating", "lost", "gone"})


def explain(view: ExplainView) -> list[RenderableType]:
    """What it does and why, what was tried, what comes next, what happened."""
    parts: list[RenderableType] = [_head(view), text(view.why)]
    if view.constraints:
        wanted = counted(view.target_gpus, view.unit) if view.target_gpus else "nothing"
        parts += ["", text(f"pool {view.pool}: {wanted} wanted", "bold")]
        parts += [text(f"  {line}") for line in view.constraints]
    if view.rungs:
        parts += ["", text("offers tried", "bold")]
        parts.append(Sheet(_RUNG_HEADERS, [_rung(row) for row in view.rungs], spare=("MACHINE", "USD/H", "AT")))
    if view.next_rungs and view.phase not in _WORKS:
        parts += ["", text("offers that come next", "bold"), alternatives(view.next_rungs)]
    if view.events:
        parts += ["", text("events", "bold"), *(text(event(row)) for row in view.events)]
    return parts


def _head(view: ExplainView) -> Text:
    if not view.slot:
        return text(f"pool {view.subject}", "bold")
    if not view.phase:
        return text(f"slot {view.slot} of pool {view.pool}: no machine", "bold")
    return Text.assemble(text(f"{view.machine} (slot {view.slot}, pool {view.pool}): ", "bold"), phase(view.phase))


def _rung(row: RungRow) -> tuple[Text | str, ...]:
    word, style = _OUTCOMES.get(row.outcome, (row.outcome, ""))
    return (
        f"{row.at.astimezone():%m-%d %H:%M:%S}",
        row.machine,
        row.offer,
        f"{row.usd_per_hour:.2f}",
        text(word, style),
        row.words,
    )
