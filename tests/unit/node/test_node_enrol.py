"""A machine redeems an invitation, and is cut off between the head's answer and the start of its agent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.node.meshd_node.before import HOST, Before
from deploy.node.meshd_node.enrol import EXIT_AGAIN
from deploy.node.meshd_node.paths import Paths
from meshd.bootstrap.assets import agent_zipapp
from tests.unit.node.standins import program

ACCEPTED = {"host": "tower", "heads": ["127.0.0.1"], "port": 9, "token": "x" * 64}
"""What the head has answered. Nobody listens at port 9: asking once more would fail."""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    found = tmp_path / "var/lib/meshd-host/found"
    for folder in (tmp_path / "bin", tmp_path / "etc/systemd/system", tmp_path / "opt/meshd-host", found / "root"):
        folder.mkdir(parents=True)
    (found / "packages").write_text("installed dpkg 1.22\n")
    (found.parent / "enrol.json").write_text(json.dumps(ACCEPTED))
    (found.parent / "host.json").write_text(json.dumps(ACCEPTED))
    program(tmp_path / "bin", "dpkg-query", "printf 'installed %s 1\\n' dpkg tailscale\n")
    program(tmp_path / "bin", "systemctl", f'echo "$*" >>{tmp_path}/calls; [ ! -e {tmp_path}/cut ]\n')
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    return Paths(tmp_path, tmp_path / "proc")


def run(machine: Paths) -> subprocess.CompletedProcess[str]:
    """The agent as the script starts it: a part of it is in its file alone."""
    agent = machine.root / "agent.pyz"
    agent.write_bytes(agent_zipapp())
    places = ("--root", machine.root, "--proc", machine.root / "proc", "--systemctl", machine.root / "bin/systemctl")
    words = [sys.executable, agent, *places, "enrol"]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


def test_it_is_finished_without_another_answer(machine: Paths) -> None:
    (machine.root / "cut").touch()
    assert run(machine).returncode == EXIT_AGAIN
    (machine.root / "cut").unlink()
    done = run(machine)
    assert done.returncode == 0, done.stderr
    assert "restart meshd-host.service" in (machine.root / "calls").read_text()
    assert (machine.units / "multi-user.target.wants/meshd-host.service").is_symlink()
    assert Before(machine, HOST).logs[HOST].facts["script packages"] == ["tailscale"]


def test_without_the_list_of_packages_nothing_is_begun(machine: Paths) -> None:
    """All packages of the machine would go with meshd."""
    (machine.root / "var/lib/meshd-host/found/packages").write_text("")
    done = run(machine)
    assert (done.returncode, "names no package" in done.stderr) == (EXIT_AGAIN, True)
    assert not (machine.root / "calls").exists()
