"""Pods: where people see that a machine is one, or would be, and what it lacks."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from meshd.api.schema import (
    ExplainView,
    HealthView,
    NodeRow,
    OfferRow,
    OffersQuery,
    OffersView,
    PlannedRow,
    PlanView,
    PoolView,
    StatusView,
)
from meshd.cli.render import explain, status
from meshd.cli.render.offers import offers
from meshd.cli.render.plan import plan
from meshd.cli.render.terminal import plain
from tests.unit.cli.helpers import drawn

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LIMITS = "no systemd, so no cgroups"
ROW = NodeRow(
    machine="lab-h100-1-abcde1", slot="h100-1", pool="h100", provider="cloud", phase="configuring", since=NOW, gpus=8,
    region="eu-west-1a", instance_type="8x_NVIDIA_H100_80GB_HBM3", gpu="h100-sxm", address="100.64.0.7",
    slurm_state="ALLOCATED", jobs=["4711"], heartbeat_age_s=3.0, usd_per_hour=24.0, reason="the head accepted it",
)  # fmt: skip


@pytest.mark.parametrize(("pod", "kind"), [(True, "pod"), (False, "vm")])
@pytest.mark.parametrize("width", [80, 200])
def test_nodes_shows_the_kind_also_on_a_narrow_terminal(pod: bool, kind: str, width: int) -> None:
    table = status.nodes([ROW.model_copy(update={"pod": pod})], NOW)
    lines = drawn(width, table)
    assert "KIND" not in table.left_out(width)
    assert lines[1].split()[lines[0].split().index("KIND")] == kind
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize(("pods", "cell"), [(0, "3 ready"), (1, "3 ready; 1 is a pod"), (2, "3 ready; 2 are pods")])
def test_status_counts_them(pods: int, cell: str) -> None:
    pool = PoolView(name="h100", partition="h100", machines={"ready": 3}, pods=pods)
    text = plain(*status.status(StatusView(cluster="lab", version="1", at=NOW, pools=[pool])))
    assert any(line.endswith(cell) for line in text.splitlines())


def test_a_plan_shows_once_what_they_lack() -> None:
    rows = [
        PlannedRow(
            slot=f"h100-{index}", pool="h100", offer=f"cloud/r/{index}", provider="cloud", pod=pod, limits=limits
        )
        for index, (pod, limits) in enumerate(((True, LIMITS), (False, ""), (True, LIMITS)))
    ]
    text = plain(*plan(PlanView(machines=rows)))
    assert text.count(LIMITS) == 1 and "2 machines" in text and "--pods" in text
    assert "--pods" not in plain(*plan(PlanView(machines=rows[1:2])))


def test_offers_show_the_kind_and_once_what_they_lack() -> None:
    rows = [
        OfferRow(
            offer=f"c/r/{i}", provider="c", region="r", instance_type="t", gpus=1, spot=spot, pod=pod, limits=limits
        )
        for i, (spot, pod, limits) in enumerate(
            ((False, True, LIMITS), (True, True, LIMITS), (True, False, ""), (False, False, ""))
        )
    ]
    text = plain(*offers(OffersView(at=NOW, offers=rows, total=4, matching=4), OffersQuery()))
    assert text.count(LIMITS) == 1
    for kind in ("on demand pod", "spot pod", "spot  ", "on demand  "):
        assert any(kind in line for line in text.splitlines()), kind


def test_explain_shows_what_it_lacks() -> None:
    view = ExplainView(
        subject="h100-1", at=NOW, slot="h100-1", machine="m", phase="ready", health=HealthView(limits=LIMITS)
    )
    assert f"limits: {LIMITS}" in plain(*explain.explain(view))
