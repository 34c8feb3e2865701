"""`meshctl test`: which nodes it tests, how it judges them, and what it says when the job does not run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from meshd.api import endpoints
from meshd.api.schema import NodeRow, NodesView, PoolView, StatusView
from meshd.cli.acceptance import judge, reports
from meshd.cli.commands.test import choose
from meshd.cli.errors import CliError
from tests.unit.api.sim_head import SimHead
from tests.unit.cli.conftest import Meshctl
from tests.unit.cli.helpers import NOW


def row(slot: str, phase: str = "ready", gpus: int = 8, **more: Any) -> NodeRow:
    pool = slot.rpartition("-")[0]
    return NodeRow(
        machine=f"lab-{slot}-k7", slot=slot, pool=pool, provider="aws", phase=phase, since=NOW, gpus=gpus, **more
    )


NODES = NodesView(
    at=NOW, nodes=[row("h100-2"), row("h100-1"), row("h100-3", "booting"), row("a100-1", gpus=4), row("v100-1", "lost")]
)
STATUS = StatusView(
    at=NOW, cluster="lab", version="1",
    pools=[PoolView(name="h100", partition="big"), PoolView(name="a100", partition="a100"),
           PoolView(name="v100", partition="v100")],
)  # fmt: skip


@pytest.mark.parametrize(
    ("subjects", "nodes"),
    [
        (["h100"], ("h100-1", "h100-2")),
        (["h100-2"], ("h100-2",)),
        (["lab-h100-2-k7", "h100"], ("h100-1", "h100-2")),
    ],
)
def test_a_pool_stands_for_its_nodes_that_are_ready(subjects: Sequence[str], nodes: tuple[str, ...]) -> None:
    chosen = choose(NODES, STATUS, subjects)
    assert (chosen.nodes, chosen.partition, chosen.gpus) == (nodes, "big", 8)


@pytest.mark.parametrize(
    ("subjects", "kind"),
    [
        (["h100-3"], "not_ready"),
        (["v100"], "not_ready"),
        (["h100-9"], "not_found"),
        (["h100", "a100"], "bad_request"),
    ],
)
def test_what_cannot_be_tested(subjects: Sequence[str], kind: str) -> None:
    with pytest.raises(CliError) as error:
        choose(NODES, STATUS, subjects)
    assert error.value.kind == kind and error.value.cure


def rank(node: str, number: int = 0, **more: Any) -> dict[str, Any]:
    return {"rank": number, "node": node, "device": "NVIDIA H100", "torch": "2.15.0", **more}


def group(*nodes: str, gb_per_s: float = 10.0, right: bool = True) -> list[dict[str, Any]]:
    small = {"group": nodes, "bytes": 8, "us": 30.0, "gb_per_s": 0.0, "right": True}
    return [small, {"group": nodes, "bytes": 1 << 26, "us": 9000.0, "gb_per_s": gb_per_s, "right": right}]


def verdicts(nodes: Sequence[str], *lines: dict[str, Any], measured: bool = True) -> dict[str, str]:
    text = "\n".join(["srun: a line of others", *map(json.dumps, lines), "{ no json", '{"rank": -1, "node": "a"}'])
    return {one.node: one.verdict for one in judge(nodes, reports(text), measured=measured).nodes}


def test_nodes_that_sum_rightly_pass() -> None:
    lines = [rank("a"), rank("b", 1), *group("a", "b", gb_per_s=0.3)]
    assert verdicts(["a", "b"], *lines) == {"a": "ok", "b": "ok"}
    view = judge(["a", "b"], reports("\n".join(map(json.dumps, lines))))
    assert [(one.nodes, one.latency_us, one.gb_per_s, one.right) for one in view.groups] == [
        (["a", "b"], 30, 0.3, True)
    ]
    assert [(one.device, one.torch, one.gb_per_s) for one in view.nodes] == [("NVIDIA H100", "2.15.0", 0.3)] * 2


def test_one_node_of_several_gpus_passes_alone() -> None:
    assert verdicts(["a"], rank("a"), rank("a", 1), *group("a")) == {"a": "ok"}


def test_the_slow_one_is_found_by_its_pairs() -> None:
    ranks = [rank(name, number) for number, name in enumerate("abc")]
    slow = [
        *group("a", "b", "c", gb_per_s=1),
        *group("a", "b"),
        *group("a", "c", gb_per_s=2),
        *group("b", "c", gb_per_s=2),
    ]
    assert verdicts("abc", *ranks, *slow) == {"a": "ok", "b": "ok", "c": "slow"}
    assert verdicts("abc", *ranks, *group("a", "b", "c", gb_per_s=1)) == dict.fromkeys("abc", "ok")


def test_a_wrong_sum_fails_those_whom_it_concerns() -> None:
    ranks = [rank(name, number) for number, name in enumerate("abc")]
    lines = [*group("a", "b", "c"), *group("a", "b"), *group("a", "c", right=False), *group("b", "c")]
    assert verdicts("abc", *ranks, *lines) == {"a": "wrong_sum", "b": "ok", "c": "wrong_sum"}


def test_nodes_without_pytorch_and_silent_ones_are_told_apart() -> None:
    missing = {"rank": 1, "node": "b", "code": "no_torch", "error": "No module named 'torch'"}
    assert verdicts("abc", rank("a"), missing, measured=False) == {"a": "ok", "b": "no_torch", "c": "silent"}


def test_a_rank_that_failed_fails_its_node() -> None:
    failed = rank("b", 3, code="failed", error="connection refused")
    assert verdicts("ab", rank("a"), rank("b", 2), failed) == {"a": "failed", "b": "failed"}


def test_what_nodes_print_is_bounded_and_theirs_alone() -> None:
    lines = [
        rank("a"),
        rank("x"),
        *group("a", "x"),
        {**rank("a"), "device": "y" * 5000},
        *group("a", gb_per_s=float("inf")),
    ]
    view = judge(["a"], reports("\n".join(map(json.dumps, lines)) + "\n" + "[" * 100000))
    assert [one.node for one in view.nodes] == ["a"] and [one.nodes for one in view.groups] == [["a"]]


@pytest.fixture
def srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts an srun first in PATH, a shell script; how it was called is in the file that this returns."""

    def put(script: str) -> Path:
        program, calls = tmp_path / "srun", tmp_path / "calls"
        program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" | tr "\\n" " " >>{calls}; echo >>{calls}\n{script}\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        return calls

    return put


def answers(*lines: dict[str, Any]) -> str:
    return "\n".join(f"echo '{json.dumps(line)}'" for line in lines)


@pytest.fixture
def told(head: SimHead, served: SimHead) -> SimHead:
    head.give(endpoints.NODES, NODES)
    head.give(endpoints.STATUS, STATUS)
    return head


def test_it_runs_srun_on_all_nodes_with_all_their_gpus(
    told: SimHead, meshctl: Meshctl, srun: Callable[[str], Path]
) -> None:
    lines = [rank("h100-1"), rank("h100-2", 1), *group("h100-1", "h100-2")]
    calls = srun(answers(*lines))
    ran = meshctl("test", "h100", "--pairs", "--python", "/opt/env/bin/python", "--wait", "5m")
    assert ran.code == 0, ran.err
    assert "10.000" in ran.out and "right" in ran.out
    check, measure = calls.read_text().splitlines()
    for words in ("--nodelist=h100-1,h100-2", "--nodes=2", "--partition=big", "--immediate=300", "/opt/env/bin/python"):
        assert words in check and words in measure
    assert "--ntasks-per-node=1 " in check and "--check" in check and "--gpus" not in check
    assert (
        "--ntasks-per-node=8 " in measure and "--gpus-per-node=8 " in measure and measure.rstrip().endswith("--pairs")
    )
    document = meshctl("test", "h100", "-o", "json").json()
    assert [node["verdict"] for node in document["nodes"]] == ["ok", "ok"]


def test_without_pytorch_it_says_so_and_measures_nothing(
    told: SimHead, meshctl: Meshctl, srun: Callable[[str], Path]
) -> None:
    missing = [{"rank": n, "node": f"h100-{n + 1}", "code": "no_torch", "error": "none"} for n in range(2)]
    calls = srun(f"{answers(*missing)}\nexit 3")
    ran = meshctl("test", "h100")
    assert ran.code == 1 and "--python" in ran.err
    assert len(calls.read_text().splitlines()) == 1
    assert "no_torch" in ran.out


def test_a_job_that_does_not_start(told: SimHead, meshctl: Meshctl, srun: Callable[[str], Path]) -> None:
    srun("echo 'srun: error: Unable to allocate resources: Requested nodes are busy' >&2; exit 1")
    ran = meshctl("test", "h100", "-o", "json")
    assert ran.code == 1 and ran.json()["kind"] == "not_run"
    assert "busy" in ran.err
