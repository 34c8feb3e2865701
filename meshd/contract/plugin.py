"""The contract suite's report, as a pytest plugin: `pytest -p meshd.contract.plugin`.

Options:
    --contract-seeds N: how many seeds the random faults are tried with.
    --contract-table FILE: write which fault was tried on which adapter, as a table in Markdown.

A case counts as passed only when it ran to its end; what a rig cannot try is told as not covered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from meshd.contract.cases.base import REPORT
from meshd.contract.cases.soak import SEEDS
from meshd.contract.faults import Kind
from meshd.contract.rig import DOES_NOT_APPLY, NOT_COVERED

BEGIN = "<!-- faults: written by --contract-table -->"
END = "<!-- end of faults -->"


@dataclass(slots=True)
class Tried:
    """What was tried on one rig.

    Attributes:
        cases: by outcome: passed, failed, not covered, does not apply.
        faults: by kind: how many cases passed that struck with it.
        missed: the faults that the rig cannot make, and why.
    """

    cases: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    missed: dict[str, str] = field(default_factory=dict)


class Report:
    """Gathers what the cases tell."""

    def __init__(self) -> None:
        self.rigs: dict[str, Tried] = {}
        self._outcomes: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a case's outcome, and at its end what it tried."""
        if report.when == "call" or report.outcome != "passed":
            self._outcomes[report.nodeid] = _outcome(report)
        told = dict(report.user_properties).get(REPORT)
        if report.when != "teardown" or not isinstance(told, Mapping):
            return
        tried = self.rigs.setdefault(str(told["rig"]), Tried())
        outcome = self._outcomes.get(report.nodeid, "failed")
        tried.cases[outcome] += 1
        tried.missed |= told["missed"]
        if outcome == "passed":
            tried.faults.update(told["asked"])

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say for each rig how many cases passed, and what was not covered."""
        if not self.rigs:
            return
        terminalreporter.section("contract suite")
        for name, tried in self.rigs.items():
            counts = ", ".join(f"{tried.cases[key]} {key}" for key in _OUTCOMES if tried.cases[key])
            terminalreporter.line(f"{name}: {counts}")
            for kind, why in sorted(tried.missed.items()):
                terminalreporter.line(f"  not covered: {kind}: {why}")


_OUTCOMES = ("passed", "failed", "not covered", "does not apply")


def _outcome(report: pytest.TestReport) -> str:
    if report.outcome != "skipped":
        return report.outcome
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return next((mark.removesuffix(": ") for mark in (NOT_COVERED, DOES_NOT_APPLY) if mark in reason), "not covered")


def table(rigs: Mapping[str, Tried], kinds: Iterable[Kind] = Kind) -> str:
    """Which fault was tried on which adapter: how many cases passed, or why there is none."""
    names = sorted(rigs)
    rows = [f"| fault | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
    rows += [f"| `{kind}` | {' | '.join(_cell(rigs[name], kind) for name in names)} |" for kind in kinds]
    return "\n".join(rows)


def _cell(tried: Tried, kind: Kind) -> str:
    if kind in tried.missed:
        return f"no: {tried.missed[kind]}"
    count = tried.faults[kind]
    return f"{count} case{'s' if count != 1 else ''}" if count else "not tried"


def put_table(text: str, found: str) -> str:
    """A document with the table between its marks replaced; the table alone when there are none."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{begin}\n\n{found}\n\n{end}{after}" if end else f"{found}\n"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The suite's options."""
    group = parser.getgroup("contract", "meshd's contract suite")
    group.addoption(
        "--contract-seeds", type=int, default=SEEDS, help="seeds of the random faults (default: %(default)s)"
    )
    group.addoption("--contract-table", type=Path, metavar="FILE", help="write the faults tried, as a Markdown table")


def pytest_configure(config: pytest.Config) -> None:
    """Start the report."""
    config.pluginmanager.register(Report(), "meshd-contract-report")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Write the table."""
    path: Path | None = config.getoption("contract_table")
    report = config.pluginmanager.get_plugin("meshd-contract-report")
    if path is not None and isinstance(report, Report) and report.rigs:
        text = path.read_text("utf-8") if path.exists() else ""
        path.write_text(put_table(text, table(report.rigs)), "utf-8")
