"""A pool's set-up script: once, as often as it may fail, within its time, with its output."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from deploy.node.meshd_node import packages, setup
from deploy.node.meshd_node.errors import Hopeless, NoSuchPackage, NotPossible, ToolFailed
from deploy.node.meshd_node.node import Node
from deploy.node.meshd_node.paths import Paths


class Machine:
    def __init__(self, root: Path) -> None:
        self.node = Node(Paths(root), tun=True)
        self.node.state.slot, self.node.state.cluster = "h100-1", "lab"
        self.told: list[str] = []

    def run(self, script: str, timeout_s: float = 60.0) -> None:
        value: dict[str, Any] = {"script": script, "timeout_s": timeout_s, "pool": "h100"}
        setup.apply(self.node, value, self.told.append)

    @property
    def log(self) -> str:
        return self.node.paths.setup_log.read_text()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_it_runs_once(machine: Machine, tmp_path: Path) -> None:
    machine.run("")
    script = f"#!/bin/sh\necho $MESHD_POOL $MESHD_NODE $MESHD_CLUSTER $HOME >>{tmp_path}/ran\n"
    machine.run(script)
    machine.run(script)
    Machine(tmp_path).run(f"{script}# another one, after a reboot\n")
    assert (tmp_path / "ran").read_text() == "h100 h100-1 lab /root\n"
    assert machine.node.paths.setup_script.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("first", ["", "#!/usr/bin/env python3\nimport sys; print(len(sys.argv))\n", "#! /bin/sh -e\n"])
def test_any_interpreter(machine: Machine, first: str) -> None:
    machine.run(f"{first}\n" if first else "echo plain\nexit 0\n")


def test_a_failure_is_tried_again_and_shows_the_end_of_its_output(machine: Machine, tmp_path: Path) -> None:
    script = "for n in 1 2 3; do echo line $n; done; echo it is broken >&2; exit 3\n"
    for final in (False, False, True):
        with pytest.raises((ToolFailed, Hopeless)) as failed:
            machine.run(script)
        assert isinstance(failed.value, Hopeless) is final
        assert "exit code 3" in str(failed.value)
        assert str(failed.value).endswith("line 3 | it is broken")
    assert machine.log.count("it is broken") == 3
    assert machine.node.paths.setup_log.stat().st_mode & 0o777 == 0o600
    once = f"test -e {tmp_path}/again || {{ touch {tmp_path}/again; exit 1; }}\n"
    with pytest.raises(ToolFailed):
        machine.run(once)
    machine.run(once)
    assert machine.node.paths.setup_done.exists()


def test_one_that_does_not_end_is_killed_with_its_children(machine: Machine, tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(Hopeless, match=r"0\.5 s"):
        machine.run(f"echo waiting; (sleep 600; touch {tmp_path}/late) & wait\n", timeout_s=0.5)
    assert time.monotonic() - began < 30
    assert machine.log == "waiting\n"


def test_what_it_is_at_is_told(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "TELL_EVERY_S", 0.0)
    machine.run("echo first; echo fetching the driver; sleep 0.5\n")
    assert "fetching the driver" in machine.told


def test_a_missing_interpreter_is_an_error_that_is_told(machine: Machine) -> None:
    with pytest.raises(OSError, match="no-such"):
        machine.run("#!/no-such-program\n")


def test_what_runs_after_an_agent_that_was_killed_counts_its_tries(machine: Machine) -> None:
    for _ in range(2):
        with pytest.raises(ToolFailed):
            Machine(machine.node.paths.root).run("exit 1\n")
    with pytest.raises(Hopeless):
        Machine(machine.node.paths.root).run("exit 1\n")
    with pytest.raises(ToolFailed):
        machine.run("exit 2\n")


def test_a_package_that_there_is_not_is_hopeless_and_one_that_fails_is_not() -> None:
    assert issubclass(NoSuchPackage, (Hopeless,))
    assert issubclass(NoSuchPackage, (NotPossible,))
    assert not issubclass(NotPossible, Hopeless)


def test_packages_that_are_there_need_nothing(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "_installed", lambda name: name == "jq")
    packages.apply(machine.node, {"names": []}, machine.told.append)
    packages.apply(machine.node, {"names": ["jq"]}, machine.told.append)
    assert machine.told == []
