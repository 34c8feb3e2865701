"""The agent's measurements of its paths with the real tailscaled: direct, relayed, and from one to the other.

Only the pauses between measurements are made up: the watch's clock is moved by hand.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from deploy.node.meshd_node.hosts import with_block
from deploy.node.meshd_node.node import Node
from deploy.node.meshd_node.path_watch import PEER_AGAIN_S, PathWatch
from deploy.node.meshd_node.paths import Paths
from meshd.api.node_schema import HeartbeatIn, PeerPathsIn
from meshd.daemon.observe.agent_reports import NodeReports
from meshd.model.desired import Policy
from meshd.model.machine import Phase
from meshd.model.path import MeasuredPath, PathKind
from meshd.plan.paths import path_fault
from meshd.plan.plan_input import ClusterView
from tests.integration.tailnet_lab import TailnetLab, tailnet_lab
from tests.unit.worlds import machine, snapshot
from tests.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

MACHINE = machine(Phase.TESTING)
POLICY = Policy(direct_pools=frozenset({MACHINE.pool}))


class Watched:
    """A node of the pool h100 with its tailscaled and its watch, and the head that takes its heartbeats."""

    def __init__(self, lab: TailnetLab, number: int, root: Path) -> None:
        (root / "run/tailscale").mkdir(parents=True)
        (root / "run/tailscale/tailscaled.sock").symlink_to(lab.socket_of(f"h100-{number}"))
        self.node = Node(Paths(root, root / "proc"))
        self.node.state.slot, self.node.state.node_token = f"h100-{number}", "a" * 64
        self.now_s = 1000.0
        self.watch = PathWatch(self.node, lambda: self.now_s)

    def knows(self, roster: dict[str, str]) -> None:
        """Take the roster in, and the head's address from it."""
        self.node.state.conf_server = f"{roster['head']}:6817"
        self.node.paths.hosts.parent.mkdir()
        self.node.paths.hosts.write_text(with_block("", roster))

    def heartbeat(self) -> HeartbeatIn:
        return HeartbeatIn.model_validate({"paths": self.watch.report()})

    async def head_path(self, good: Callable[[MeasuredPath], bool], what: str) -> MeasuredPath:
        """Its path to the head as the head learns it, once it is good."""

        async def look() -> MeasuredPath | None:
            self.now_s += await asyncio.to_thread(self.watch.look)
            reports = NodeReports()
            reports.heard(MACHINE, self.heartbeat(), datetime.now(UTC))
            return reports.current[MACHINE.name].head_path

        path = await until(look, lambda seen: seen is not None and good(seen), what, every_s=0.0)
        assert path is not None
        return path

    async def peers(self) -> PeerPathsIn:
        """Its only peer, measured when its time had come again."""
        self.now_s += PEER_AGAIN_S
        await asyncio.to_thread(self.watch.look)
        found = self.heartbeat().paths.peers
        assert found is not None
        return found

    def fault(self) -> str:
        """Why its pool does not let slurmd start."""
        reports, now = NodeReports(), datetime.now(UTC)
        reports.heard(MACHINE, self.heartbeat(), now)
        return path_fault(MACHINE, ClusterView.of(snapshot(reports=dict(reports.current)), POLICY, now))


@pytest.fixture
async def lab() -> AsyncIterator[TailnetLab]:
    with TemporaryDirectory(prefix="pw") as folder:
        async with tailnet_lab(Path(folder)) as lab:
            yield lab


async def test_paths_of_machines_and_pods(lab: TailnetLab) -> None:
    """The first has a TUN device, the second is a pod that is born where no UDP gets through."""
    first, second = (Watched(lab, number, lab.folder / f"machine-{number}") for number in (1, 2))
    await lab.join("head")
    await lab.join("h100-1", tun="ts-test")
    await lab.block_udp(blocked=True)
    await lab.join("h100-2")
    names = ("head", "h100-1", "h100-2")
    roster = {name: (await lab.status(name, peers=False))["TailscaleIPs"][0] for name in names}
    first.knows(roster)
    second.knows({"head": roster["head"]})
    assert first.fault() and second.fault(), "nothing is measured yet"

    path = await second.head_path(lambda seen: True, "the pod has measured its path")
    assert (path.kind, path.relay) == (PathKind.DERP, "sandbox")
    assert "sandbox" in second.fault()

    await lab.block_udp(blocked=False)
    path = await second.head_path(lambda seen: seen.direct, "the pod's path becomes direct")
    assert (path.relay, second.fault()) == ("", "")
    path = await first.head_path(lambda seen: seen.direct, "the machine's path is direct")
    assert 0 < path.rtt_s < 1
    found = await first.peers()
    assert (found.direct, found.relayed, found.silent) == (1, 0, 0)

    await lab.block_udp(blocked=True)
    path = await first.head_path(lambda seen: not seen.direct, "the machine's path falls back to the relay")
    assert (path.kind, path.relay) == (PathKind.DERP, "sandbox")
    assert first.fault()

    lab.kill("h100-2")
    found = await first.peers()
    assert (found.direct, found.relayed, found.silent, found.not_direct) == (0, 0, 1, ("h100-2",))
