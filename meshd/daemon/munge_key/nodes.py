"""What the node agents report about munge, together with what Slurm says about their nodes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from meshd.api.node_schema import PollIn
from meshd.daemon.observe.source import Readable
from meshd.model.machine import IN_SLURM, Machine
from meshd.model.observed import Fresh, SlurmView
from meshd.munge.rotation import NodeView
from meshd.runtime.clock import Clock
from meshd.store.journal import Journal

POLL_SLACK_S = 15.0
"""An agent that is late with its poll by more than this cannot be reached."""


@dataclass(frozen=True, slots=True)
class AgentReport:
    """The last report of an agent, received `at`. For the other fields see NodeView."""

    at: datetime
    key: str
    staged: str
    proved: bool
    slurmd: bool
    problem: str


class MungeNodes:
    """All machines that have joined and not left.

    Args:
        slurm: the source of Slurm's nodes and jobs.
        poll_hold_s: the head holds a poll for this long at most.
    """

    def __init__(self, journal: Journal, slurm: Readable[SlurmView], clock: Clock, poll_hold_s: float) -> None:
        self._journal = journal
        self._slurm = slurm
        self._clock = clock
        self._silent_after = timedelta(seconds=poll_hold_s + POLL_SLACK_S)
        self._reports: dict[str, AgentReport] = {}

    def note(self, machine: str, report: PollIn) -> AgentReport:
        """Keep an agent's report."""
        beat = report.heartbeat
        noted = self._reports[machine] = AgentReport(
            self._clock.now(), beat.munge_key, beat.munge_key_staged, report.munge_ok, beat.slurmd_alive, report.problem
        )
        return noted

    def views(self, failures: Mapping[str, str], busy: Collection[str]) -> dict[str, NodeView]:
        """All nodes, by machine.

        Args:
            failures: by machine, why its last order failed.
            busy: the machines that have an order to switch and have not answered.
        """
        seen, now = self._slurm.current, self._clock.now()
        slurm = seen.value if isinstance(seen, Fresh) else None
        return {
            str(m.name): self._view(m, slurm, now, failures.get(m.name, ""), busy=m.name in busy) for m in self.joined()
        }

    def joined(self) -> list[Machine]:
        """The machines' records."""
        return [
            m for m in self._journal.machines() if m.phase in IN_SLURM and m.facts is not None and not m.left_slurm
        ]  # fmt: skip

    def _view(self, machine: Machine, slurm: SlurmView | None, now: datetime, failure: str, *, busy: bool) -> NodeView:
        node = slurm.nodes.get(machine.slot) if slurm else None
        states = node.states if node is not None and node.node_addr == machine.tailnet_ip else frozenset()
        down = "DOWN" in states and slurm is not None and not slurm.jobs_on(machine.slot)
        offline = down or not machine.may_run_jobs
        report = self._reports.get(machine.name)
        if report is None:
            return NodeView(machine.name, machine.slot, reachable=False, offline=offline, problem=failure)
        return NodeView(
            machine=machine.name, slot=machine.slot, reachable=now - report.at <= self._silent_after, offline=offline,
            key=report.key, staged=report.staged, proved=report.proved, problem=failure or report.problem, busy=busy,
            slurmd=not machine.slurmd_started or (report.slurmd and "NOT_RESPONDING" not in states),
        )  # fmt: skip
