"""The files for Prometheus and Grafana, read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PROMETHEUS, DASHBOARDS = ROOT / "deploy/prometheus", ROOT / "deploy/grafana"
ALERTS_PAGE = DOCS / "alerts.md"


def rules() -> list[dict[str, Any]]:
    """All rules, in their order."""
    document = yaml.safe_load((PROMETHEUS / "meshd.rules.yml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def dashboards() -> list[tuple[Path, dict[str, Any]]]:
    """All dashboards, by file."""
    return [(file, json.loads(file.read_text())) for file in sorted(DASHBOARDS.glob("*.json"))]


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    """The panels that show something: no headings of rows."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def anchors(page: Path) -> set[str]:
    """What a link to a section of the page may name."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
