"""The switch of the munge key under load, by the code that head and nodes run, with the real daemons."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.integration.munge_lab import Seen, busy_cluster, described
from tests.integration.slurm_lab import Lab, wait_until
from tests.integration.test_slurm_real import IMAGES, image_layers

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(180),
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and namespaces"),
]

SWITCHES = 3


@pytest.fixture(params=list(IMAGES))
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Lab:
    """Slurm 22.05 and 24.11."""
    return Lab(image_layers(request.param), tmp_path / "lab", suite=request.param)


def test_jobs_run_on(lab: Lab) -> None:
    with busy_cluster(lab, pause_s=0.3) as cluster:
        switches: list[Seen] = []
        for _ in range(SWITCHES):
            switches.append(cluster.change_key({}, away_s=0.2, watch_s=4.0))
            sys.stdout.write(described(switches[-1]) + "\n")
            assert set(cluster.job_states().values()) == {"RUNNING"}, "no job is lost or started anew"
        refused = [(call, seen) for seen in switches for calls in seen.refused.values() for call in calls]
        # Slurm has many words for it, and says "Header lengths are longer than data received" too; the time tells.
        for call, seen in refused:
            assert call.begun < seen.back_at, (
                f"refused with one key everywhere for {call.begun - seen.back_at:.2f} s: {call.error}"
            )
        assert len(refused) <= 2 * SWITCHES
        assert sum(seen.count for seen in switches) > 50
        wait_until(lambda: not any(state.endswith("*") or "down" in state for state in cluster.states()), "all answer")
        assert not any("drain" in state for state in cluster.states())


def test_nodes_that_are_a_second_late_lose_no_job(lab: Lab) -> None:
    with busy_cluster(lab, pause_s=0.3) as cluster:
        seen = cluster.change_key({"m1": 1.0, "m2": 1.0}, away_s=0.2, watch_s=4.0)
        sys.stdout.write(described(seen) + "\n")
        assert seen.refused, "with two keys about, Slurm refuses at once: that is why there is one moment"
        assert set(cluster.job_states().values()) == {"RUNNING"}
