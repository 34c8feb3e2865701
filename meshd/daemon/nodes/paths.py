"""Nodes whose tailnet path to the head is relayed, as problems. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Literal

from meshd.api.schema import ProblemView
from meshd.codes import ProblemCode
from meshd.daemon.reporting import problem
from meshd.model.machine import Machine, Phase
from meshd.plan.paths import CURE, demands_direct, head_path, path_fault, relayed_words
from meshd.plan.plan_input import ClusterView


def problems(machines: Iterable[Machine], view: ClusterView) -> Iterable[ProblemView]:
    """Nodes whose path is not as their pool demands, as warnings; other relayed nodes, for information.

    It reports a path only after `unfit_grace_s`: a path is often relayed for some seconds.
    """
    for machine in machines:
        found = _fault(machine, view) if not (machine.removal or machine.failure) else None
        if found is None or view.now - found[0] < timedelta(seconds=view.policy.unfit_grace_s):
            continue
        since, words = found
        severity: Literal["warning", "info"] = "warning" if demands_direct(machine, view.policy) else "info"
        yield problem(
            ProblemCode.PATH_RELAYED, severity, f"{machine.name}: {words}", CURE, since=since, machine=machine.name,
            pool=machine.pool,
        )  # fmt: skip


def _fault(machine: Machine, view: ClusterView) -> tuple[datetime, str] | None:
    """Since when, and what is wrong with its path; None when nothing is."""
    if machine.phase is Phase.TESTING and not machine.may_run_jobs:
        fault = path_fault(machine, view)
        return (machine.phase_since, f"slurmd waits for a direct path: {fault}") if fault else None
    report, path = view.report(machine), head_path(machine, view)
    if machine.phase is not Phase.READY or report is None or path is None or report.relayed_since is None:
        return None
    return report.relayed_since, f"its path to the head goes over {relayed_words(path)}, which is slow"
