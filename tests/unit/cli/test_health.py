"""Unfit nodes: in the tables, in `explain`, and while somebody waits for a target."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from meshd.api.schema import ExplainView, GpuLoadRow, HealthView, NodeRow, PlanView, PoolView, ScaleAnswer, StatusView
from meshd.cli.render import explain, status
from meshd.cli.render.terminal import plain
from meshd.cli.target_wait import PoolState, WaitOutcome, assess

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
