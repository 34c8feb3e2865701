"""Host lists: nodes are named as for Slurm's commands."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshd.cli.errors import ExitCode
from meshd.cli.main import COMMANDS
from meshd.cli.params.hostlist import NAMES_MAX, expand
from meshd.cli.session import find_socket
from tests.unit.api.sim_head import SimHead
from tests.unit.cli.conftest import Meshctl


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["h100-3"], ["h100-3"]),
        (["h100-[1-2]"], ["h100-1", "h100-2"]),
        (["h100-1,h100-3"], ["h100-1", "h100-3"]),
        (["h100-[1-3,7]", "h100-2", "cpu-1"], ["h100-1", "h100-2", "h100-3", "h100-7", "cpu-1"]),
        (["h100-[1-9/4],lab-h100-3-k7q2m2"], ["h100-1", "h100-5", "h100-9", "lab-h100-3-k7q2m2"]),
        (["h100-[01-02]"], ["h100-01", "h100-02"]),
        (["h[1-2]-[3-4]"], ["h1-3", "h1-4", "h2-3", "h2-4"]),
    ],
)
def test_names(words: list[str], names: list[str]) -> None:
    assert list(expand(words)) == names


@pytest.mark.parametrize(
    "word",
    [
        "", " ", ",", "a,,b", "h100-[1-2", "h100-2]", "h100-[2-1]", "h100-[a]", "h100-[]", "h100-[1-4/0]",
        "@all[1-2]", "h100-[1-4]!h100-2", "h100-[1-100000000]", "a[1-999]-[1-999]", "x" * 64, "x[" + "9" * 30 + "]",
    ],
)  # fmt: skip
def test_what_is_not_a_list_of_nodes(word: str) -> None:
    with pytest.raises(click.BadParameter):
        expand([word])


@given(st.lists(st.text("h100-[],/ 9@", max_size=12), max_size=4))
def test_anything_is_expanded_or_refused(words: list[str]) -> None:
    try:
        names = expand(words)
    except click.BadParameter:
        return
    assert len(names) <= NAMES_MAX and all(names) and len(set(names)) == len(names)


@pytest.fixture
def three(head: SimHead) -> SimHead:
    head.grow(3)
    head.frozen = True
    return head


def test_commands_take_host_lists(three: SimHead, served: SimHead, meshctl: Meshctl) -> None:
    ran = meshctl("drain", "a100-[1-2]", "-o", "json")
    assert (ran.code, [m["slot"] for m in ran.json()["machines"]]) == (0, ["a100-1", "a100-2"])
    assert [three.drained(m.slot) for m in three.machines] == [True, True, False]
    assert meshctl("undrain", "a100-1,a100-2").code == 0
    ran = meshctl("nodes", "a100-[2-3]", "-o", "json")
    assert [n["slot"] for n in ran.json()["nodes"]] == ["a100-2", "a100-3"]
    assert meshctl("drain", "a100-[1-2").code == ExitCode.USAGE


def test_a_failure_for_one_node_does_not_stop_the_others(three: SimHead, served: SimHead, meshctl: Meshctl) -> None:
    ran = meshctl("drain", "a100-[1-5]", "-o", "json")
    assert (ran.code, [f["machine"] for f in ran.json()["failed"]]) == (ExitCode.PARTLY, ["a100-4", "a100-5"])
    ran = meshctl("nodes", "a100-[1-4]")
    assert ran.code == ExitCode.PARTLY and "a100-4: " in ran.err and "a100-3" in ran.out
    assert meshctl("nodes", "a100-9").code == ExitCode.USAGE
    assert meshctl("explain", "a100-[11-12]").code == ExitCode.USAGE


def test_a_dry_run_removes_nothing(three: SimHead, served: SimHead, meshctl: Meshctl) -> None:
    ran = meshctl("remove", "a100-[1-2]", "--dry-run", "-o", "json")
    assert (ran.code, len(ran.json()["machines"])) == (0, 2)
    assert [m.removal for m in three.machines] == [None, None, None]
    assert meshctl("remove", "a100-[1-2]", "--yes").code == 0
    assert [bool(m.removal) for m in three.machines] == [True, True, False]


def test_a_named_settings_file_that_is_missing_is_an_error(
    three: SimHead, served: SimHead, meshctl: Meshctl, tmp_path: Path
) -> None:
    ran = meshctl("status", config=str(tmp_path / "none.toml"))
    assert ran.code == ExitCode.USAGE and "none.toml" in ran.err
    ran = meshctl("status", "-o", "json", config=str(tmp_path / "none.toml"))
    assert (ran.code, ran.json()["kind"]) == (ExitCode.USAGE, "config")
    (tmp_path / "broken.toml").write_text("[cluster\n")
    assert meshctl("status", config=str(tmp_path / "broken.toml")).code == 0, "the socket is known without it"


def test_a_fault_elsewhere_in_the_settings_does_not_hide_the_socket(tmp_path: Path) -> None:
    path = tmp_path / "meshd.toml"
    path.write_text('[cluster]\nname = "lab"\nsocket = "/srv/meshd.sock"\n[pools\n')
    assert find_socket(None, path) == Path("/srv/meshd.sock")
    path.write_text('[cluster]\nname = "lab"\n[other]\nsocket = "/srv/meshd.sock"\n[pools\n')
    assert find_socket(None, path) == Path("/run/meshd/meshd.sock")


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (("scale", "--gpus", "many"), ("'--gpus'", "'many'")),
        (("scale", "--gpus", "-1"), ("'--gpus'", "-1", "at least 0")),
        (("scale", "--gpus", "1.5"), ("'--gpus'", "'1.5'")),
        (("offers", "--gpus-per-node", "17"), ("'--gpus-per-node'", "17", "at most 16")),
        (("offers", "--limit", "0"), ("'--limit'", "0", "at least 1")),
        (("offers", "--max-price", "cheap"), ("'--max-price'", "'cheap'")),
        (("offers", "--max-price", "-2"), ("'--max-price'", "'-2'")),
        (("events", "--since", "soon"), ("'--since'", "'soon'")),
        (("scale", "--gpus", "1", "--timeout", "soon"), ("'--timeout'", "'soon'")),
    ],
)
def test_a_refused_value_is_named_with_its_option(
    meshctl: Meshctl, argv: tuple[str, ...], named: tuple[str, ...]
) -> None:
    ran = meshctl(*argv)
    assert ran.code == ExitCode.USAGE
    assert [part for part in named if part not in ran.err] == []
    assert "range" not in ran.err


def test_the_help_has_no_formulas(meshctl: Meshctl) -> None:
    for name in COMMANDS:
        assert "<=" not in meshctl(name, "--help").out and ">=" not in meshctl(name, "--help").out
