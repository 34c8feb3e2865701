"""What the settings no longer have stays in Slurm while a job or a reservation names it."""

from __future__ import annotations

import pytest

from meshd.model.hardware import GpuFact, NodeShape
from meshd.model.observed import SlurmJob, SlurmReservation
from meshd.slurm.nodes import JoinedNode, PoolLine, render
from meshd.slurm.pools import read_pools
from meshd.slurm.retained import leaving_of, leaving_of_texts, retain

H100 = PoolLine("h100", "", 4, "h100", 2, 8, 4096, ("fast", "ib"), default=True)
CPU = PoolLine("cpu-big", "cpu", 2, "", 0, 1, 500)
CPU2 = PoolLine("cpu-small", "cpu", 3, "", 0, 1, 250)
UNTYPED = PoolLine("any", "", 1, "", 4, 2, 1000)
GPUS = tuple(GpuFact(i, "NVIDIA H100", f"GPU-{i}", 81559, f"/dev/nvidia{i}") for i in range(2))
JOINED = JoinedNode("h100-2", "100.64.0.2", NodeShape(64, 1, 2, 32, 1, 999999), GPUS, ("aws",))
ALL = [H100, CPU, CPU2, UNTYPED]
BEFORE = read_pools(render(ALL, [JOINED], shapes_fixed=False).nodes_conf)


def job(partition: str, *nodes: str, state: str = "PENDING") -> SlurmJob:
    return SlurmJob("7", "u", partition, state, required_nodes=nodes)


def reserved(partition: str, *nodes: str) -> SlurmReservation:
    return SlurmReservation("r1", nodes, partition)


def test_the_pools_are_read_back_from_what_meshd_wrote() -> None:
    assert [(p.name, p.partition, p.max_nodes, p.gpu, p.gpus_per_node) for p in BEFORE.values()] == [
        ("any", "any", 1, "", 4), ("cpu-big", "cpu", 2, "", 0), ("cpu-small", "cpu", 3, "", 0),
        ("h100", "h100", 4, "h100", 2),
    ]  # fmt: skip
    assert (BEFORE["h100"].cpus_min, BEFORE["h100"].memory_min_mib) == (8, 4096), "what a free slot promises"
    assert BEFORE["h100"].features == ("fast", "ib")
    again = render(list(BEFORE.values()), [JOINED], shapes_fixed=False).nodes_conf
    whole = render(ALL, [JOINED], shapes_fixed=False).nodes_conf.replace("Default=YES", "Default=NO")
    assert again == whole
    assert read_pools("") == {}


@pytest.mark.parametrize("state", ["PENDING", "SUSPENDED", "RUNNING", "REQUEUE_HOLD", "SPECIAL_EXIT"])
@pytest.mark.parametrize("partition", ["cpu", "h100,cpu", "cpu,h100"])
def test_a_pool_stays_whole_while_a_job_names_its_partition(partition: str, state: str) -> None:
    kept, holds = retain([H100], BEFORE, [job(partition, state=state)], [])
    assert {pool.name: pool.max_nodes for pool in kept} == {"h100": 4, "cpu-big": 2, "cpu-small": 3}
    assert [(hold.pool, hold.partition, hold.jobs, hold.other) for hold in holds] == [
        ("cpu-big", "cpu", ("7",), "h100"), ("cpu-small", "cpu", ("7",), "h100"),
    ]  # fmt: skip
    text = render(kept, [JOINED], shapes_fixed=False).nodes_conf
    assert "PartitionName=cpu Nodes=cpu-big-[1-2],cpu-small-[1-3] Default=NO MaxTime=INFINITE State=DRAIN" in text
    assert "PartitionName=h100 Nodes=h100-[1-4] Default=YES MaxTime=INFINITE State=UP" in text
    left = leaving_of_texts(text, render(ALL, [JOINED], shapes_fixed=False).nodes_conf)
    assert (left.partitions, left.slots) == ({"any"}, {"any-1"}), "what nobody names goes"


def test_a_lowered_max_nodes_keeps_the_slots_up_to_the_last_that_is_named() -> None:
    lower = PoolLine("h100", "", 1, "h100", 2, 8, 4096)
    pools = [lower, CPU, CPU2, UNTYPED]
    for kept, holds in (
        retain(pools, BEFORE, [job("h100", "h100-3")], []),
        retain(pools, BEFORE, [], [reserved("", "h100-1", "h100-3")]),
    ):
        assert {pool.name: pool.max_nodes for pool in kept} == {"h100": 3, "cpu-big": 2, "cpu-small": 3, "any": 1}
        assert [(hold.pool, hold.partition, hold.slots) for hold in holds] == [("h100", "", ("h100-3",))]
        assert "State=DRAIN" not in render(kept, [], shapes_fixed=False).nodes_conf, "its partition stays as it is"
    assert retain(pools, BEFORE, [job("h100"), job("h100", "h100-1")], []) == (tuple(pools), ())


def test_a_renamed_partition_keeps_its_old_name_for_as_long() -> None:
    moved = PoolLine("any", "other", 1, "", 4, 2, 1000)
    kept, holds = retain([H100, CPU, CPU2, moved], BEFORE, [job("any")], [])
    assert {pool.name: pool.partition for pool in kept}["any"] == "any"
    assert [(hold.pool, hold.partition) for hold in holds] == [("any", "any")]
    assert retain([H100, CPU, CPU2, moved], BEFORE, [job("h100")], [])[1] == ()


def test_a_pool_of_a_partition_that_stays_goes_unless_its_nodes_are_named() -> None:
    pools = [H100, CPU, UNTYPED]
    assert retain(pools, BEFORE, [job("cpu")], [reserved("cpu")]) == (tuple(pools), ())
    kept, holds = retain(pools, BEFORE, [], [reserved("cpu", "cpu-small-2")])
    assert {pool.name for pool in kept} == {"h100", "cpu-big", "cpu-small", "any"}
    assert [(hold.pool, hold.slots, hold.reservations) for hold in holds] == [("cpu-small", ("cpu-small-2",), ("r1",))]


def test_nothing_leaves_where_pools_only_grow() -> None:
    assert not leaving_of([*ALL, PoolLine("new", "", 1, "", 0, 1, 1)], BEFORE)
    assert leaving_of([], BEFORE).partitions == {"h100", "cpu", "any"}
    assert retain([], BEFORE, [job("any")], [])[1][0].other == ""
