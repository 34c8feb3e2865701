"""Unfit nodes: in the tables, in `explain`, and while somebody waits for a target."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from meshd.api.schema import (
    ExplainView,
    GpuLoadRow,
    HeadNodeRow,
    HealthView,
    NodeRow,
    PathRow,
    PeerPathsView,
    PlanView,
    PoolView,
    QueueView,
    ScaleAnswer,
    StatusView,
)
from meshd.cli.render import explain, status
from meshd.cli.render.terminal import plain
from meshd.cli.target_wait import PoolState, WaitOutcome, assess
from tests.unit.cli.helpers import drawn

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
ROW = NodeRow(
    machine="lab-h100-1-abcde1", slot="h100-1", pool="h100", provider="aws", phase="ready", since=NOW, gpus=1,
    slurm_state="IDLE+DRAIN", unfit="drained", unfit_text="Slurm holds it DRAIN+IDLE: Kill task failed",
    unfit_since=NOW - timedelta(minutes=3),
    gpu_load=[GpuLoadRow(index=0, utilization_percent=97, memory_used_mib=71680)],
)  # fmt: skip


def test_tables_show_why_a_node_is_unfit_and_the_load_of_its_gpus() -> None:
    text = plain(status.nodes([ROW], NOW))
    assert ROW.unfit_text in text
    assert "97% 70G" in text
    pools = [PoolView(name="h100", partition="h100", target_gpus=8, ready_gpus=6, unfit_gpus=2, unfit={"drained": 2})]
    view = StatusView(cluster="lab", version="1", at=NOW, pools=pools)
    assert "6 (2 unfit)" in plain(*status.status(view))


def test_the_head_has_a_row_of_its_own_where_it_is_a_node() -> None:
    head = HeadNodeRow(
        name="tower", address="100.64.0.1", partitions=["desk"], gpus=2, slurm_state="DRAIN+MIXED", up=True,
        drained=True, slurm_reason="a game", jobs=["7"], queue=QueueView(running=1, pending=3),
    )  # fmt: skip
    view = StatusView(cluster="lab", version="1", at=NOW, head=head)
    for lines in (plain(*status.status(view)).splitlines(), drawn(300, status.nodes([], NOW, head))):
        (line,) = [line for line in lines if "tower" in line]
        assert "a game" in line
        assert "DRAIN+MIXED" in line
    assert "no pools" not in plain(*status.status(view))


DIRECT = PathRow(kind="direct", rtt_ms=0.4, throughput_estimate="high", age_s=12.0)
RELAYED = PathRow(kind="derp", relay="fra", rtt_ms=48.2, throughput_estimate="low", age_s=12.0)


@pytest.mark.parametrize(
    ("measured", "from_head", "shown"),
    [
        (DIRECT, "", "direct <1ms"),
        (DIRECT.model_copy(update={"rtt_ms": 1.2}), "relay fra", "direct 1ms"),
        (RELAYED, "", "derp:fra 48ms"),
        (RELAYED.model_copy(update={"kind": "peer-relay", "relay": ""}), "", "peer-relay 48ms"),
        (None, "direct 198.51.100.7:41641", "direct"),
        (None, "relay fra", "derp:fra"),
        (None, "peer-relay 10.0.0.9:7", "peer-relay"),
        (None, "", "-"),
    ],
)
def test_the_column_path(measured: PathRow | None, from_head: str, shown: str) -> None:
    row = ROW.model_copy(update={"head_path": measured, "path": from_head})
    cells = drawn(300, status.nodes([row, ROW.model_copy(update={"slot": "h100-2", "path": "direct x"})], NOW))
    start = cells[0].index("PATH")
    assert cells[1][start : cells[0].index("SLURM")].strip() == shown


def test_80_columns_have_the_path() -> None:
    row = ROW.model_copy(update={"head_path": RELAYED, "unfit": "", "unfit_text": ""})
    lines = drawn(80, status.nodes([row], NOW))
    assert "derp:fra 48ms" in lines[1]
    assert max(map(len, lines[:2])) <= 80


def test_explain_shows_the_paths_and_names_the_estimate_one() -> None:
    peers = PeerPathsView(direct=11, relayed=1, silent=0, rtt_ms=0.6, not_direct=["h100-7"])
    health = HealthView(head_path=RELAYED, peer_paths=peers)
    view = ExplainView(subject="h100-1", at=NOW, slot="h100-1", machine="m", phase="ready", health=health)
    text = plain(*explain.explain(view))
    for part in ("derp:fra 48ms", "low, an estimate", "12s ago", "11 of 12 measured are direct", "not direct: h100-7"):
        assert part in text, part
    nothing = HealthView(peer_paths=PeerPathsView())
    assert "paths to its pool" not in plain(*explain.explain(view.model_copy(update={"health": nothing})))


def test_explain_shows_the_health_without_control_characters() -> None:
    health = HealthView(
        unfit="invalid", text="Slurm holds it DRAIN", since=NOW - timedelta(minutes=3), next="meshd replaces it",
        cure="`meshctl remove h100-1`", slurm_state="IDLE+DRAIN", slurm_reason="Low RealMemory",
        slurm_reason_by="slurm", tailnet="offline", heartbeat_age_s=7.0, reported_at=NOW, slurmd_alive=False,
        munged_alive=True, jobs_seen=1, gpu_fault="GPU is \x1b[31mlost", log=["error: \x9bfirst", "error: last"],
    )  # fmt: skip
    view = ExplainView(subject="h100-1", at=NOW, slot="h100-1", machine="m", phase="ready", health=health)
    text = plain(*explain.explain(view))
    for part in (
        "invalid", "3m00s", "meshd replaces it", "`meshctl remove h100-1`", "IDLE+DRAIN: Low RealMemory by slurm",
        "7s ago", "DOES NOT RUN", "1 job", "error: last",
    ):  # fmt: skip
        assert part in text, part
    assert not [char for char in text if char in "\x1b\x9b"]


def test_an_unfit_node_does_not_count_for_the_target() -> None:
    answer = ScaleAnswer(
        pool="h100", gpus_before=0, gpus=1, target_id=1, at=NOW, last_event_id=0,
        plan=PlanView(usd_per_hour_before=0.0, usd_per_hour_after=0.0), warnings=[], waiting_for_jobs=[],
    )  # fmt: skip
    pools = [PoolView(name="h100", partition="h100", target_id=1, target_gpus=1)]
    view = StatusView(cluster="lab", version="1", at=NOW, tick_at=NOW, pools=pools)
    waiting = assess(answer, PoolState([ROW], view), frozenset())
    assert waiting.outcome is WaitOutcome.WAITING
    assert "h100-1" in waiting.reason and ROW.unfit_text in waiting.reason
    fit = ROW.model_copy(update={"unfit": "", "unfit_text": ""})
    assert assess(answer, PoolState([fit], view), frozenset()).outcome is WaitOutcome.REACHED
