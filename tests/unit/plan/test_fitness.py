"""The verdict on a node: from Slurm, its agent and the tailnet, each source alone and where they differ."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from meshd.model.machine import Machine, Phase, Removal, UnfitReason
from meshd.model.observed import AgentReport, Fresh
from meshd.plan.fitness import Unfit, is_ready, unfit
from tests.unit.worlds import GONE_DARK, NOW, ago, cluster_view, machine, node, peer, slurm, tailnet

M = machine(Phase.READY, age_s=1000.0, tailnet_id=f"n-{machine(Phase.READY).name}")


def look(*states: str, of: Machine = M, tailnet_: Any = None, report: AgentReport | None = None,
         slurm_user: str = "slurm", **parts: Any) -> Unfit | None:  # fmt: skip
    """The verdict on one machine whose node is in these states."""
    view = replace(slurm(node(of, *states, **parts)), slurm_user=slurm_user)
    reports = {of.name: report} if report else {}
    heard = tailnet_ or Fresh(tailnet(peer(of)), NOW)
    return unfit(of, cluster_view(slurm=Fresh(view, NOW), tailnet=heard, reports=reports))


def why(*states: str, **parts: Any) -> UnfitReason | None:
    found = look(*states, **parts)
    return found.why if found else None


SLURMS = {"reason_by": "slurm", "reason_at": ago(500)}


@pytest.mark.parametrize(
    ("states", "parts", "verdict"),
    [
        (["IDLE"], {}, None), (["ALLOCATED"], {}, None), (["MIXED", "COMPLETING"], {}, None),
        (["IDLE", "RESERVED"], {}, None), (["IDLE", "PLANNED"], {}, None),
        (["IDLE", "DRAIN"], {"reason": "Kill task failed", **SLURMS}, UnfitReason.DRAINED),
        (["MIXED", "DRAIN"], {"reason": "batch job complete failure", **SLURMS}, UnfitReason.DRAINED),
        (["IDLE", "DRAIN"], {"reason": "Prolog error", **SLURMS}, UnfitReason.DRAINED),
        (["IDLE", "DRAIN"], {"reason": "NHC: check_fs_mount: /scratch", "reason_by": "root"}, UnfitReason.DRAINED),
        (["IDLE", "DRAIN", "INVALID_REG"], {"reason": "gres/gpu count reported lower than configured (7 < 8)"},
         UnfitReason.INVALID),
        (["DOWN", "INVALID_REG"], {"reason": "Low RealMemory (reported:1 < 99.00% of configured:2)"},
         UnfitReason.INVALID),
        (["DOWN"], {"reason": "Node unexpectedly rebooted", **SLURMS}, UnfitReason.DOWN),
        (["DOWN", "NOT_RESPONDING"], {"reason": "Not responding", **SLURMS}, UnfitReason.DOWN),
        (["DOWN"], {}, UnfitReason.DOWN), (["DOWN", "DRAIN"], {"reason": "meshd: left"}, UnfitReason.DOWN),
        (["IDLE", "NOT_RESPONDING"], {}, UnfitReason.NOT_RESPONDING), (["UNKNOWN"], {}, UnfitReason.UNREGISTERED),
        (["UNKNOWN", "NOT_RESPONDING"], {}, UnfitReason.NOT_RESPONDING),
        (["IDLE", "MAINTENANCE"], {}, UnfitReason.MAINTENANCE),
        (["IDLE", "REBOOT_ISSUED"], {}, UnfitReason.MAINTENANCE),
        (["IDLE", "POWERED_DOWN"], {}, UnfitReason.POWERED_DOWN),
        (["IDLE", "DRAIN"], {"reason": "meshd: GPU fault: x"}, UnfitReason.BY_MESHD),
        (["FAIL"], {"reason": "Prolog error", **SLURMS}, UnfitReason.DRAINED),
        # A person's, however the reason says it. If unclear, it counts as a person's.
        (["IDLE", "DRAIN"], {"reason": "drained by alice: bad GPU", "reason_by": "slurm"}, UnfitReason.BY_PERSON),
        (["IDLE", "DRAIN"], {"reason": "Kill task failed", "reason_by": "alice"}, UnfitReason.BY_PERSON),
        (["IDLE", "DRAIN"], {"reason": "bad fan", "reason_by": "root"}, UnfitReason.BY_PERSON),
        (["DOWN"], {"reason": "bad fan", "reason_by": "root"}, UnfitReason.BY_PERSON),
        (["DOWN", "FAIL"], {"reason": "to the vendor", "reason_by": "bob"}, UnfitReason.BY_PERSON),
        (["IDLE", "DRAIN"], {}, UnfitReason.BY_PERSON), (["IDLE", "DRAIN", "INVALID_REG"], {}, UnfitReason.INVALID),
        (["IDLE", "DRAIN", "INVALID_REG"], {"reason": "bad fan", "reason_by": "root"}, UnfitReason.BY_PERSON),
        (["IDLE"], {"node_addr": "100.64.9.9"}, UnfitReason.ABSENT),
    ],
)  # fmt: skip
def test_slurms_states_and_reasons(states: list[str], parts: dict[str, Any], verdict: UnfitReason | None) -> None:
    assert why(*states, **parts) is verdict


def test_another_slurm_user_is_known() -> None:
    drain = {"reason": "Kill task failed", "reason_by": "slurmadm"}
    assert why("IDLE", "DRAIN", **drain) is UnfitReason.BY_PERSON
    assert why("IDLE", "DRAIN", slurm_user="slurmadm", **drain) is UnfitReason.DRAINED


def test_slurms_own_words_are_told_with_who_and_when() -> None:
    found = look("IDLE", "DRAIN", reason="Kill task failed", **SLURMS)
    assert found is not None
    assert "Kill task failed (slurm, 2026-03-01 11:51:40 UTC)" in found.words


@pytest.mark.parametrize(
    "seen", [GONE_DARK, Fresh(slurm(node(M, "DOWN")), ago(1000)), Fresh(slurm(node(M, "DOWN")), ago(1001))]
)
def test_a_slurm_that_cannot_be_believed_says_nothing(seen: Any) -> None:
    assert unfit(M, cluster_view(slurm=seen, tailnet=Fresh(tailnet(peer(M)), NOW))) is None


def test_what_was_seen_before_it_was_ready_says_nothing() -> None:
    fresh = replace(M, phase_since=NOW)
    assert why("DOWN", of=fresh) is None


def test_a_head_that_is_off_the_tailnet_blames_no_node() -> None:
    for gone in (GONE_DARK, Fresh(tailnet(healthy=False), NOW)):
        silent = replace(M, heartbeat_at=ago(1000))
        for states in (["DOWN"], ["IDLE", "NOT_RESPONDING"], ["UNKNOWN"]):
            assert why(*states, of=silent, tailnet_=gone) is None
        assert (
            why("IDLE", "DRAIN", of=silent, tailnet_=gone, reason="Kill task failed", **SLURMS) is UnfitReason.DRAINED
        )


def reported(**parts: Any) -> AgentReport:
    return replace(AgentReport(at=ago(5)), **parts)


@pytest.mark.parametrize(
    ("report", "verdict"),
    [
        ({}, None),
        ({"gpu_fault": "nvidia-smi: GPU is lost", "gpu_fault_since": ago(60)}, UnfitReason.GPU_FAULT),
        ({"gpu_fault": "nvidia-smi: timed out", "gpu_fault_since": ago(5)}, None),
        ({"slurmd_dead_since": ago(60)}, UnfitReason.SLURMD_DEAD), ({"slurmd_dead_since": ago(5)}, None),
        ({"munge_dead_since": ago(60)}, UnfitReason.MUNGE_DEAD), ({"munge_dead_since": ago(5)}, None),
    ],
)  # fmt: skip
def test_what_the_agent_reports_counts_once_it_lasts(report: dict[str, Any], verdict: UnfitReason | None) -> None:
    assert why("IDLE", report=reported(**report)) is verdict
    for phase in (Phase.BOOTING, Phase.DRAINING, Phase.TERMINATING):
        assert why("IDLE", of=replace(M, phase=phase), report=reported(**report)) is None


@pytest.mark.parametrize(
    ("heartbeat_s", "offline_since", "verdict"),
    [
        (5, None, None), (30, None, None), (36, None, UnfitReason.SILENT),
        (14, ago(16), None), (16, ago(14), UnfitReason.SILENT), (16, ago(30), None),
        (40, ago(100), UnfitReason.SILENT),
    ],
)  # fmt: skip
def test_a_late_heartbeat(heartbeat_s: float, offline_since: datetime | None, verdict: UnfitReason | None) -> None:
    """A poll is held for 25 s; a device that is offline is late sooner, unless its agent has spoken since."""
    m = replace(M, heartbeat_at=ago(heartbeat_s))
    device = replace(peer(m), online=offline_since is None, last_seen=offline_since)
    found = look("IDLE", of=m, tailnet_=Fresh(tailnet(device), NOW))
    assert (found.why if found else None) is verdict
    if found is not None:
        assert found.since == m.heartbeat_at
        assert ("offline since" in found.words) is (offline_since is not None)


def test_a_machine_that_reboots_is_not_called_silent() -> None:
    m = replace(M, heartbeat_at=ago(300), rebooting_since=ago(300))
    assert m.rebooting
    for states in (["DOWN", "NOT_RESPONDING"], ["IDLE", "REBOOT_ISSUED"]):
        found = look(*states, of=m)
        assert found is not None
        assert (found.why, found.deliberate) == (UnfitReason.MAINTENANCE, True)


def test_silence_counts_from_when_the_head_hears_again() -> None:
    m = replace(M, heartbeat_at=ago(1000))
    assert why("IDLE", of=m, tailnet_=Fresh(tailnet(peer(m)), NOW, ago(10))) is None


def test_the_time_goes_on_when_one_stage_of_a_trouble_follows_another() -> None:
    noted = replace(M, unfit_reason=UnfitReason.NOT_RESPONDING, unfit_since=ago(400))
    found = look("DOWN", "NOT_RESPONDING", of=noted)
    assert (found and found.why, found and found.since) == (UnfitReason.DOWN, ago(400))
    other = look("IDLE", "DRAIN", of=noted, reason="Kill task failed", **SLURMS)
    assert other is not None
    assert other.since == NOW


def test_only_a_fit_node_that_stays_is_ready() -> None:
    def ready(m: Machine, *states: str) -> bool:
        return is_ready(
            m, cluster_view(slurm=Fresh(slurm(node(m, *states)), NOW), tailnet=Fresh(tailnet(peer(m)), NOW))
        )

    assert ready(M, "IDLE")
    assert not ready(M, "IDLE", "DRAIN")
    assert not ready(M, "IDLE", "INVALID_REG")
    assert not ready(replace(M, removal=Removal.SCALE_DOWN), "IDLE")
    assert not ready(replace(M, phase=Phase.DRAINING), "IDLE")
    assert is_ready(M, cluster_view(slurm=GONE_DARK)), "what is not known is not held against it"


def test_a_machine_whose_agent_said_that_it_reboots_is_no_silent_one() -> None:
    away = replace(M, heartbeat_at=ago(300), rebooting_since=ago(300))
    found = look("DOWN", "NOT_RESPONDING", of=away)
    assert found is not None
    assert (found.why, found.deliberate) == (UnfitReason.MAINTENANCE, True)
    silent = look("DOWN", "NOT_RESPONDING", of=replace(away, rebooting_since=None))
    assert silent is not None and silent.why is UnfitReason.SILENT
