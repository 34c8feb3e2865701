"""What status shows, and the problems."""

from __future__ import annotations

from dataclasses import replace

from meshd.api import endpoints as e
from meshd.api import schema as s
from meshd.codes import ProblemCode
from meshd.model.machine import Phase
from tests.head_room import ROOT, HeadRoom
from tests.unit.daemon.munge_lab import MungeLab as MungeLab
from tests.unit.worlds import GONE_DARK, NOW, machine, snapshot


async def test_machines_are_counted_where_there_are_no_gpus(room: HeadRoom) -> None:
    assert (await room.head.call(e.SCALE, s.ScaleRequest(gpus=1, dry_run=True), ROOT)).unit == "GPU"
    room.pool = replace(room.pool, gpu="", gpus_per_node=0)
    assert (await room.head.call(e.SCALE, s.ScaleRequest(gpus=1, dry_run=True), ROOT)).unit == "machine"
    assert (await room.head.call(e.STATUS)).pools[0].unit == "machine"
    assert (await room.head.call(e.EXPLAIN, s.ExplainQuery(subject="h100"))).unit == "machine"


async def test_a_problem_names_its_pool_once(room: HeadRoom) -> None:
    await room.head.call(e.SCALE, s.ScaleRequest(gpus=2, max_usd_per_gpu_hour=0.01), ROOT)
    room.reconciler.tick()
    (found,) = [problem for problem in room.service.problems() if problem.pool == "h100"]
    assert found.text.startswith("2 GPUs wanted, 0 can be had") and "h100:" not in found.text


async def test_problems_tell_of_sources_and_of_machines_that_nobody_watches(room: HeadRoom) -> None:
    room.journal.put(machine(Phase.READY, provider="gce"), "phase", "given", NOW)
    room.journal.put(machine(Phase.LOST, index=2, instance_id=""), "phase", "given", NOW)
    room.seen = snapshot(slurm=GONE_DARK, instances={"aws": GONE_DARK})
    room.reconciler.tick()
    found = {(problem.code, problem.machine) for problem in room.service.problems()}
    assert found >= {
        (ProblemCode.SLURM_UNREADABLE, ""),
        (ProblemCode.PROVIDER_UNREADABLE, ""),
        (ProblemCode.PROVIDER_NOT_ENABLED, ""),
        (ProblemCode.MACHINE_LOST, machine(Phase.LOST, index=2).name),
    }
