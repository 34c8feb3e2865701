"""What nodes report of the head's accounts on them: clashes with accounts of their image, shells that are missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from meshd.api.schema import CheckRow, ProblemView
from meshd.codes import CheckName, ProblemCode
from meshd.daemon.reporting import Severity, ok, problem, warn
from meshd.model.machine import IN_SLURM, Machine
from meshd.model.node_settings import SectionState
from meshd.model.observed import AgentReport

SECTION = "accounts"
NAMES_SHOWN = 3

_SHOWN: Mapping[ProblemCode, tuple[Severity, str]] = {
    ProblemCode.ACCOUNT_LEFT_OUT: ("warning", "docs/users.md (Clashes) says what to do"),
    ProblemCode.SSH_NOT_ADOPTED: ("info", "set PrologFlags=Contain in slurm.conf, and restart slurmctld"),
    ProblemCode.SHELL_MISSING: ("info", "add its package to pools.NAME.packages, or put it into the image"),
}
"""Faults that keep no jobs off a node. ACCOUNT_CLASH does: the node is unfit."""


def problems(machines: Iterable[Machine], reports: Mapping[str, AgentReport]) -> Iterable[ProblemView]:
    """One for each thing that is wrong, however many nodes have it."""
    found: dict[tuple[ProblemCode, str], list[tuple[str, datetime]]] = {}
    for machine in machines:
        report = reports.get(machine.name)
        if report is None or machine.phase not in IN_SLURM:
            continue
        for fault in report.faults:
            code = next((code for code in _SHOWN if code == fault.code), None)
            if fault.section == SECTION and code is not None:
                found.setdefault((code, fault.detail), []).append((machine.slot, fault.since))
    for (code, detail), nodes in found.items():
        severity, cure = _SHOWN[code]
        names = ", ".join(name for name, _ in nodes[:NAMES_SHOWN])
        more = f" and {len(nodes) - NAMES_SHOWN} more" if len(nodes) > NAMES_SHOWN else ""
        yield problem(code, severity, f"{names}{more}: {detail}", cure, since=min(since for _, since in nodes))


def check(machines: Iterable[Machine], reports: Mapping[str, AgentReport]) -> CheckRow:
    """For `meshctl doctor`: do all nodes have the head's accounts?"""
    have, wrong = 0, []
    for machine in machines:
        report = reports.get(machine.name)
        if report is None or report.sections is None or machine.phase not in IN_SLURM:
            continue
        section = report.sections.get(SECTION)
        fault = next((f for f in report.faults if f.section == SECTION and f.code in _CLASHES), None)
        if fault is not None:
            wrong.append((_CLASHES[fault.code], f"{machine.slot}: {fault.detail}"))
        elif section is not None and section.state is SectionState.FAILED:
            wrong.append((ProblemCode.ACCOUNT_LEFT_OUT, f"{machine.slot}: {section.detail}"))
        elif section is not None and section.state is SectionState.APPLIED:
            have += 1
    if wrong:
        code, first = wrong[0]
        more = f"; {len(wrong) - 1} more nodes" if len(wrong) > 1 else ""
        return warn(CheckName.NODE_ACCOUNTS, code, f"{first}{more}", "docs/users.md (Clashes) says what to do")
    return ok(CheckName.NODE_ACCOUNTS, f"{have} nodes have the head's users")


_CLASHES = {code.value: code for code in (ProblemCode.ACCOUNT_CLASH, ProblemCode.ACCOUNT_LEFT_OUT)}
