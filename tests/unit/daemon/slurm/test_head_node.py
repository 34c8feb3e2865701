"""What is told of the head as a node of its own cluster."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from meshd.config import HeadSettings, PoolSettings
from meshd.daemon.slurm.head_node import HeadNode
from meshd.model.observed import Fresh, SlurmJob, SlurmNode, SlurmView, Unavailable
from tests.live import live_settings
from tests.unit.worlds import NOW

JOBS = (
    SlurmJob("7", "alice", "head", "RUNNING", ("tower",), gpus=1),
    SlurmJob("8", "alice", "a100,head", "PENDING", gpus=2),
    SlurmJob("9", "alice", "a100", "PENDING", gpus=4),
)


def node(states: str, name: str = "tower", reason: str = "", by: str = "") -> SlurmNode:
    return SlurmNode(
        name, "100.64.0.1", frozenset(states.split("+")), reason, ("head",), gres="gpu:rtx-4090:1,gpu:rtx-3090:1",
        reason_by=by,
    )  # fmt: skip


def view(*nodes: SlurmNode) -> SlurmView:
    return SlurmView("24.11.5", {one.name: one for one in nodes}, JOBS)


def head(*nodes: SlurmNode, compute: bool | None = True, pool: str = "a100", known: bool = True) -> HeadNode:
    slurm: Any = SimpleNamespace(current=Fresh(view(*nodes), NOW) if known else Unavailable("no answer", NOW))
    live = live_settings(pools={pool: PoolSettings(gpu="a100")}, head=HeadSettings(compute=compute))
    return HeadNode(live, slurm, "tower" if pool == "a100" else f"{pool}-1")


@pytest.mark.parametrize(
    ("seen", "compute", "code"),
    [
        (node("IDLE"), True, ""),
        (node("MIXED"), None, ""),
        (node("IDLE+DRAIN", reason="a game", by="bob"), True, ""),
        (None, None, ""),
        (None, False, ""),
        (None, True, "head_node_missing"),
        (node("IDLE+INVALID_REG+DRAIN", reason="gres/gpu count too low (1 < 2)"), True, "head_node_invalid"),
        (node("DOWN+NOT_RESPONDING", reason="Not responding"), True, "head_node_down"),
        (node("IDLE+NOT_RESPONDING"), None, "head_node_down"),
    ],
)
async def test_how_it_is(seen: SlurmNode | None, compute: bool | None, code: str) -> None:
    reporter = head(*([seen] if seen else []), compute=compute)
    row = await reporter.check()
    assert (row.status, row.code) == ("fail" if code else "ok", code)
    assert [problem.code for problem in reporter.problems()] == ([code] if code else [])
    assert not seen or not seen.reason or seen.reason in row.text


async def test_nothing_is_said_of_it_while_slurm_is_silent() -> None:
    reporter = head(known=False)
    assert not list(reporter.problems())
    assert (await reporter.check()).code == "slurm_unreadable"


def test_its_row() -> None:
    row = head().row(view(node("MIXED")))
    assert row is not None
    assert (row.name, row.gpus, row.partitions, row.jobs, row.up) == ("tower", 2, ["head"], ["7"], True)
    assert (row.queue.running, row.queue.pending, row.queue.pending_gpus) == (1, 1, 2)
    drained = head().row(view(node("IDLE+DRAIN", reason="a game")))
    assert drained is not None
    assert (drained.drained, drained.slurm_reason) == (True, "a game")
    assert head().row(view()) is None
    assert head().row(None) is None


def test_a_line_of_the_users_own_may_have_another_name() -> None:
    own = SlurmNode("ws", "tower", frozenset({"IDLE"}))
    row = head(own).row(view(own))
    assert row is not None
    assert row.name == "ws"


def test_a_slot_is_never_taken_for_it() -> None:
    assert head(pool="tower").row(view(node("IDLE", "tower-1"))) is None
