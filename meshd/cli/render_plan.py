"""Plans as text: what would be rented, what else would be done, the price, and what was not taken."""

from __future__ import annotations

from rich.console import RenderableType

from meshd.api.schema import PlannedRow, PlanView, ScaleAnswer
from meshd.cli.render import price, text, waiting
from meshd.cli.render_offers import STALE_HELP, alternatives
from meshd.cli.sheet import Sheet
from meshd.cli.wording import TEXT_MAX, once, short
from meshd.model.words import counted


def plan(view: PlanView) -> list[RenderableType]:
    """The whole plan."""
    stale = {row.offer for row in view.alternatives if row.chosen and row.price_stale}
    rented = {row.slot for row in view.machines}
    steps = [s for s in view.steps if not (s.action == "request_machine" and s.subject in rented)]
    idle = "nothing can be done now, see the warnings" if view.warnings else "nothing to do"
    parts: list[RenderableType] = [] if view.steps else [idle]
    if view.machines:
        parts.append(
            Sheet(("RENT", "OFFER", "GPUS", "USD/GPU/H", "USD/H"), [_row(row, stale) for row in view.machines])
        )
    if steps:
        parts.append(Sheet(("STEP", "WHAT", "WHY"), [(s.action, s.subject, s.reason) for s in steps]))
    parts.append(price(view))
    if stale:
        parts.append(text(STALE_HELP, "yellow"))
    if view.overshoot_gpus:
        more = counted(view.overshoot_gpus, "GPU")
        parts.append(text(f"{more} more than wanted: machines are rented whole (--max-overshoot limits it)"))
    if any(not row.chosen for row in view.alternatives):
        parts += ["", text("not taken", "bold"), alternatives(view.alternatives)]
    parts += [text(f"warning: {short(once(warning), 2 * TEXT_MAX)}", "yellow") for warning in view.warnings]
    return parts


def _row(row: PlannedRow, stale: set[str]) -> tuple[str, ...]:
    gpus = f"{row.gpus} {row.gpu}".strip() if row.gpus else "-"
    each = f"{row.usd_per_gpu_hour:.2f}" if row.gpus else "-"
    mark = " stale" if row.offer in stale else ""
    return row.slot, row.offer, gpus, each, f"{row.usd_per_hour:.2f}{mark}"


def scale(answer: ScaleAnswer) -> list[RenderableType]:
    """What a new target means."""
    head = text(f"pool {answer.pool}: {answer.gpus_before} -> {counted(answer.gpus, answer.unit)}", "bold")
    parts: list[RenderableType] = [head]
    if answer.options:
        parts.append(text(f"options that hold: {' '.join(answer.options)}"))
    parts += plan(answer.plan)
    parts += [text(f"warning: {w}", "yellow") for w in answer.warnings if w not in answer.plan.warnings]
    return parts + waiting(answer.waiting_for_jobs)
