"""Who is told which names."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshd.daemon.agents import AgentQueues
from meshd.daemon.nodes.roster import HeadNames, Roster
from meshd.model.machine import Phase
from meshd.store.journal import Journal
from meshd.tailnet.headhosts import REQUEST, serve
from tests.clocks import HandClock
from tests.live import live_settings
from tests.unit.worlds import NOW, machine


def test_nodes_and_head_are_told_of_those_that_slurm_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "gate.example")
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n")
    journal, agents = Journal(tmp_path / "journal.db"), AgentQueues()
    tailnet: Any = SimpleNamespace(head_tailnet_ip="")
    names = HeadNames(tmp_path, live_settings(), HandClock(), hosts)
    roster = Roster(journal, agents, names, tailnet, HandClock())
    ready, booting = machine(Phase.READY, index=1), machine(Phase.BOOTING, index=2)
    for each in (ready, booting, machine(Phase.DRAINING, index=3, left_slurm=True)):
        journal.put(each, "phase", "as it is", NOW)
    roster.look()
    assert agents.roster == {"h100-1": "100.64.0.2"}, "one boots, one has left Slurm"
    version = agents.roster_version
    roster.look()
    assert agents.roster_version == version, "nothing changed"
    tailnet.head_tailnet_ip = "100.64.0.1"
    roster.look()
    assert agents.roster == {"gate": "100.64.0.1", "h100-1": "100.64.0.2"}
    assert agents.roster_version == version + 1
    told = [command.verb for command in agents.of(ready.name).pending()]
    assert told == ["roster"], "the older one is dropped"
    assert agents.of(booting.name).pending() == ()
    settings = tmp_path / "meshd.toml"
    settings.write_text('[pools.h100]\ngpu = "h100"\nmax_nodes = 3\n')
    serve(tmp_path / REQUEST, hosts, settings, tmp_path / "nodes.conf")
    block = "# BEGIN meshd\n100.64.0.2\th100-1\n# END meshd\n"
    assert hosts.read_text() == "127.0.0.1 localhost\n" + block, "the head's own name is its administrator's"
    roster.look()
    assert not (tmp_path / REQUEST).exists()
    journal.close()
