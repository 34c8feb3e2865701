"""What all benchmarks share: a table for people, JSON for machines, and how busy the host was meanwhile."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True, slots=True)
class Row:
    """One figure.

    Attributes:
        target: the most it may be; None where there is none.
    """

    what: str
    value: float
    unit: str
    target: float | None = None

    @property
    def verdict(self) -> str:
        """Whether the target is met."""
        if self.target is None:
            return ""
        return "met" if self.value <= self.target else "MISSED"


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and extremes, and how many there were."""
    return {"median": median(values), "min": min(values), "max": max(values), "n": len(values)}


def report(name: str, rows: Sequence[Row], details: Mapping[str, Any]) -> None:
    """Print the table, write `results/NAME.json`."""
    load = os.getloadavg()
    width = max(len(row.what) for row in rows)
    out = [f"{'WHAT':{width}}  {'FIGURE':>12}  {'TARGET':>12}"]
    for row in rows:
        target = "" if row.target is None else f"{row.target:g} {row.unit}"
        out.append(f"{row.what:{width}}  {row.value:12.3f} {row.unit:6}{target:>10}  {row.verdict}".rstrip())
    out.append(f"load average of the host: {load[0]:.1f} over 1 min, {load[1]:.1f} over 5, on {os.cpu_count()} cores")
    sys.stdout.write("\n".join(out) + "\n")
    document = {
        "benchmark": name,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "load": load,
        "rows": [
            {"what": r.what, "value": round(r.value, 4), "unit": r.unit, "target": r.target, "verdict": r.verdict}
            for r in rows
        ],
        **details,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
