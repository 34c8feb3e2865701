"""The switch of the munge key under load, by the code that head and nodes run, with the real daemons."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.integration.munge_lab import OVER_BOTH, Seen, busy_cluster, described
from tests.integration.slurm_lab import Lab, wait_until
from tests.integration.test_slurm_real import IMAGES, image_layers

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and namespaces"),
]

SWITCHES = 3
PAUSE_S = 0.3


@pytest.fixture(params=list(IMAGES))
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Lab:
    """Slurm 22.05 and 24.11."""
    return Lab(image_layers(request.param), tmp_path / "lab", suite=request.param)


def test_jobs_run_on(lab: Lab) -> None:
    with busy_cluster(lab, PAUSE_S) as cluster:
        switches: list[Seen] = []
        for _ in range(SWITCHES):
            switches.append(cluster.change_key({}, away_s=0.2))
            sys.stdout.write(described(switches[-1]) + "\n")
            assert set(cluster.job_states().values()) == {"RUNNING"}, "no job is lost or started anew"
        for seen in switches:
            for kind, calls in seen.refused.items():
                # Slurm has many words for it, and says "Header lengths are longer than data received" too: time tells.
                for call in calls:
                    assert call.begun < seen.back_at, (
                        f"{kind} refused with one key everywhere for {call.begun - seen.back_at:.2f} s: {call.error}"
                    )
                # One call may be under way with the old key; more only while there are two, on a busy machine.
                assert len(calls) <= 1 + seen.two_keys_s / PAUSE_S, described(seen)
        wait_until(lambda: not any("*" in s or "down" in s for s in cluster.states()), "all answer")
        assert not any("drain" in state for state in cluster.states())


def test_nodes_that_are_a_second_late_lose_no_job(lab: Lab) -> None:
    with busy_cluster(lab, PAUSE_S) as cluster:
        # With two keys about, Slurm refuses at once: that is why there is one moment.
        # A node that Slurm met then takes no job over both before Slurm asks it again; the one that has it keeps it.
        seen = cluster.change_key({"m1": 1.0, "m2": 1.0}, away_s=0.2, until_refused=True, but=OVER_BOTH)
        sys.stdout.write(described(seen) + "\n")
        assert set(cluster.job_states().values()) == {"RUNNING"}
