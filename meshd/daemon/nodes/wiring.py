"""Builds the parts that look after nodes: their API, their tokens, their tailnet devices, and what they report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from meshd.api.schema import CheckRow, ProblemView
from meshd.codes import CheckName
from meshd.daemon.agents import AgentQueues
from meshd.daemon.auth_key.ports import KeyPorts
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.machine_store import MachineStore
from meshd.daemon.machines.node_steps import NodeSteps
from meshd.daemon.munge_key.controller import MungeKeyController
from meshd.daemon.nodes import account_problems, paths, problems, unfit
from meshd.daemon.nodes.devices import Addresses, MachineDevices
from meshd.daemon.nodes.join_token_watch import JoinTokenWatch
from meshd.daemon.nodes.node_settings import NodeSettings
from meshd.daemon.nodes.service import HeadFacts, NodeService, Whois
from meshd.daemon.nodes.token_renewal import NodeTokenController, NodeTokenService
from meshd.daemon.nodes.tokens import MachineTokens
from meshd.daemon.observe.agent_reports import NodeReports
from meshd.daemon.observe.source import Observed, Readable
from meshd.daemon.reporting import Check, Reporter
from meshd.model.desired import Desired, Promise
from meshd.model.observed import SlurmView, Snapshot, TailnetView
from meshd.munge.client import MungeClient
from meshd.plan.plan_input import ClusterView
from meshd.provider_api import Provider


@dataclass(frozen=True, slots=True)
class NodeParts:
    """The parts.

    Attributes:
        service: answers the node agents.
        node_tokens: renews node tokens.
        token_service: what people ask about node tokens.
        devices: which tailnet device speaks for which machine.
        refusals: remembers join tokens that were refused.
    """

    service: NodeService
    node_tokens: NodeTokenController
    token_service: NodeTokenService
    devices: MachineDevices
    refusals: JoinTokenWatch


def build(
    live: LiveSettings,
    store: MachineStore,
    *,
    tokens: MachineTokens,
    agents: AgentQueues,
    reports: NodeReports,
    tailnet: Observed[TailnetView],
    slurm: Readable[SlurmView],
    addresses: Addresses | None,
    whois: Whois,
    munge: MungeClient,
    munge_key: MungeKeyController,
    node_steps: NodeSteps,
    providers: Mapping[str, Provider],
    node_settings: NodeSettings,
    agent_spoke: Callable[[str], None] = lambda _: None,
    promises: Callable[[], Mapping[str, Promise]] = lambda: {},
    head: HeadFacts | None = None,
) -> NodeParts:
    """Build the parts. `addresses` is the tailnet's API, None without a credential; for the rest see NodeService."""
    devices = MachineDevices(store, tailnet, addresses)
    refusals = JoinTokenWatch(store.journal)
    node_tokens = NodeTokenController(store, tokens, agents, store.clock, live)
    service = NodeService(
        live, store, tokens=tokens, node_tokens=node_tokens, refusals=refusals, agents=agents, reports=reports,
        devices=devices, whois=whois, munge=munge, munge_key=munge_key, node_steps=node_steps, providers=providers,
        slurm=slurm, node_settings=node_settings, agent_spoke=agent_spoke, promises=promises,
        head=head,
    )  # fmt: skip
    return NodeParts(service, node_tokens, NodeTokenService(node_tokens, store.clock), devices, refusals)


class NodeReporter(Reporter):
    """What is wrong with nodes.

    Args:
        live: the settings.
        store: the machines.
        parts: the parts above.
        desired: what is desired now.
        snapshot: what every source said last.
        keys: tell whether the tailnet's API can be asked to change devices.
    """

    def __init__(
        self,
        live: LiveSettings,
        store: MachineStore,
        parts: NodeParts,
        desired: Callable[[], Desired],
        snapshot: Callable[[], Snapshot],
        keys: KeyPorts,
    ) -> None:
        self._live = live
        self._store = store
        self._parts = parts
        self._desired = desired
        self._snapshot = snapshot
        self._may_change_devices = keys.api is not None

    def problems(self) -> Iterable[ProblemView]:
        """Unfit and silent nodes, their devices, keys and tokens, and what users of a node can read."""
        now, machines, snapshot = self._store.now(), self._store.journal.machines(), self._snapshot()
        desired = self._desired()
        cluster_view = ClusterView.of(snapshot, desired.policy, now)
        yield from unfit.problems(machines, desired, cluster_view)
        yield from paths.problems(machines, cluster_view)
        yield from problems.logins(machines, snapshot, now)
        yield from self._parts.devices.problems(now)
        yield from problems.devices(machines, now)
        ahead = timedelta(days=self._live.settings.tailnet.rotate_before_expiry_d)
        yield from problems.node_keys(machines, snapshot, now, ahead, may_change=self._may_change_devices)
        yield from self._parts.refusals.problems(now)
        yield from self._parts.token_service.problems()
        yield from self._store.node_events.problems({machine.name for machine in machines})
        yield from problems.metadata_open(machines)
        yield from account_problems.problems(machines, snapshot.reports)

    def checks(self) -> Iterable[Check]:
        """Whether users of a node can reach the cloud's metadata service, and what jobs lack on nodes."""
        yield Check(CheckName.METADATA_SERVICE, self._metadata_service)
        yield Check(CheckName.NODE_LIMITS, self._limits)
        yield Check(CheckName.NODE_ACCOUNTS, self._accounts)

    async def _limits(self) -> CheckRow:
        return problems.check_limits(self._store.journal.machines())

    async def _accounts(self) -> CheckRow:
        return account_problems.check(self._store.journal.machines(), self._snapshot().reports)

    async def _metadata_service(self) -> CheckRow:
        return problems.check_metadata_service(self._store.journal.machines())
