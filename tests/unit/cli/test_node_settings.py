"""What meshctl shows of a machine's node settings."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from meshd.api.schema import SectionRow
from meshd.cli.render.status import settings

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def row(name: str, state: str, age_s: float, text: str = "") -> SectionRow:
    return SectionRow(name=name, state=state, text=text, since=NOW - timedelta(seconds=age_s))


def test_what_is_not_applied_is_shown_with_its_time() -> None:
    rows = [row("packages", "applied", 90), row("setup", "working", 40), row("accounts", "failed", 5, "disk full")]
    assert settings(rows, NOW) == "setup: 40s; accounts failed: 5s (disk full)"
    assert settings([row("setup", "applied", 1)], NOW) == ""
    assert settings(None, NOW) == ""
