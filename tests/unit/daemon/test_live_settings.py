"""What a reload puts in force."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshd import config
from meshd.codes import FaultCode, ProblemCode
from meshd.daemon.live_settings import LiveSettings
from meshd.model.machine import Machine, Phase
from tests.codes import faulty
from tests.unit.worlds import machine

FILE = """
[cluster]
name = "lab"
[pools.h100]
gpu = "h100"
max_nodes = 4
"""


class File:
    """meshd's settings on disk, in force, with what is rented."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rented: list[Machine] = []
        self.write(FILE)
        self.live = LiveSettings(config.load(path), path, lambda: self.rented)

    def write(self, text: str) -> None:
        self.path.write_text(text)

    def reload(self, text: str) -> str:
        self.write(text)
        self.live.reload()
        return self.live.problem

    def codes(self) -> list[str]:
        return [problem.code for problem in self.live.problems()]


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(tmp_path / "meshd.toml")


def test_a_reload_puts_pools_in_force(file: File) -> None:
    assert file.reload(FILE.replace("max_nodes = 4", "max_nodes = 9")) == ""
    assert file.live.settings.pools["h100"].max_nodes == 9


def test_what_needs_a_restart_waits_for_it_and_is_told(file: File) -> None:
    before = file.live.settings.node_api
    told = file.reload(FILE.replace("max_nodes = 4", "max_nodes = 9") + "[node_api]\nport = 1234\n")
    assert "node_api" in told
    assert file.codes() == [ProblemCode.SETTINGS_NEED_RESTART]
    assert file.live.settings.node_api == before, "as it was"
    assert file.live.settings.pools["h100"].max_nodes == 9, "the rest holds"
    assert file.reload(FILE) == "", "what is put back need not be told any more"


@pytest.mark.parametrize("text", [FILE + "[nonsense]\n", FILE.replace("max_nodes = 4", "max_nodes = 2")])
def test_wrong_settings_leave_the_old_ones_in_force(file: File, text: str) -> None:
    file.rented = [machine(Phase.READY, index=3)]
    before = file.live.settings
    file.reload(text)
    assert file.codes() == [ProblemCode.SETTINGS_REFUSED]
    assert file.live.settings is before
    assert file.reload(FILE) == ""


def test_settings_that_waited_for_machines_to_leave_are_put_in_force_by_themselves(file: File) -> None:
    lower = FILE.replace("max_nodes = 4", "max_nodes = 2")
    file.rented = [machine(Phase.READY, index=3)]
    assert file.reload(lower)
    file.live.look()
    assert file.live.problem, "its machine is still there"
    file.rented = [machine(Phase.TERMINATING, index=3)]
    file.live.look()
    assert (file.live.problem, file.live.settings.pools["h100"].max_nodes) == ("", 2)


def test_a_file_that_was_changed_since_is_not_put_in_force_before_somebody_says_so(file: File) -> None:
    file.rented = [machine(Phase.READY, index=3)]
    assert file.reload(FILE.replace("max_nodes = 4", "max_nodes = 2"))
    file.write(FILE.replace("max_nodes = 4", "max_nodes = 1"))
    file.rented = []
    for _ in range(2):
        file.live.look()
        assert file.live.settings.pools["h100"].max_nodes == 4


def test_meshd_does_not_start_with_settings_that_leave_a_machine_no_place(tmp_path: Path) -> None:
    path = tmp_path / "meshd.toml"
    path.write_text(FILE)
    with faulty(FaultCode.MACHINE_WITHOUT_PLACE):
        LiveSettings(config.load(path), path, lambda: [machine(Phase.READY, index=5)])


def test_a_refused_reload_names_each_fault_with_its_line_until_it_is_mended(file: File) -> None:
    assert file.live.view().reloaded
    file.rented = [machine(Phase.READY, index=3)]
    file.reload(FILE + "\n[nonsense]\n")
    view = file.live.view()
    assert (view.reloaded, [row.name for row in view.faults]) == (False, [f"{file.path}:8"])
    file.reload(FILE.replace("max_nodes = 4", "max_nodes = 2"))
    (row,) = file.live.view().faults
    assert (row.name, row.code) == (f"{file.path}:6", FaultCode.MACHINE_WITHOUT_PLACE)
    assert file.live.problem
    file.reload(FILE + "[node_api]\nport = 1234\n")
    assert (file.live.view().reloaded, file.live.view().waiting) == (True, ["node_api"])


def test_doubts_are_told_with_their_lines_and_change_with_the_file(file: File) -> None:
    assert file.live.doubts == []
    assert file.reload(FILE.replace('"h100"', '"h1000"')) == ""
    (doubt,) = file.live.doubts
    assert doubt.line == 5 and file.live.settings.pools["h100"].gpu == "h1000", "it is in force all the same"
    assert file.reload(FILE) == "" and file.live.doubts == []
