"""What agents report of their paths: taken in within bounds, kept in memory, shown, and told when it lasts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from meshd.api.node_schema import HeartbeatIn, PollIn
from meshd.codes import ProblemCode
from meshd.daemon.head_api.views import health_view, node_row
from meshd.daemon.nodes import paths
from meshd.daemon.observe.agent_reports import NodeReports
from meshd.model.desired import Desired, Policy
from meshd.model.machine import Machine, Phase, Removal
from meshd.model.observed import AgentReport
from meshd.plan.paths import FRESH_S
from meshd.plan.plan_input import ClusterView
from tests.unit.worlds import NOW, ago, machine, slurm, snapshot

GRACE_S = Policy().unfit_grace_s
READY = machine(Phase.READY)
DERP = {"head": {"kind": "derp", "relay": "fra", "rtt_s": 0.048, "age_s": 2.0}}
DIRECT = {"head": {"kind": "direct", "rtt_s": 0.001, "age_s": 2.0}}
PEERS = {"direct": 3, "relayed": 1, "silent": 0, "rtt_s": 0.002, "not_direct": ["h100-7"]}


def heard(m: Machine, *told: tuple[float, dict[str, Any]]) -> dict[str, AgentReport]:
    """The reports after these heartbeats: how long ago each came, and its paths."""
    reports = NodeReports()
    for before_s, measured in told:
        reports.heard(m, HeartbeatIn.model_validate({"paths": measured}), ago(before_s))
    return dict(reports.current)


def view(m: Machine, *told: tuple[float, dict[str, Any]], demands: bool = False) -> ClusterView:
    policy = Policy(direct_pools=frozenset({"h100"} if demands else ()))
    return ClusterView.of(snapshot(reports=heard(m, *told)), policy, NOW)


def test_a_row_has_the_path_as_it_was_measured() -> None:
    row = node_row(READY, slurm(), view(READY, (1, {**DERP, "peers": PEERS})))
    assert row.head_path is not None
    assert row.head_path.model_dump() == {
        "kind": "derp", "relay": "fra", "rtt_ms": 48.0, "throughput_estimate": "low", "age_s": 3.0,
    }  # fmt: skip
    health = health_view(READY, [READY], Desired("lab", {}, {}), view(READY, (1, {**DERP, "peers": PEERS})), None)
    assert health.head_path == row.head_path
    assert health.peer_paths is not None
    assert (health.peer_paths.rtt_ms, health.peer_paths.not_direct) == (2.0, ["h100-7"])


@pytest.mark.parametrize("told", [(), ((1, {}),), ((FRESH_S, DIRECT),)])
def test_a_path_that_is_not_known_or_old_is_not_shown(told: tuple[tuple[float, dict[str, Any]], ...]) -> None:
    assert node_row(READY, slurm(), view(READY, *told)).head_path is None


def test_a_ready_node_that_becomes_relayed_is_told_after_the_grace() -> None:
    since = (GRACE_S + 1, DERP)
    (info,) = paths.problems([READY], view(READY, (100, DIRECT), since, (1, DERP)))
    assert (info.code, info.severity, info.since) == (ProblemCode.PATH_RELAYED, "info", ago(GRACE_S + 1))
    assert "41641" in info.cure
    (warning,) = paths.problems([READY], view(READY, since, (1, DERP), demands=True))
    assert warning.severity == "warning"
    for told in ((since, (1, DIRECT)), ((GRACE_S - 1, DERP),), ((100, DERP), (50, DIRECT), (1, DERP)), ()):
        assert list(paths.problems([READY], view(READY, *told))) == [], told
    leaving = machine(Phase.READY, removal=Removal.SCALE_DOWN)
    assert list(paths.problems([leaving], view(leaving, since, (1, DERP)))) == []


def test_a_machine_whose_slurmd_waits_for_its_path_is_told() -> None:
    m = machine(Phase.TESTING, age_s=GRACE_S + 1, slurmd_started=False, slurmd_start_ordered_at=None)
    (found,) = paths.problems([m], view(m, (1, DERP), demands=True))
    assert (found.severity, found.since) == ("warning", NOW - timedelta(seconds=GRACE_S + 1))
    assert list(paths.problems([m], view(m, (1, DIRECT), demands=True))) == []


@pytest.mark.parametrize(
    "measured",
    [
        {"head": {**DERP["head"], "kind": "teleport"}},
        {"head": {**DERP["head"], "relay": "x" * 41}},
        {"head": {**DERP["head"], "relay": "fra \x1b[31m"}},
        {"head": {**DERP["head"], "rtt_s": -1}},
        {"head": {**DERP["head"], "rtt_s": 61}},
        {"head": {**DERP["head"], "rtt_s": float("nan")}},
        {"head": {**DERP["head"], "age_s": -1}},
        {"head": {**DERP["head"], "age_s": 1e300}},
        {"peers": {**PEERS, "direct": -1}},
        {"peers": {**PEERS, "direct": 10**12}},
        {"peers": {**PEERS, "not_direct": ["h100-1"] * 9}},
        {"peers": {**PEERS, "not_direct": ["a\nb"]}},
        {"peers": {**PEERS, "rtt_s": float("inf")}},
    ],
)
def test_what_an_agent_may_not_say(measured: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PollIn.model_validate({"heartbeat": {"paths": measured}})


def test_an_agent_that_measures_nothing_may_poll() -> None:
    for told in ({}, {"paths": {}}, {"paths": {"head": None, "peers": None}}):
        HeartbeatIn.model_validate(told)
