"""The agent's side of node settings: kept, applied in their order, again after a failure and after a reboot."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploy.node.meshd_node import sections as module
from deploy.node.meshd_node.errors import Hopeless, NotPossible, ToolTimeout
from deploy.node.meshd_node.node import Node
from deploy.node.meshd_node.paths import Paths
from deploy.node.meshd_node.section_fault import Fault
from deploy.node.meshd_node.sections import Kind, Sections
from tests.unit.node.standins import WITHIN_S, House, until
from tests.unit.node.test_node_agent import ready

A, B = "a" * 16, "b" * 16


class Work:
    """A section whose work a test decides."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.errors: list[Exception] = []
        self.may = threading.Event()
        self.may.set()
        self.faults: list[Fault] = []

    def apply(self, _node: Node, value: dict[str, Any], tell: Callable[[str], None]) -> None:
        tell("at work")
        assert self.may.wait(WITHIN_S)
        if self.errors:
            raise self.errors.pop(0)
        self.done.append(value["n"])

    def kind(self, name: str, *needs: str) -> Kind:
        return Kind(name, self.apply, needs, lambda _node, _value: self.faults)


class Held:
    """Sections over a scratch machine."""

    def __init__(self, root: Path, *kinds: Kind) -> None:
        self.node = Node(Paths(root), tun=True)
        self.sections = Sections(self.node, kinds, quiet_failures=0)
        self.moved = 0

    def start(self) -> None:
        self.sections.start(self.move)

    def move(self) -> None:
        self.moved += 1

    def states(self) -> dict[str, tuple[str, str]]:
        return {name: (one["digest"], one["state"]) for name, one in self.sections.report().items()}


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AGAIN_FIRST_S", 0.01)


async def test_a_section_is_kept_applied_and_reported(tmp_path: Path) -> None:
    work = Work()
    held = Held(tmp_path, work.kind("one"))
    held.start()
    assert (held.states(), held.sections.lacking()) == ({}, "")
    work.may.clear()
    held.sections.put("one", A, {"n": 1})
    await until(lambda: held.sections.report()["one"]["detail"] == "at work")
    assert held.states() == {"one": (A, "working")}
    assert "one" in held.sections.lacking()
    work.may.set()
    await until(lambda: held.states() == {"one": (A, "applied")})
    assert (held.sections.lacking(), work.done) == ("", [1])
    assert (tmp_path / "var/lib/meshd-node/sections/one.json").stat().st_mode & 0o777 == 0o600
    before = held.sections.version
    held.sections.put("one", A, {"n": 1})
    assert (held.sections.version, work.done) == (before, [1]), "it is sent twice if an answer was lost"
    held.sections.put("one", B, {"n": 2})
    assert held.sections.lacking() == "", "slurmd does not wait for a change"
    await until(lambda: held.states() == {"one": (B, "applied")})
    assert held.moved >= 2


async def test_after_a_reboot_it_is_applied_again_from_disk(tmp_path: Path) -> None:
    work = Work()
    before = Held(tmp_path, work.kind("one"))
    before.sections.take({"one": {"digest": A, "value": {"n": 1}}, "newer": {"digest": A, "value": {}}, "bad": 3})
    after = Held(tmp_path, work.kind("one"))
    work.may.clear()
    after.start()
    assert after.sections.lacking() != ""
    work.may.set()
    await until(lambda: after.states() == {"one": (A, "applied")})
    assert work.done == [1]


async def test_what_failed_is_tried_again_unless_that_cannot_help(tmp_path: Path) -> None:
    work = Work()
    held = Held(tmp_path, work.kind("one"))
    held.start()
    work.errors = [ToolTimeout("mount", 3), OSError("disk full"), KeyError("x")]
    held.sections.put("one", A, {"n": 1})
    await until(lambda: work.done == [1])
    await until(lambda: held.states() == {"one": (A, "applied")})
    work.errors = [Hopeless("exit code 3"), AssertionError("not tried again")]
    held.sections.put("one", B, {"n": 2})
    await until(lambda: held.sections.report()["one"]["final"])
    assert held.sections.report()["one"] == {"digest": B, "state": "failed", "detail": "exit code 3", "final": True}
    work.errors = []
    held.sections.put("one", A, {"n": 3})
    await until(lambda: work.done == [1, 3])


async def test_one_that_needs_another_waits_for_it_and_a_third_does_not(tmp_path: Path) -> None:
    first, second, third = Work(), Work(), Work()
    held = Held(tmp_path, first.kind("first"), second.kind("second", "first"), third.kind("third", "missing"))
    held.start()
    first.may.clear()
    names = ("second", "first", "third")
    held.sections.take({name: {"digest": A, "value": {"n": 1}} for name in names})
    await until(lambda: third.done == [1])
    assert (second.done, held.states()["second"]) == ([], (A, "working"))
    first.may.set()
    await until(lambda: second.done == [1])


async def test_a_fault_is_told_until_it_is_over(tmp_path: Path) -> None:
    work = Work()
    held = Held(tmp_path, work.kind("one"))
    held.start()
    held.sections.put("one", A, {"n": 1})
    await until(lambda: held.states() == {"one": (A, "applied")})
    work.faults = [Fault("share_lost", "/data\n does not answer")] * 30
    held.sections.look()
    assert held.sections.faults()[0] == {"section": "one", "code": "share_lost", "detail": "/data does not answer"}
    assert len(held.sections.faults()) == module.FAULTS_MAX
    moved = held.moved
    held.sections.look()
    assert held.moved == moved, "nothing is new"
    work.faults = []
    held.sections.look()
    assert held.sections.faults() == []


async def test_a_fault_from_before_it_was_applied_is_over_with_that(tmp_path: Path) -> None:
    """The head would drain the node for a share that was about to be mounted."""
    work = Work()
    held = Held(tmp_path, work.kind("one"))
    work.may.clear()
    held.sections.put("one", A, {"n": 1})
    held.start()
    work.faults = [Fault("share_lost", "/data is not mounted", again=True)]
    held.sections.look()
    assert len(held.sections.faults()) == 1
    work.faults = []
    work.may.set()
    await until(lambda: held.states() == {"one": (A, "applied")})
    assert held.sections.faults() == []
    assert work.done == [1]


def test_a_section_that_the_agent_does_not_know_is_refused(tmp_path: Path) -> None:
    held = Held(tmp_path, Work().kind("one"))
    for name, digest in (("two", A), ("../one", A), ("one", "no digest"), ("one", "")):
        with pytest.raises(NotPossible):
            held.sections.put(name, digest, {})


# -- in the agent -----------------------------------------------------------------------------------------------------


def env(digest: str, **variables: str) -> dict[str, Any]:
    return {"name": "job_env", "digest": digest, "value": {"env": variables}}


def applied(house: House, digest: str) -> bool:
    held = house.handlers.reports[-1].sections or {}
    return "job_env" in held and (held["job_env"].digest, held["job_env"].state) == (digest, "applied")


async def test_the_first_word_of_an_agent_says_that_all_is_applied(house: House) -> None:
    """So a machine is not ready later than without sections."""
    house.handlers.sections = {"job_env": {"digest": A, "value": {"env": {"X": "1"}}}}
    await house.machine.start()
    await until(lambda: ready(house))
    first = next(report for report in house.handlers.reports if report.munge_ok)
    assert first.sections["job_env"].state == "applied"
    assert (house.machine.root / "etc/meshd-node/job.env").read_text() == "X=1\n"
    assert house.machine.mode("etc/meshd-node/job.env") == 0o644
    assert house.machine.mode("usr/lib/meshd/task-prolog") == 0o755


async def test_a_change_is_applied_and_told_without_waiting_for_the_end_of_a_poll(house: House) -> None:
    house.handlers.hold_s = 500.0
    await house.machine.start()
    await until(lambda: ready(house))
    assert (await house.handlers.order("section", env(A, X="2"))).ok
    await until(lambda: applied(house, A))
    wrong = await house.handlers.order("section", {"name": "no_such", "digest": B, "value": {}})
    assert not wrong.ok
    assert (await house.handlers.order("section", {**env(B), "value": {"env": {"X": "2\nY=3"}}})).ok
    await until(lambda: house.handlers.reports[-1].sections["job_env"].state == "failed")
    assert (house.machine.root / "etc/meshd-node/job.env").read_text() == "X=2\n"


async def test_after_a_reboot_slurmd_waits_for_the_sections(house: House) -> None:
    await house.machine.start()
    await until(lambda: ready(house))
    assert (await house.handlers.order("section", env(A, X="1"))).ok
    assert (await house.handlers.order("start_slurmd")).ok
    await house.machine.stop()
    house.machine.power_cut()
    (house.machine.services / "slurmd/down").touch()  # as the entry point of a pod lays it out
    house.machine.write_join("")
    saved = house.machine.root / "var/lib/meshd-node/sections/job_env.json"
    saved.write_text(saved.read_text().replace('"X"', '"not a name"'))
    await house.machine.start()
    await until(lambda: (house.handlers.reports[-1].sections or {}) and not applied(house, A))
    refused = await house.handlers.order("restart_slurmd")
    assert (refused.ok, len(house.machine.slurmd_calls())) == (False, 1)
    assert (await house.handlers.order("section", env(B, X="2"))).ok
    await until(lambda: len(house.machine.slurmd_calls()) == 2)
