from __future__ import annotations

from dataclasses import replace

import pytest

from meshd.errors import SlurmError
from meshd.model.hardware import NodeShape
from meshd.plan.limits import cpus_of, shape_fault
from meshd.slurm.nodes import HEADER, holding, render
from meshd.slurm.read_back import read_lines, read_node_addrs, read_slots
from tests.unit.slurm.slurm_nodes import CPU, GOLDEN, GPUS, H100, NODE


def test_the_files_as_a_whole():
    rendered = render([H100, CPU], [NODE], shapes_fixed=False)
    assert rendered.nodes_conf == GOLDEN
    assert rendered.gres_conf == HEADER + "NodeName=h100-2 Name=gpu Type=h100 File=/dev/nvidia[0-7]\n"
    assert rendered.slots == ("cpu-1", "h100-1", "h100-2", "h100-3", "h100-4", "h100-5", "h100-6")
    assert rendered.node_addrs == {"h100-2": "100.64.0.2"}


def test_the_order_of_the_arguments_does_not_matter():
    other = replace(NODE, slot="h100-5", node_addr="100.64.0.5")
    one = render([H100, CPU], [NODE, other], shapes_fixed=False)
    assert one == render([CPU, H100], [other, NODE], shapes_fixed=False)


def test_fixed_shapes_keep_what_the_free_slot_promised():
    text = render([H100], [NODE], shapes_fixed=True).nodes_conf
    assert "NodeName=h100-2 NodeAddr=100.64.0.2 CPUs=32 RealMemory=200000 Gres=gpu:h100:8" in text


def test_pools_may_share_a_partition():
    text = render([H100, replace(CPU, partition="h100")], [], shapes_fixed=False).nodes_conf
    assert "PartitionName=h100 Nodes=cpu-1,h100-[1-6] Default=YES" in text


def test_addresses_of_a_large_pool_are_folded_by_network():
    text = render([replace(H100, max_nodes=300)], [], shapes_fixed=False).nodes_conf
    assert "NodeName=h100-[1-300] NodeAddr=239.192.0.[0-255],239.192.1.[0-43] " in text


@pytest.mark.parametrize(
    "change",
    [
        {"features": ("a b",)},
        {"features": ("x\nNodeName=evil",)},
        {"node_addr": "100.64.0.2 Port=1"},
        {"node_addr": "239.192.0.7"},
        {"node_addr": "fd7a::1"},
        {"slot": "h100-7"},
        {"slot": "nope-1"},
        {"devices": GPUS[:7]},
        {"devices": (*GPUS[:7], replace(GPUS[7], device="/etc/passwd x"))},
        {"devices": (*GPUS[:7], replace(GPUS[7], device="/dev/nvidia0"))},
        {"shape": NodeShape(0, 1, 1, 1, 1, 1000)},
    ],
)
def test_what_must_not_get_into_the_file_leaves_out_that_machine_alone(change):
    bad, other = replace(NODE, **change), replace(NODE, slot="h100-4", node_addr="100.64.0.4")
    made = render([H100], [bad, other], shapes_fixed=False)
    assert list(made.left_out) == [bad.slot]
    assert made.node_addrs == {"h100-4": "100.64.0.4"}
    assert made.nodes_conf == render([H100], [other], shapes_fixed=False).nodes_conf


def test_a_line_that_cannot_be_made_any_more_stays_as_it_is():
    before = render([H100], [NODE], shapes_fixed=False)
    lines = read_lines(before.nodes_conf, before.gres_conf)
    assert lines["h100-2"].node in before.nodes_conf.splitlines()
    larger = replace(H100, gpus_per_node=16)
    made = render([larger], [NODE], shapes_fixed=False, before=lines)
    assert lines["h100-2"].node in made.nodes_conf.splitlines()
    assert made.gres_conf == before.gres_conf
    assert list(made.left_out) == ["h100-2"]
    another = replace(NODE, node_addr="100.64.0.9")
    made = render([larger], [another], shapes_fixed=False, before=lines)
    assert made.node_addrs == {}, "a line of another machine is not kept"


def test_slots_that_are_held_keep_their_lines_whoever_is_there():
    before = render([H100], [NODE], shapes_fixed=False)
    lines = read_lines(before.nodes_conf, before.gres_conf)
    newcomer = replace(NODE, node_addr="100.64.0.9")
    other = replace(NODE, slot="h100-4", node_addr="100.64.0.4")
    made = holding(render([H100], [newcomer, other], shapes_fixed=False), lines, ["h100-2"])
    assert made.node_addrs == {"h100-2": "100.64.0.2", "h100-4": "100.64.0.4"}
    smaller = holding(render([replace(H100, max_nodes=1)], [], shapes_fixed=False), lines, ["h100-2"])
    assert smaller.slots == ("h100-1", "h100-2")


@pytest.mark.parametrize(
    ("shape", "cpus"),
    [
        (NodeShape(8, 1, 1, 8, 1, 65536), 8),
        (NodeShape(8, 1, 1, 8, 2, 65536), 8),
        (NodeShape(32, 1, 1, 24, 1, 65536), 24),  # two kinds of cores: Slurm itself counts 24
        (NodeShape(65533, 1, 1, 65533, 1, 65536), 65533),
        (NodeShape(8, 0, 1, 8, 1, 65536), None),
        (NodeShape(10**9, 1, 1, 10**9, 1, 10**9), None),
        (NodeShape(65534, 1, 1, 65534, 1, 65536), None),
        (NodeShape(8, 256, 256, 8, 1, 65536), None),
        (NodeShape(64, 1, 1, 1, 1, 65536), None),
        (NodeShape(8, 1, 1, 8, 1, 0), None),
        (NodeShape(8, 1, 1, 8, 1, 2**31), None),
    ],
)
def test_what_slurm_can_hold(shape, cpus):
    assert bool(shape_fault(shape)) is (cpus is None)
    if cpus is not None:
        assert cpus_of(shape) == cpus


@pytest.mark.parametrize(
    "pool",
    [
        replace(H100, features=("ä",)),
        replace(H100, partition="p q"),
        replace(H100, gpu="h100 State=UP"),
        replace(H100, max_nodes=0),
        replace(H100, partition="DEFAULT"),
        replace(CPU, name="default", partition=""),
        replace(H100, cpus_min=70_000),
        replace(H100, name="H100"),
    ],
)
def test_pools_that_cannot_be_written(pool):
    with pytest.raises(SlurmError):
        render([pool], [], shapes_fixed=False)


def test_two_machines_never_share_a_slot_or_an_address():
    made = render([H100], [NODE, replace(NODE, node_addr="100.64.0.3")], shapes_fixed=False)
    assert (made.node_addrs, list(made.left_out)) == ({"h100-2": "100.64.0.2"}, ["h100-2"])
    lines = read_lines(made.nodes_conf, made.gres_conf)
    made = render([H100], [replace(NODE, slot="h100-1"), NODE], shapes_fixed=False, before=lines)
    assert (made.node_addrs, list(made.left_out)) == ({"h100-2": "100.64.0.2"}, ["h100-1"]), "who had it first keeps it"


def test_pools_that_would_declare_the_same_nodes():
    with pytest.raises(SlurmError):
        render([CPU, CPU], [], shapes_fixed=False)


def test_reading_back():
    assert read_node_addrs(GOLDEN) == {"h100-2": "100.64.0.2"}
    with pytest.raises(SlurmError, match="twice"):
        read_slots("NodeName=a-[1-3]\nNodeName=a-2\n")
