"""What a batch script asks for with --signal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshd.slurm.job_signal import JobSignal, signal_in


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ("#SBATCH --signal=USR2@90", JobSignal("USR2")),
        ("#SBATCH --job-name=a --signal=B:SIGUSR1@120 --time=1:00:00", JobSignal("USR1", batch_only=True)),
        ("#SBATCH --signal RB:10", JobSignal("10", batch_only=True)),
        ("# text\n\n#SBATCH --signal=TERM", JobSignal("TERM")),
        ("#SBATCH --signal=USR1\n#SBATCH --signal=USR2", JobSignal("USR2")),
        ("echo\n#SBATCH --signal=USR1", None),
        ("#SBATCH --signal=RM@3", None),
        ("#SBATCH --signal=99", None),
        ("#SBATCH --signal='USR1", None),
        ("#SBATCH --signal", None),
        ("#SBATCH --time=5 # --signal=USR1", None),
        ("", None),
    ],
)
def test_what_it_asks_for(lines: str, found: JobSignal | None) -> None:
    assert signal_in(f"#!/bin/sh\n{lines}\n") == found


@given(st.text())
def test_any_script_is_read(text: str) -> None:
    found = signal_in(f"#!/bin/sh\n#SBATCH {text}")
    assert found is None or found.name.isalnum() or "+" in found.name
