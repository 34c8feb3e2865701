"""The contract suite's report, as a pytest plugin: `pytest -p meshd.contract.plugin`.

Options:
    --contract-seeds N: run the case with random faults N times, each with another seed.
    --contract-table FILE: write a Markdown table of the faults that were injected into each adapter.

A case counts as passed only when it ran to its end. What a rig cannot run is reported as not covered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from meshd.contract.cases.base import REPORT
from meshd.contract.cases.random_faults import SEEDS
from meshd.contract.faults import FaultKind
from meshd.contract.rig import DOES_NOT_APPLY, NOT_COVERED

BEGIN = "<!-- faults: written by --contract-table -->"
END = "<!-- end of faults -->"


@dataclass(slots=True)
class RigResults:
    """The results of one rig.

    Attributes:
        cases: how many, by outcome: passed, failed, not covered, does not apply.
        faults: how many cases passed that injected it, by kind.
        skipped: the faults that the rig does not support, and why.
    """

    cases: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    skipped: dict[str, str] = field(default_factory=dict)


class ContractReport:
    """Collects the results of the cases."""

    def __init__(self) -> None:
        self.rigs: dict[str, RigResults] = {}
        self._outcomes: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a case's outcome and, when it is over, the faults that it injected."""
        if report.when == "call" or report.outcome != "passed":
            self._outcomes[report.nodeid] = _outcome(report)
        recorded = dict(report.user_properties).get(REPORT)
        if report.when != "teardown" or not isinstance(recorded, Mapping):
            return
        results = self.rigs.setdefault(str(recorded["rig"]), RigResults())
        outcome = self._outcomes.get(report.nodeid, "failed")
        results.cases[outcome] += 1
        results.skipped |= recorded["skipped"]
        if outcome == "passed":
            results.faults.update(recorded["injected"])

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print for each rig how many cases passed, and what was not covered."""
        if not self.rigs:
            return
        terminalreporter.section("contract suite")
        for name, results in self.rigs.items():
            counts = ", ".join(f"{results.cases[key]} {key}" for key in _OUTCOMES if results.cases[key])
            terminalreporter.line(f"{name}: {counts}")
            for kind, why in sorted(results.skipped.items()):
                terminalreporter.line(f"  not covered: {kind}: {why}")


_OUTCOMES = ("passed", "failed", "not covered", "does not apply")


def _outcome(report: pytest.TestReport) -> str:
    if report.outcome != "skipped":
        return report.outcome
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return next((mark.removesuffix(": ") for mark in (NOT_COVERED, DOES_NOT_APPLY) if mark in reason), "not covered")


def table(rigs: Mapping[str, RigResults], kinds: Iterable[FaultKind] = FaultKind) -> str:
    """A Markdown table of faults and adapters: how many cases passed, or why there is none."""
    names = sorted(rigs)
    rows = [f"| fault | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
    rows += [f"| `{kind}` | {' | '.join(_cell(rigs[name], kind) for name in names)} |" for kind in kinds]
    return "\n".join(rows)


def _cell(results: RigResults, kind: FaultKind) -> str:
    if kind in results.skipped:
        return f"no: {results.skipped[kind]}"
    count = results.faults[kind]
    return f"{count} case{'s' if count != 1 else ''}" if count else "not tried"


def put_table(text: str, found: str) -> str:
    """The document with the table between its markers replaced; the table alone when there are no markers."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{begin}\n\n{found}\n\n{end}{after}" if end else f"{found}\n"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the suite's options."""
    group = parser.getgroup("contract", "meshd's contract suite")
    group.addoption(
        "--contract-seeds", type=int, default=SEEDS, help="number of seeds for random faults (default: %(default)s)"
    )
    group.addoption("--contract-table", type=Path, metavar="FILE", help="write the injected faults as a Markdown table")


def pytest_configure(config: pytest.Config) -> None:
    """Register the report."""
    config.pluginmanager.register(ContractReport(), "meshd-contract-report")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Write the table that was asked for."""
    path: Path | None = config.getoption("contract_table")
    report = config.pluginmanager.get_plugin("meshd-contract-report")
    if path is not None and isinstance(report, ContractReport) and report.rigs:
        text = path.read_text("utf-8") if path.exists() else ""
        path.write_text(put_table(text, table(report.rigs)), "utf-8")
