"""The jobs that wait for machines, in `status`, `explain` and `nodes`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshd.api import endpoints as e
from meshd.api import schema as s
from meshd.api.faults import NotReady, Unknown
from meshd.model.machine import Phase
from meshd.model.observed import Fresh, SlurmJob, SlurmNode, SlurmView
from tests.head_room import HeadRoom
from tests.unit.daemon.munge_lab import MungeLab as MungeLab
from tests.unit.worlds import GONE_DARK, NOW, machine, snapshot

JOB = SlurmJob("12", "ann", "gpu", "CONFIGURING", ("h100-1", "h100-2"), node_count=2)
HELD = SlurmJob("13", "bob", "gpu", "PENDING", (), "Dependency")
RUNS = SlurmJob("14", "bob", "gpu", "RUNNING", ("h100-3",))
POWERING_UP = frozenset({"ALLOCATED", "CLOUD", "NOT_RESPONDING", "POWERING_UP"})


def look(room: HeadRoom, *jobs: SlurmJob) -> None:
    room.pool = replace(room.pool, from_queue=True)
    nodes = {slot: SlurmNode(slot, slot, POWERING_UP) for job in jobs for slot in job.nodes}
    now = room.clock.now()
    room.seen = snapshot(slurm=Fresh(SlurmView("24.11.5", nodes, jobs, power_saving=True), now))
    room.reconciler.tick()


def boots(room: HeadRoom) -> None:
    for index in (1, 2):
        one = machine(Phase.BOOTING, index=index, launch_called_at=NOW, by_queue=True, for_jobs=("12",))
        room.journal.put(one, "phase", "boots", NOW)


async def test_status_and_nodes_show_who_waits_and_for_what(room: HeadRoom) -> None:
    boots(room)
    look(room, JOB, HELD, RUNS)
    view = await room.head.call(e.STATUS)
    (row,) = view.waiting
    assert (row.job, row.user, row.pool, row.nodes, row.ready, row.wait) == ("12", "ann", "h100", 2, 0, "boot")
    assert row.until is not None and row.until > NOW
    (pool,) = view.pools
    rented = sum(one.offer.gpus for one in room.journal.machines())
    assert (pool.target_gpus, pool.wanted_gpus) == (0, rented + room.pool.gpus_per_node), "three nodes have jobs"
    nodes = (await room.head.call(e.NODES)).nodes
    assert [(one.by_queue, one.for_jobs) for one in nodes] == [(True, ["12"]), (True, ["12"])]


async def test_a_job_is_explained(room: HeadRoom) -> None:
    boots(room)
    look(room, JOB, HELD, RUNS)
    view = await room.head.call(e.EXPLAIN, s.ExplainQuery(subject="12"))
    assert (view.job, view.pool, view.why) == ("12", "h100", view.waiting[0].text)
    assert [row.machine for row in view.rungs] == ["lab-h100-1-abcde1", "lab-h100-2-abcde2"]
    assert view.next_rungs == [], "nothing stands against it"
    pool = await room.head.call(e.EXPLAIN, s.ExplainQuery(subject="h100"))
    assert [row.job for row in pool.waiting] == ["12"]
    other = await room.head.call(e.EXPLAIN, s.ExplainQuery(subject="13"))
    assert (other.waiting, "Dependency" in other.why) == ([], True)
    runs = await room.head.call(e.EXPLAIN, s.ExplainQuery(subject="14"))
    assert (runs.pool, "h100-3" in runs.why) == ("h100", True)


async def test_a_job_that_nobody_knows(room: HeadRoom) -> None:
    look(room, JOB)
    with pytest.raises(Unknown) as caught:
        await room.head.call(e.EXPLAIN, s.ExplainQuery(subject="99"))
    assert caught.value.code == "no_such_job"
    room.seen = replace(room.seen, slurm=GONE_DARK)
    room.reconciler.tick()
    with pytest.raises(NotReady):
        await room.head.call(e.EXPLAIN, s.ExplainQuery(subject="99"))
    assert (await room.head.call(e.STATUS)).waiting == []
