"""What `audit` shows."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from meshd.api.schema import AuditRow, AuditView
from meshd.cli.render.table import Table
from meshd.cli.render.terminal import clean_text
from meshd.plaintext import age, counted

_OWNERS = {"ours": "this cluster", "other": "another cluster", "foreign": "foreign", "": "-"}
_STYLES = {"leaked": "bold red", "unknown": "yellow", "ours": "green"}


def audit(view: AuditView) -> list[RenderableType]:
    """A table, then the cures of what leaked, and of listings that failed."""
    parts: list[RenderableType] = [
        Table(
            ("VERDICT", "PROVIDER", "KIND", "ID", "NAME", "REGION", "OWNER", "AGE", "USD/H", "WHY"),
            [_row(row) for row in view.rows],
            optional=("AGE", "REGION", "OWNER", "NAME"),
        )
    ]
    if view.left_out:
        parts.append(clean_text(f"{counted(view.left_out, 'more foreign thing')}"))
    cures = [row for row in view.rows if row.cure]
    if cures:
        parts.append("")
    for row in cures:
        what = f"{row.kind} {row.name or row.id}".rstrip() if row.id else f"{row.kind}s"
        parts.append(clean_text(f"{row.provider} {what}: {row.why}", _STYLES.get(row.verdict, "")))
        parts.append(clean_text(f"  do: {row.cure}"))
    parts += [clean_text(f"not listed: {note}") for note in view.notes]
    return parts


def _row(row: AuditRow) -> tuple[Text | str, ...]:
    usd = "-" if row.usd_per_hour is None else f"{row.usd_per_hour:.4f}"
    return (
        clean_text(row.verdict, _STYLES.get(row.verdict, "")), row.provider, row.kind, row.id or "-", row.name or "-",
        row.region or "-", _OWNERS.get(row.owner, row.owner), age(row.age_s), usd, row.why,
    )  # fmt: skip
