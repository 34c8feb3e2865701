from __future__ import annotations

from ClusterShell.NodeSet import NodeSet
from hypothesis import given
from hypothesis import strategies as st

from meshd.model.hardware import NodeShape
from meshd.slurm.conf import parse
from meshd.slurm.nodes import JoinedNode, PoolLine, render
from meshd.slurm.read_back import read_node_addrs, read_slots

sizes = st.dictionaries(
    st.sampled_from(["a", "a-1", "a100", "h100", "h100-x", "z9"]), st.integers(1, 700), min_size=1, max_size=4
)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[PoolLine], list[JoinedNode]]:
    pools = [PoolLine(name, "", size, "", 0, 1, 1024) for name, size in draw(sizes).items()]
    joined = []
    for pool in pools:
        taken = draw(st.sets(st.integers(1, pool.max_nodes), max_size=12))
        for index in sorted(taken):
            address = f"100.64.{len(joined) // 250}.{len(joined) % 250 + 1}"
            joined.append(JoinedNode(f"{pool.name}-{index}", address, NodeShape(4, 1, 1, 4, 1, 4096)))
    return pools, joined


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


@given(clusters())
def test_partitions_hold_exactly_their_pools_slots(cluster):
    pools, joined = cluster
    partitions = parse(render(pools, joined, shapes_fixed=False).nodes_conf).records("PartitionName")
    held = {record["partitionname"]: set(NodeSet(record["nodes"])) for record in partitions}
    assert held == {pool.name: {f"{pool.name}-{i}" for i in range(1, pool.max_nodes + 1)} for pool in pools}
