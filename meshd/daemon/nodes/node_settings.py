"""What nodes are given beside munge and Slurm: which section of the node settings each agent should hold, and sends it.

A machine that joins gets all sections in the answer to its join. After that each poll says which it holds; the head
sends those that differ, at once when the settings change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from meshd.api.node_schema import PollIn
from meshd.config import Settings
from meshd.daemon.agents import AgentQueues
from meshd.daemon.controller import Controller
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.observe.agent_reports import NodeReports
from meshd.model.machine import IN_SLURM, Machine, Phase
from meshd.model.node_settings import SectionState, WantedSection
from meshd.plan.node_settings import ClusterGiven, NodeKind, PoolGiven, Section, sections, to_send
from meshd.runtime.clock import Clock
from meshd.store.journal import Journal

MLFLOW_URI = "MLFLOW_TRACKING_URI"
"""The variable from which MLflow's clients take the address of the server."""


def given_by(settings: Settings, head: str) -> ClusterGiven:
    """What the settings give nodes.

    Args:
        settings: those in force.
        head: the head's address on the tailnet; "" while it is not known.
    """
    pools = {name: PoolGiven(env=pool.env) for name, pool in settings.pools.items()}
    env = {MLFLOW_URI: settings.mlflow.uri(head)} if settings.mlflow.enabled and head else {}
    return ClusterGiven(pools, env=env)


def problem_of(report: PollIn) -> str:
    """What failed of the node settings, for people; "" when nothing did."""
    failed = [
        f"{name}: {one.detail}" for name, one in (report.sections or {}).items() if one.state is SectionState.FAILED
    ]
    return "; ".join(failed)[:1000]


class NodeSettings(Controller):
    """Keeps the agents' node settings.

    Args:
        live: the settings.
        journal: the machines.
        agents: the agents' commands.
        reports: what the agents said last.
        clock: time.
        pod_providers: the providers that rent pods.
        head: the head's address on the tailnet; "" while it is not known.
    """

    name = "node_settings"

    def __init__(
        self,
        live: LiveSettings,
        journal: Journal,
        agents: AgentQueues,
        reports: NodeReports,
        clock: Clock,
        pod_providers: Mapping[str, str],
        head: Callable[[], str] = lambda: "",
    ) -> None:
        super().__init__(clock)
        self._live = live
        self._journal = journal
        self._agents = agents
        self._reports = reports
        self._pod_providers = pod_providers
        self._head = head
        self._last_head = ""
        self._made_from: Settings | None = None
        self._made: dict[NodeKind, Mapping[str, Section]] = {}
        self._wanted: dict[NodeKind, Mapping[str, WantedSection]] = {}

    async def reconcile(self) -> None:
        """Send what has changed. It is woken after each tick, and after each reload."""
        self.look()

    def look(self) -> None:
        """Send the sections that have changed to the agents that poll."""
        for machine in self._journal.machines():
            if machine.facts is not None and machine.phase in IN_SLURM:
                self.offer(machine)

    def of(self, machine: Machine) -> Mapping[str, Section]:
        """The sections that this machine should have."""
        head = self._head() or self._last_head  # a tailscaled that restarts takes nothing from jobs
        if head != self._last_head:
            self._last_head, self._made_from = head, None
        if self._made_from is not self._live.settings:
            self._made_from, self._made, self._wanted = self._live.settings, {}, {}
        kind = NodeKind.of(machine, self._pod_providers)
        if kind not in self._made:
            self._made[kind] = made = sections(given_by(self._live.settings, head), kind)
            self._wanted[kind] = {name: one.wanted for name, one in made.items()}
        return self._made[kind]

    def wanted(self, machine: Machine) -> Mapping[str, WantedSection]:
        """The digests of `of`."""
        self.of(machine)
        return self._wanted[NodeKind.of(machine, self._pod_providers)]

    def of_arriving(self) -> Mapping[str, Mapping[str, WantedSection]]:
        """By machine that is being configured, what it should have."""
        return {m.name: self.wanted(m) for m in self._journal.machines() if m.phase is Phase.CONFIGURING}

    def for_join(self, machine: Machine) -> dict[str, dict[str, Any]]:
        """What the answer to its join says."""
        found = self.of(machine).items()
        return {name: {"digest": one.wanted.digest, "value": dict(one.value)} for name, one in found}

    def offer(self, machine: Machine) -> None:
        """Send what its agent does not hold; nothing to an agent that is older than sections."""
        report = self._reports.current.get(machine.name)
        if report is None or report.sections is None:
            return
        names = to_send(self.wanted(machine), report.sections)
        if not names:
            self._agents.holds_sections(machine.name)
        for name in names:
            self._agents.offer_section(machine.name, self.of(machine)[name], self._clock.monotonic_s())
