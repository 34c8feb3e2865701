"""Jobs on a machine that its cloud takes back are told once, and are told at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from meshd.model import plan as p
from meshd.model.machine import Phase
from tests.unit.daemon.small import Small
from tests.unit.worlds import NOW, machine

TAKEN = machine(Phase.READY)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Small]:
    world = Small(tmp_path)
    world.journal.put(TAKEN, "phase", "given", NOW)
    yield world
    world.journal.close()


async def tell(small: Small, *jobs: str) -> None:
    small.executor.begin(p.SignalJobs(TAKEN.name, "its cloud takes it back", TAKEN.slot, jobs))
    await small.settle()


async def test_a_job_whose_script_cannot_be_read_is_told_when_it_can(small: Small) -> None:
    small.slurm.unread = {"7"}
    await tell(small, "7")
    assert (small.slurm.orders, small.get(TAKEN.name).jobs_signalled_at) == ([], None)
    small.slurm.unread = set()
    await tell(small, "7")
    assert small.slurm.orders == ["signal 7"]
    assert small.get(TAKEN.name).jobs_signalled_at == NOW


async def test_a_job_that_has_ended_keeps_no_other_from_its_signal(small: Small) -> None:
    small.slurm.unread = {"7"}
    await tell(small, "7", "8")
    assert small.slurm.orders == ["signal 8"]
    assert small.get(TAKEN.name).jobs_signalled_at == NOW


async def test_where_no_job_has_a_script_nobody_is_told(small: Small) -> None:
    await tell(small)
    assert (small.slurm.orders, small.get(TAKEN.name).jobs_signalled_at) == ([], NOW)
