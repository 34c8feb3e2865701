"""What `plan` and the preview of `scale` show: machines, price, other steps, and the offers not taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from meshd.api.schema import PlannedRow, PlanView, ScaleAnswer
from meshd.api.shorten import TEXT_MAX, merge_messages, shorten
from meshd.cli.render.offers import STALE_HELP, alternatives
from meshd.cli.render.table import Table
from meshd.cli.render.terminal import clean_text
from meshd.plaintext import counted, usd


def plan(view: PlanView) -> list[RenderableType]:
    """A whole plan."""
    stale = {row.offer for row in view.alternatives if row.chosen and row.price_stale}
    rented = {row.slot for row in view.machines}
    steps = [s for s in view.steps if not (s.action == "request_machine" and s.subject in rented)]
    idle = "nothing can be done now, see the warnings" if view.warnings else "nothing to do"
    parts: list[RenderableType] = [] if view.steps else [idle]
    if view.machines:
        parts.append(
            Table(("RENT", "OFFER", "GPUS", "USD/GPU/H", "USD/H"), [_machine(row, stale) for row in view.machines])
        )
    if steps:
        parts.append(Table(("STEP", "WHAT", "WHY"), [(s.action, s.subject, s.reason) for s in steps]))
    parts += _limits(view.machines)
    parts.append(price(view))
    if stale:
        parts.append(clean_text(STALE_HELP, "yellow"))
    if view.overshoot_gpus:
        more = counted(view.overshoot_gpus, "GPU")
        parts.append(clean_text(f"{more} more than asked for: only whole machines are rented (see --max-overshoot)"))
    if any(not row.chosen for row in view.alternatives):
        parts += ["", clean_text("not taken", "bold"), alternatives(view.alternatives)]
    warnings = (shorten(merge_messages(warning), 2 * TEXT_MAX) for warning in view.warnings)
    return parts + [clean_text(f"warning: {warning}", "yellow") for warning in warnings]


def _machine(row: PlannedRow, stale: set[str]) -> tuple[str, ...]:
    gpus = f"{row.gpus} {row.gpu}".strip() if row.gpus else "-"
    each = f"{row.usd_per_gpu_hour:.2f}" if row.gpus else "-"
    mark = " stale" if row.offer in stale else ""
    return row.slot, row.offer, gpus, each, f"{row.usd_per_hour:.2f}{mark}"


def _limits(rows: Sequence[PlannedRow]) -> list[Text]:
    """What the pods among these machines lack, once for each kind."""
    found = Counter(row.limits for row in rows if row.pod)
    return [
        clean_text(
            f"{counted(count, 'machine')} to rent {'is a pod' if count == 1 else 'are pods'}: {lacks} (see --pods)"
        )
        for lacks, count in found.items()
    ]


def price(view: PlanView) -> Text:
    """The cost per hour before and after."""
    before, after = view.usd_per_hour_before, view.usd_per_hour_after
    change = after - before
    sign = "+" if change >= 0 else "-"
    return clean_text(f"price: {usd(before)} -> {usd(after)} per hour ({sign}{usd(abs(change))})")


def target(answer: ScaleAnswer) -> list[RenderableType]:
    """A pool's new target and what it leads to."""
    head = clean_text(f"pool {answer.pool}: {answer.gpus_before} -> {counted(answer.gpus, answer.unit)}", "bold")
    parts: list[RenderableType] = [head]
    if answer.options:
        parts.append(clean_text(f"options in use: {' '.join(answer.options)}"))
    parts += plan(answer.plan)
    parts += [clean_text(f"warning: {w}", "yellow") for w in answer.warnings if w not in answer.plan.warnings]
    waits = (f"{row.slot} waits for job {', '.join(row.jobs)} to end" for row in answer.waiting_for_jobs)
    return parts + [clean_text(line) for line in waits]
