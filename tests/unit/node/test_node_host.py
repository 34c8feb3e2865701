"""The agent of an owned machine, against the head's real node API and its real part for owned machines."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from deploy.node.meshd_node import host as host_module
from deploy.node.meshd_node import host_node
from deploy.node.meshd_node.host import Host
from deploy.node.meshd_node.node import Node
from deploy.node.meshd_node.paths import Paths
from meshd.api.node_api import NodeApi
from meshd.bootstrap.assets import agent_zipapp
from meshd.daemon.machine_store import MachineStore
from meshd.daemon.nodes.tokens import MachineTokens
from meshd.model.desired import Desired, Pool
from meshd.model.host import HostState
from meshd.model.observed import TailnetPeer
from meshd.runtime.clock import SystemClock
from meshd.store.hosts import Hosts
from meshd.store.journal import Journal
from tests.host_room import host_parts
from tests.unit.node.standins import MemoryHandlers, new_token, program, until
from tests.unit.worlds import host

POOL = Pool("h100", "h100", 1, 8, ("static",))
FIRST, SECOND = "lab-h100-1-aaaaaa", "lab-h100-1-bbbbbb"
SYSTEMCTL = """
echo "$*" >>"$0.calls"
unit=$(for word in "$@"; do case "$word" in *.service) echo "$word";; esac; done)
case "$*" in
is-active*) [ -e "$0.$unit" ];;
*restart*|*start*) : >"$0.$unit";;
*stop*|*kill*) rm -f "$0.$unit";;
esac
"""


@dataclass
class Owned:
    """A scratch directory that stands for a machine, its host agent in a thread, and the head."""

    root: Path
    hosts: Hosts
    clock: SystemClock
    config: dict[str, Any]
    left: list[list[str]] = field(default_factory=list)
    over_s: float = 0.0
    thread: threading.Thread | None = None

    def start(self) -> Host:
        """Start the agent, as after a boot."""
        paths = Paths(self.root, self.root / "proc")
        agent = Host(
            Node(paths, str(self.root / "bin/systemctl"), True), self.config, self.left.append,
            lambda: time.monotonic() + self.over_s, lambda seconds: threading.Event().wait(min(seconds, 0.1)),
        )  # fmt: skip
        self.thread = threading.Thread(target=agent.run, daemon=True)
        self.thread.start()
        return agent

    def change(self, **fields: Any) -> None:
        self.hosts.change("pc-1", "told by the test", self.clock.now(), **fields)

    async def says(self, state: str, machine: str = "") -> None:
        """Wait until the head has heard that the machine is so."""

        def look() -> bool:
            found = self.hosts.find("pc-1")
            return found is not None and (found.state.value, found.runs) == (state, machine)

        await until(look)

    def files(self) -> dict[str, bytes]:
        """What is on the machine but meshd's own."""
        return {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in self.root.rglob("*")
            if path.is_file() and not {"bin", "meshd-host"} & set(path.relative_to(self.root).parts)
        }


@pytest.fixture
async def owned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Owned]:
    root, clock = tmp_path / "m", SystemClock()
    for name in ("bin", "etc", "proc/self", "var/lib/meshd-host", "opt/meshd-host", "run/systemd/system"):
        (root / name).mkdir(parents=True)
    (root / "proc/self/mountinfo").write_text("")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
    (root / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\n")
    (root / "opt/meshd-host/meshd-node.pyz").write_bytes(agent_zipapp())
    program(root / "bin", "systemctl", SYSTEMCTL)
    monkeypatch.setattr(host_module, "AGAIN_S", 0.2)
    journal = Journal(tmp_path / "j.db")
    store, hosts, tokens = MachineStore(journal, clock, lambda: None), Hosts(journal), MachineTokens(b"s" * 32)
    one = hosts.put(
        replace(host(1), facts=None, state=HostState.LEAVING, sleep_command=("touch", str(root / "slept"))),
        "x",
        clock.now(),
    )
    parts = host_parts(store, hosts, tokens=tokens, desired=lambda: Desired("lab", {"h100": POOL}, {}),
                       head_ip=lambda: "127.0.0.1")  # fmt: skip
    handlers = MemoryHandlers(new_token())
    handlers.peers = {"127.0.0.1": TailnetPeer("n-pc-1", "laptop", "100.64.0.9", online=True)}
    api = NodeApi(handlers, poll_hold_s=0.5, clock=clock, hosts=parts.service)
    port = await api.start("127.0.0.1", 0)
    config = {
        "host": "pc-1", "heads": ["127.0.0.1"], "port": port, "poll_hold_s": 0.5, "tailnet": "ours",
        "token": tokens.host_token("pc-1", one.invitation).get_secret_value(),
    }  # fmt: skip
    (root / "var/lib/meshd-host/host.json").write_text(json.dumps(config))
    made = Owned(root, hosts, clock, config)
    yield made
    if made.thread is not None and made.thread.is_alive():
        made.change(machine="", evict=True)
        await asyncio.to_thread(made.thread.join, 60)
    await api.stop()
    journal.close()


async def test_free_then_a_node_then_another_one_then_evicted(owned: Owned) -> None:
    before = owned.files()
    owned.start()
    await owned.says("free")
    owned.change(machine=FIRST)
    await owned.says("node", FIRST)
    join = owned.root / "etc/meshd-node/join.json"
    assert json.loads(join.read_text())["machine"] == FIRST
    assert (owned.root / "etc/systemd/system/meshd-node.service").exists()
    owned.change(machine=SECOND)
    await owned.says("node", SECOND)
    assert json.loads(join.read_text())["machine"] == SECOND
    owned.change(machine="", evict=True)
    await until(lambda: bool(owned.left))
    assert owned.left == [["/bin/sh", str(owned.root / "opt/meshd-host/run")]]
    assert owned.files() == before
    assert (owned.root / "var/lib/meshd-host/last/complete").exists()
    found = owned.hosts.find("pc-1")
    assert found is None or found.evicted_at is not None


async def test_what_was_begun_before_a_cut_of_power_is_finished(owned: Owned) -> None:
    before = owned.files()
    owned.change(machine=FIRST)
    owned.start()
    await owned.says("node", FIRST)
    owned.change(machine="", evict=True)
    await until(lambda: bool(owned.left))
    owned.left.clear()
    # as if the power was cut in the middle of the way off: the head wants the same machine, and gets it anew
    paths = Paths(owned.root, owned.root / "proc")
    paths.host_machine.write_text(json.dumps({"machine": FIRST, "leaving": True}))
    (owned.root / "etc/meshd-node").mkdir()
    (owned.root / "etc/meshd-node/join.json").write_text("{}")
    assert host_node.state(paths) == ("leaving", FIRST)
    host_node.take_off(Node(paths, str(owned.root / "bin/systemctl"), True))
    assert host_node.state(paths) == ("free", "")
    assert owned.files() == before


async def test_it_runs_the_sleep_command_and_says_that_it_is_awake(owned: Owned) -> None:
    owned.start()
    await owned.says("free")
    owned.change(sleeping_since=owned.clock.now())
    await until(lambda: (owned.root / "slept").exists())
    owned.over_s = host_module.SLEEP_S + 1.0  # a command that puts nothing to sleep is awake after that

    def awake() -> bool:
        found = owned.hosts.find("pc-1")
        return found is not None and found.sleeping_since is None

    await until(awake)


async def test_a_head_that_has_forgotten_it_for_an_hour_loses_it(owned: Owned) -> None:
    owned.config["token"] = "0" * 64
    before = owned.files()
    owned.start()
    await asyncio.sleep(1.0)
    assert not owned.left
    owned.over_s = host_module.FORGOTTEN_S
    await until(lambda: bool(owned.left))
    assert owned.files() == before


async def test_what_fails_is_told_and_tried_again(owned: Owned) -> None:
    working = (owned.root / "bin/systemctl").read_text()
    (owned.root / "bin/systemctl").write_text("#!/bin/sh\ncase $* in *start*) echo broken >&2; exit 1;; esac\n")
    owned.change(machine=FIRST)
    owned.start()

    def told() -> bool:
        found = owned.hosts.find("pc-1")
        return found is not None and found.problem != ""

    await until(told)
    (owned.root / "bin/systemctl").write_text(working)
    await owned.says("node", FIRST)
    await until(lambda: not told())
