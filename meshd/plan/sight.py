"""What can be believed of a snapshot about single nodes, without an index of it: cheap enough for each look. PURE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeGuard, TypeVar

from meshd.model.desired import Policy
from meshd.model.machine import Machine
from meshd.model.observed import Fresh, Observation, SlurmNode, SlurmView, Snapshot, TailnetPeer, TailnetView
from meshd.model.report import AgentReport

T = TypeVar("T")

LONG_AGO = datetime.min.replace(tzinfo=UTC)


def believed(seen: Observation[T], policy: Policy, now: datetime) -> TypeGuard[Fresh[T]]:
    """Whether this is a word, and one of now: a stuck reader or a clock that was set makes it none."""
    return isinstance(seen, Fresh) and abs((now - seen.at).total_seconds()) <= policy.stale_after_s


@dataclass(frozen=True, slots=True)
class Sight:
    """Slurm, tailnet and agents as they can be believed at one moment.

    Attributes:
        slurm: None when Slurm did not answer, or long ago; else it was read at slurm_at.
        tailnet: None when the head itself is not well on the tailnet: it hears nobody then.
        tailnet_since: since when the head hears the tailnet without a break; silence counts from there.
        reports: what each agent said last, by machine; a machine is missing until it has spoken to this meshd.
    """

    now: datetime
    policy: Policy
    slurm: SlurmView | None = None
    slurm_at: datetime | None = None
    tailnet: TailnetView | None = None
    tailnet_since: datetime = LONG_AGO
    reports: Mapping[str, AgentReport] = field(default_factory=dict)

    @staticmethod
    def of(snapshot: Snapshot, policy: Policy, now: datetime) -> Sight:
        """What this snapshot shows."""
        slurm, tailnet = snapshot.slurm, snapshot.tailnet
        known = believed(slurm, policy, now)
        heard = isinstance(tailnet, Fresh) and tailnet.value.healthy
        return Sight(
            now=now,
            policy=policy,
            slurm=slurm.value if known and isinstance(slurm, Fresh) else None,
            slurm_at=slurm.at if known and isinstance(slurm, Fresh) else None,
            tailnet=tailnet.value if heard and isinstance(tailnet, Fresh) else None,
            tailnet_since=(tailnet.since or LONG_AGO) if isinstance(tailnet, Fresh) else LONG_AGO,
            reports=snapshot.reports,
        )

    def node(self, machine: Machine) -> SlurmNode | None:
        """The machine's slot in Slurm, if it is this machine that stands behind it."""
        node = self.slurm.nodes.get(machine.slot) if self.slurm else None
        return node if node and node.address == machine.tailnet_ip else None

    def peer(self, machine: Machine) -> TailnetPeer | None:
        """The machine's device on the tailnet."""
        return self.tailnet.peers.get(machine.tailnet_id) if self.tailnet and machine.tailnet_id else None

    def report(self, machine: Machine) -> AgentReport | None:
        """What its agent said last."""
        return self.reports.get(machine.name)
