"""What is rendered reads back, and root's unit takes it: for both forms of a pool, and where the form changes."""

from __future__ import annotations

from dataclasses import replace

from ClusterShell.NodeSet import NodeSet
from hypothesis import given
from hypothesis import strategies as st

from meshd.model.hardware import GpuFact, NodeShape
from meshd.plan.slurm_lines import Allowed, check, is_free
from meshd.slurm.conf import parse
from meshd.slurm.nodes import JoinedNode, PoolLine, holding, render
from meshd.slurm.read_back import read_cloud_slots, read_free_lines, read_lines, read_node_addrs, read_slots

sizes = st.dictionaries(
    st.sampled_from(["a", "a-1", "a100", "h100", "h100-x", "z9"]), st.integers(1, 700), min_size=1, max_size=4
)
GPUS = st.sampled_from([0, 1, 2, 8])
FIRST_DEVICE = st.sampled_from([0, 0, 0, 4])


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[PoolLine], list[JoinedNode]]:
    pools = []
    for name, size in draw(sizes).items():
        gpus = draw(GPUS)
        gpu = "h100" if gpus else ""
        pools.append(PoolLine(name, "", size, gpu, gpus, 1, 1024, from_queue=draw(st.booleans())))
    joined = []
    for pool in pools:
        taken = draw(st.sets(st.integers(1, pool.max_nodes), max_size=12))
        for index in sorted(taken):
            address = f"100.64.{len(joined) // 250}.{len(joined) % 250 + 1}"
            first = draw(FIRST_DEVICE)
            devices = tuple(
                GpuFact(i, "NVIDIA H100", f"GPU-{i}", 81559, f"/dev/nvidia{first + i}")
                for i in range(pool.gpus_per_node)
            )
            joined.append(JoinedNode(f"{pool.name}-{index}", address, NodeShape(4, 1, 1, 4, 1, 4096), devices))
    return pools, joined


def devices_of(gres_conf: str) -> dict[str, str]:
    """The device files of each slot; fails where a slot has two lines."""
    found: dict[str, str] = {}
    for line in gres_conf.splitlines():
        if not line.startswith("#"):
            names, files = line.partition("=")[2].partition(" ")[0], line.rpartition(" File=")[2]
            for slot in NodeSet(names):
                assert slot not in found
                found[slot] = files
    return found


@given(clusters(), st.booleans())
def test_every_slot_stands_once_with_an_address_of_its_own(cluster, fixed):
    pools, joined = cluster
    rendered = render(pools, joined, shapes_fixed=fixed)
    expected = {f"{pool.name}-{i}" for pool in pools for i in range(1, pool.max_nodes + 1)}
    slots = read_slots(rendered.nodes_conf)
    assert slots == rendered.slots
    assert set(slots) == expected
    assert len(slots) == len(expected)
    addresses = []
    for record in parse(rendered.nodes_conf).records("NodeName"):
        own = [address for part in record["nodeaddr"].split(",") for address in NodeSet(part)]
        assert len(own) == len(NodeSet(record["nodename"]))
        addresses += own
    assert len(set(addresses)) == len(addresses) == len(slots)
    assert read_node_addrs(rendered.nodes_conf) == rendered.node_addrs == {node.slot: node.node_addr for node in joined}
    allowed = Allowed({pool.name: pool.max_nodes for pool in pools}, frozenset(pool.name for pool in pools))
    check(rendered.nodes_conf, rendered.gres_conf, allowed)


@given(clusters(), st.booleans())
def test_the_lines_of_each_form_say_what_they_promise(cluster, fixed):
    pools, joined = cluster
    rendered = render(pools, joined, shapes_fixed=fixed)
    machines = {node.slot: node for node in joined}
    queue = {f"{pool.name}-{i}" for pool in pools if pool.from_queue for i in range(1, pool.max_nodes + 1)}
    assert read_cloud_slots(rendered.nodes_conf) == queue
    devices = devices_of(rendered.gres_conf)
    states: dict[str, str] = {}
    for record in parse(rendered.nodes_conf).records("NodeName"):
        free = is_free(record["nodeaddr"])
        for slot in NodeSet(record["nodename"]):
            states[slot] = record["state"]
            assert free == (slot not in machines)
            if slot in queue:
                assert (record["cpus"], record["realmemory"]) == ("1", "1024")
    for pool in pools:
        for index in range(1, pool.max_nodes + 1):
            slot = f"{pool.name}-{index}"
            node = machines.get(slot)
            assert states[slot] == ("CLOUD" if pool.from_queue else "UNKNOWN" if node else "DOWN")
            standard = [f"/dev/nvidia{i}" for i in range(pool.gpus_per_node)]
            files = [gpu.device for gpu in node.devices] if node else standard if pool.from_queue else []
            assert devices.get(slot, "") == (str(NodeSet.fromlist(files)) if files else "")


@given(clusters(), st.data())
def test_what_is_kept_stays_as_it_was_whatever_form_its_pool_gets(cluster, data):
    pools, joined = cluster
    before = render(pools, joined, shapes_fixed=False)
    others = [replace(pool, from_queue=not pool.from_queue, cpus_min=2) for pool in pools]
    kept = frozenset(data.draw(st.sets(st.sampled_from(before.slots), max_size=5)))
    old = read_lines(before.nodes_conf, before.gres_conf)
    old |= read_free_lines(before.nodes_conf, before.gres_conf, kept)
    after = holding(render(others, joined, shapes_fixed=False), old, kept)
    check(after.nodes_conf, after.gres_conf)
    assert read_slots(after.nodes_conf) == after.slots
    assert read_node_addrs(after.nodes_conf) == after.node_addrs
    now = read_lines(after.nodes_conf, after.gres_conf)
    now |= read_free_lines(after.nodes_conf, after.gres_conf, kept)
    assert {slot: now[slot] for slot in kept} == {slot: old[slot] for slot in kept}


@given(clusters())
def test_partitions_hold_exactly_their_pools_slots(cluster):
    pools, joined = cluster
    partitions = parse(render(pools, joined, shapes_fixed=False).nodes_conf).records("PartitionName")
    held = {record["partitionname"]: set(NodeSet(record["nodes"])) for record in partitions}
    assert held == {pool.name: {f"{pool.name}-{i}" for i in range(1, pool.max_nodes + 1)} for pool in pools}
