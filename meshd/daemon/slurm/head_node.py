"""The head as a node of its own cluster: how Slurm shows it. meshd only looks: people drain it, systemd runs slurmd."""

from __future__ import annotations

import socket
from collections.abc import Iterable

from meshd.api.schema import CheckRow, HeadNodeRow, ProblemView, QueueView
from meshd.codes import CheckName, ProblemCode
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.observe.source import Observed
from meshd.daemon.reporting import Check, Reporter, fail, ok, problem
from meshd.model.ids import slot_index
from meshd.model.observed import Fresh, SlurmNode, SlurmView
from meshd.slurm.show import gpus_of

NAME = CheckName.HEAD_NODE
INIT = "`meshctl init` as root, then `systemctl restart slurmctld` and `systemctl restart slurmd`"
LOOK = "`systemctl status slurmd` and `journalctl -u slurmd` on this host; `systemctl restart slurmd`"


class HeadNode(Reporter):
    """Reports it.

    Args:
        live: the settings: whether the head is to be a node.
        slurm: what Slurm said last.
        name: this host's short name, which its node has too.
    """

    def __init__(self, live: LiveSettings, slurm: Observed[SlurmView], name: str = "") -> None:
        self._live, self._slurm = live, slurm
        self._name = name or socket.gethostname().split(".")[0]

    def row(self, view: SlurmView | None) -> HeadNodeRow | None:
        """For `meshctl status` and `nodes`; None where the head is no node, or Slurm cannot be read."""
        node = self._node(view) if view else None
        if view is None or node is None:
            return None
        jobs, may = view.jobs_on(node.name), set(node.partitions)
        pending = [job for job in view.jobs if job.state == "PENDING" and may & set(job.partition.split(","))]
        return HeadNodeRow(
            name=node.name, address=node.node_addr, partitions=list(node.partitions), gpus=gpus_of(node.gres),
            slurm_state="+".join(sorted(node.states)), up=node.up, drained=node.drained,
            slurm_reason=node.reason if node.drained or not node.up else "",
            jobs=list(jobs), queue=QueueView(running=len(jobs), pending=len(pending),
                                             pending_gpus=sum(job.gpus for job in pending)),
        )  # fmt: skip

    def problems(self) -> Iterable[ProblemView]:
        """The node cannot be used."""
        seen = self._slurm.current
        fault = self._fault(seen.value) if isinstance(seen, Fresh) else None
        if fault:
            code, text, cure = fault
            yield problem(code, "error", text, cure)

    def checks(self) -> Iterable[Check]:
        """The node's check."""
        yield Check(NAME, self.check, reads=True)

    async def check(self) -> CheckRow:
        """Whether slurmd runs, and has registered with what its line promises."""
        seen = self._slurm.current
        if not isinstance(seen, Fresh):
            return fail(NAME, ProblemCode.SLURM_UNREADABLE, seen.reason, "`systemctl status slurmctld`")
        if fault := self._fault(seen.value):
            return fail(NAME, *fault).model_copy(update={"at": seen.at})
        node = self._node(seen.value)
        if node is None:
            return ok(NAME, "off: `meshctl init --compute` lets jobs run on this host too", at=seen.at)
        if node.drained:
            return ok(NAME, f"{node.name} is drained by {node.reason_by or 'somebody'}: {node.reason}", at=seen.at)
        return ok(NAME, f"{node.name} takes jobs of {', '.join(node.partitions) or 'no partition'}", at=seen.at)

    def _node(self, view: SlurmView) -> SlurmNode | None:
        pools = self._live.settings.pools
        slot = any(slot_index(pool, self._name) is not None for pool in pools)
        if slot:
            return None
        own = (node for node in view.nodes.values() if node.node_addr == self._name)  # NodeName=ws NodeHostname=tower
        return view.nodes.get(self._name) or next(own, None)

    def _fault(self, view: SlurmView) -> tuple[ProblemCode, str, str] | None:
        """What is wrong: code, text and cure."""
        node, wanted = self._node(view), self._live.settings.head.compute
        if node is None:
            text = f"head.compute is true, and Slurm knows no node {self._name}"
            return (ProblemCode.HEAD_NODE_MISSING, text, INIT) if wanted else None
        if "INVALID_REG" in node.states:
            text = f"{node.name} has less than its line in slurm.conf promises: {node.reason or 'no reason'}"
            return ProblemCode.HEAD_NODE_INVALID, text, INIT
        if not node.up and not node.drained:
            text = f"{node.name} takes no jobs, it is {'+'.join(sorted(node.states))}: {node.reason or 'no reason'}"
            return ProblemCode.HEAD_NODE_DOWN, text, LOOK
        return None
