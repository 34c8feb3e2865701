"""After any history of changes, failures, lost messages and restarts of both sides a node has what it should have.

The head's side and the agent's are the real ones. The test carries their messages, and loses some; it decides when the
agent works, and which work fails.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from deploy.node.meshd_node import commands
from deploy.node.meshd_node.errors import NodeError
from deploy.node.meshd_node.node import Node
from deploy.node.meshd_node.paths import Paths
from deploy.node.meshd_node.sections import KINDS, Kind, Sections
from meshd.api.node_commands import CommandQueue
from meshd.api.node_schema import PollIn, ResultIn
from meshd.config import PoolSettings
from meshd.daemon.agents import SECTION_AGAIN_S, AgentQueues
from meshd.daemon.nodes.node_settings import NodeSettings
from meshd.daemon.observe.agent_reports import NodeReports
from meshd.model.machine import Phase
from meshd.plan.node_settings import unapplied
from tests.live import live_settings
from tests.node_room import node_parts
from tests.tiers import bounded
from tests.unit.daemon.small import Small
from tests.unit.daemon.standins import MungeKey
from tests.unit.worlds import machine

READY = machine(Phase.READY)
ACTS = 40


class Lab(Small):
    """A head and an agent, each of which may be restarted at any moment."""

    def __init__(self, directory: Path, seed: int) -> None:
        super().__init__(directory, READY)
        self.rng = random.Random(seed)
        self.root = directory / "node"
        self.live = live_settings(pools={"h100": PoolSettings(gpu="h100")})
        self.faulty = True
        self.results: list[ResultIn] = []
        self.set_up: list[str] = []
        self.start_head()
        self.start_agent()

    async def nothing(self) -> str:
        return ""

    def start_head(self) -> None:
        """Queues, reports and digests are in memory alone."""
        self.queues, self.reports = AgentQueues(), NodeReports()
        self.queues._queues[READY.name] = CommandQueue(redeliver_s=0.0)  # it counts real time
        self.node_settings = NodeSettings(
            self.live, self.journal, self.queues, self.reports, self.clock, {}, task_prolog=self.nothing
        )
        self.service = node_parts(
            self.machine_store, live=self.live, agents=self.queues, reports=self.reports,
            munge_key=cast("Any", MungeKey()), node_settings=self.node_settings,
        ).service  # fmt: skip

    def start_agent(self) -> None:
        """As after a reboot: what is on disk is applied again."""
        self.node = Node(Paths(self.root), tun=True)
        kinds = [Kind(kind.name, self.work(kind.name), kind.needs) for kind in KINDS]
        self.kinds, self.node.sections = kinds, Sections(self.node, kinds, quiet_failures=0)
        self.node.sections.load()
        self.applied: dict[str, Any] = {}
        self.results = []

    def work(self, name: str) -> Callable[..., None]:
        def apply(_node: Node, value: dict[str, Any], _tell: object) -> None:
            if self.faulty and self.rng.random() < 0.4:
                raise NodeError("a fault that passes")
            if name == "setup" and value["script"] and not self.set_up:
                self.set_up.append(value["script"])
            self.applied[name] = value

        return apply

    def change(self) -> None:
        number = self.rng.randrange(1000)
        pool = PoolSettings(gpu="h100", env={"N": str(number)}, packages=(f"p{number}",), setup=f"echo {number}\n")
        self.live.settings = self.live.settings.model_copy(update={"pools": {"h100": pool}})

    async def poll(self, lost: float) -> None:
        """One poll; the answer or the question may be lost."""
        report = PollIn.model_validate(
            {"phase": "serving", "munge_ok": True, "sections": self.node.sections.report(), "results": self.results}
        )
        if self.rng.random() < lost:
            return
        found = await self.service.poll(READY.name, report, 0.0)
        if self.rng.random() < lost:
            return
        self.results = [
            ResultIn.model_validate(commands.carry_out(self.node, one.to_wire())) for one in found
        ]  # fmt: skip

    def agent_works(self) -> None:
        for kind in self.kinds:
            held = self.node.sections._due(kind)
            if held is not None:
                self.node.sections._try(kind, held)

    async def act(self) -> None:
        self.clock.t_s += self.rng.uniform(0, 5)
        await asyncio.sleep(0)
        match self.rng.randrange(8):
            case 0:
                self.change()
            case 1:
                self.start_head()
            case 2:
                self.start_agent()
            case 3:
                await self.node_settings.reconcile()
            case 4 | 5:
                self.agent_works()
            case _:
                await self.poll(0.3)

    def over(self) -> bool:
        report = self.reports.current.get(READY.name)
        return report is not None and unapplied(self.node_settings.wanted(READY), report) is None


@pytest.mark.parametrize("seed", range(bounded(40, 2000)))
async def test_a_node_has_what_it_should_have_in_the_end(seed: int, tmp_path: Path) -> None:
    lab = Lab(tmp_path, seed)
    try:
        for _ in range(ACTS):
            await lab.act()
        lab.faulty = False
        for _ in range(12):
            lab.clock.t_s += SECTION_AGAIN_S
            await lab.poll(0.0)
            lab.agent_works()
        assert lab.over(), (lab.node.sections.report(), lab.node_settings.wanted(READY))
        for name, section in lab.node_settings.of(READY).items():
            if name != "setup":
                assert lab.applied[name] == section.value
        assert len(lab.set_up) <= 1
        quiet = await lab.service.poll(
            READY.name, PollIn.model_validate({"munge_ok": True, "sections": lab.node.sections.report()}), 0.0
        )
        assert not [one for one in quiet if one.verb == "section"], "nothing is sent that is there"
    finally:
        await lab.executor.aclose(1)
        lab.journal.close()
