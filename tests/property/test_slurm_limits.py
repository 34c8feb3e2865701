"""Whatever passes admission can be written, and root's unit takes what is written: by the same rules."""

from __future__ import annotations

from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meshd.errors import JoinRefused
from meshd.model.hardware import GpuFact, NodeFacts, NodeShape
from meshd.plan.admission import check_facts, check_same
from meshd.plan.limits import COUNT_MAX, as_word, usable
from meshd.plan.slurm_lines import Allowed, LineRefused, check
from meshd.slurm.conf import parse
from meshd.slurm.nodes import JoinedNode, PoolLine, render
from meshd.slurm.read_back import read_lines, read_node_addrs, read_slots
from tests.tiers import bounded

COUNTS = st.one_of(st.integers(0, 9), st.sampled_from([64, 255, 256, COUNT_MAX, COUNT_MAX + 1, 65536, 10**9]))
MEMORY = st.one_of(st.integers(0, 64), st.integers(0, 2**31), st.sampled_from([2**30, 2**30 + 1, 10**9]))
DEVICES = st.one_of(
    st.integers(0, 9).map(lambda n: f"/dev/nvidia{n}"),
    st.sampled_from(["", "/dev/nvidia00", "/dev/mem", "/dev/nvidia9999"]),
)
SHAPES = st.builds(NodeShape, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS, MEMORY)


def _gpus(devices: list[str]) -> tuple[GpuFact, ...]:
    return tuple(GpuFact(i, "NVIDIA H100 80GB HBM3", f"GPU-{i}", 81559, device) for i, device in enumerate(devices))


def _facts(shape: NodeShape, devices: list[str]) -> NodeFacts:
    return NodeFacts(shape, _gpus(devices), "24.11.5", "1.102.5", "0.1.0", "debian 13", "x86_64", 0.0)


def _admitted(facts: NodeFacts, rented: int) -> bool:
    wanted: dict[str, Any] = {"gpu_model": "h100-sxm", "slurmctld_version": "24.11.5", "clock_skew_max_s": 120.0}
    try:
        check_facts(facts, gpus_rented=rented, **wanted)
    except JoinRefused:
        return False
    return True


def _consistent(boards: int, sockets: int, cores: int, threads: int, memory_mib: int) -> NodeShape:
    return NodeShape(boards * sockets * cores * threads, boards, sockets, cores, threads, memory_mib)


SMALL = st.integers(1, 12)
LIKELY = st.builds(_consistent, SMALL, SMALL, SMALL, st.sampled_from([1, 2]), st.integers(16, 2**30))


@given(st.one_of(SHAPES, LIKELY), st.lists(DEVICES, max_size=4), st.integers(0, 3), st.booleans(), st.text(max_size=8))
@settings(max_examples=bounded(100, 5000))
def test_what_is_admitted_is_written_and_taken(
    shape: NodeShape, devices: list[str], rented: int, shapes_fixed: bool, region: str
) -> None:
    facts = _facts(shape, devices)
    assume(_admitted(facts, rented))
    pool = PoolLine("h100", "", 4, "h100" if rented else "", rented, 1, 1024)
    eight = NodeShape(8, 1, 1, 8, 1, 65536)
    good = JoinedNode("h100-1", "100.64.0.1", eight, _gpus([f"/dev/nvidia{i}" for i in range(rented)]))
    features = tuple(word for word in [as_word(region)] if word)
    node = JoinedNode("h100-2", "100.64.0.2", shape, usable(facts.gpus, rented), features)
    made = render([pool], [good, node], shapes_fixed=shapes_fixed)
    assert made.left_out == {}
    assert check(made.nodes_conf, made.gres_conf, Allowed({"h100": 4}, frozenset({"h100"}))).pools == {"h100": 4}
    assert read_node_addrs(made.nodes_conf) == {"h100-1": "100.64.0.1", "h100-2": "100.64.0.2"}
    assert read_slots(made.nodes_conf) == made.slots
    lines = read_lines(made.nodes_conf, made.gres_conf)
    assert lines["h100-2"].gres == tuple(x for x in made.gres_conf.splitlines() if x.startswith("NodeName=h100-2 "))


@given(st.lists(st.tuples(SHAPES, st.lists(DEVICES, max_size=3)), min_size=1, max_size=4))
def test_a_machine_that_cannot_be_written_takes_no_other_with_it(machines: list[tuple[NodeShape, list[str]]]) -> None:
    pool = PoolLine("h100", "", 6, "h100", 1, 1, 1024)
    good = JoinedNode("h100-6", "100.64.0.6", NodeShape(8, 1, 1, 8, 1, 65536), _gpus(["/dev/nvidia0"]))
    nodes = [JoinedNode(f"h100-{i}", f"100.64.0.{i}", s, _gpus(d)) for i, (s, d) in enumerate(machines, 1)]
    made = render([pool], [*nodes, good], shapes_fixed=False)
    check(made.nodes_conf, made.gres_conf, Allowed({"h100": 6}, frozenset({"h100"})))
    assert "h100-6" in made.node_addrs
    assert set(made.node_addrs) | set(made.left_out) == {node.slot for node in [*nodes, good]}


@given(LIKELY, st.one_of(SHAPES, LIKELY), st.lists(DEVICES, max_size=3))
def test_a_rejoin_changes_nothing_that_is_written(then: NodeShape, now: NodeShape, devices: list[str]) -> None:
    before = _facts(then, ["/dev/nvidia0"])
    assume(_admitted(before, 1))
    try:
        check_same(_facts(now, devices), before, gpus_rented=1, memory_fraction=0.95)
    except JoinRefused as error:
        assert not error.fatal
        return
    assert (now.cpus, now.boards, now.sockets_per_board) == (then.cpus, then.boards, then.sockets_per_board)
    assert [gpu.device for gpu in usable(_gpus(devices), 1)] == ["/dev/nvidia0"]


GOOD = render(
    [PoolLine("h100", "gpu", 4, "h100", 2, 8, 1024, ("fast",))],
    [JoinedNode("h100-2", "100.64.0.2", NodeShape(8, 1, 1, 8, 1, 65536), _gpus(["/dev/nvidia0", "/dev/nvidia1"]))],
    shapes_fixed=False,
)
KEYS = {
    "nodename", "nodeaddr", "cpus", "boards", "socketsperboard", "corespersocket", "threadspercore", "realmemory",
    "tmpdisk", "weight", "corespeccount", "memspeclimit",
    "gres", "feature", "state", "reason", "partitionname", "nodes", "default", "maxtime",
    "minnodes", "maxnodes", "allowgroups", "allowaccounts", "allowqos", "oversubscribe", "hidden", "rootonly",
    "prioritytier",
}  # fmt: skip
WORDS = ["\\", "\\\n", "\r", "\t", '"', "#", "=", "Include /x", "PluginDir=/x", " PluginDir=/x", "\nPluginDir=/x\n"]
PIECES = st.one_of(st.text(max_size=3), st.characters(max_codepoint=255), st.sampled_from(WORDS))


@given(st.lists(st.tuples(st.integers(0, len(GOOD.nodes_conf)), st.integers(0, 3), PIECES), min_size=1, max_size=3))
@settings(max_examples=bounded(200, 10000))
def test_nothing_but_records_of_nodes_and_partitions_gets_through(changes: list[tuple[int, int, str]]) -> None:
    """Whatever is changed in a good file: what is taken is, for Slurm's grammar, such records and nothing else."""
    text = GOOD.nodes_conf
    for at, removed, piece in changes:
        text = text[:at] + piece + text[at + removed :]
    try:
        check(text, "", Allowed({"h100": 4}, frozenset({"gpu"})))
    except LineRefused:
        return
    conf = parse(text)
    assert conf.includes() == ()
    for line in conf.lines:
        assert not line.pairs or line.is_record
        assert {pair.key.lower() for pair in line.pairs} <= KEYS
    assert {record["nodename"].partition("-")[0] for record in conf.records("NodeName")} <= {"h100"}
    assert {record["partitionname"] for record in conf.records("PartitionName")} <= {"gpu"}
