"""What a slot keeps while jobs are on it, or wait for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshd.model.hardware import GpuFact, NodeShape
from meshd.model.observed import SlurmJob, SlurmNode, SlurmView
from meshd.plan.slurm_lines import check
from meshd.slurm.checks import Kept, kept_slots, leaves_power_saving
from meshd.slurm.node_addrs import addrs_off, addrs_to_set, only_addrs, settable_addrs
from meshd.slurm.nodes import JoinedNode, PoolLine, Rendered, holding, render
from meshd.slurm.read_back import is_placeholder, read_lines

BY_HAND = PoolLine("a", "", 4, "h100", 2, 4, 1000)
QUEUE = replace(BY_HAND, from_queue=True)
LARGER = replace(QUEUE, cpus_min=8)
OWN, OTHER = "100.64.0.1", "100.64.0.9"
SHAPE = NodeShape(16, 1, 1, 16, 1, 100_000)
OFF, UP, BOOTS = "IDLE+CLOUD+POWERED_DOWN", "MIXED+CLOUD", "MIXED+CLOUD+POWERING_UP+NOT_RESPONDING"


def gpus(first: int = 0, count: int = 2) -> tuple[GpuFact, ...]:
    return tuple(GpuFact(i, "NVIDIA H100", f"GPU-{i}", 81559, f"/dev/nvidia{first + i}") for i in range(count))


def files(pool: PoolLine, *machines: tuple[str, str], first: int = 0, count: int = 2) -> Rendered:
    joined = [JoinedNode(slot, address, SHAPE, gpus(first, count)) for slot, address in machines]
    made = render([pool], joined, shapes_fixed=False)
    check(made.nodes_conf, made.gres_conf)
    return made


FREE, JOINED = files(QUEUE), files(QUEUE, ("a-1", OWN))


def view(states: str, job: str = "", address: str = OWN) -> SlurmView:
    """a-1 in these states, with a job in that state; the other slots are off."""
    nodes = {f"a-{i}": SlurmNode(f"a-{i}", f"239.192.0.{i - 1}", frozenset(OFF.split("+"))) for i in range(1, 5)}
    nodes["a-1"] = SlurmNode("a-1", address, frozenset(states.split("+")))
    jobs = (SlurmJob("7", "u", "a", job, ("a-1",)),) if job else ()
    return SlurmView("24.11.5", nodes, jobs)


def kept(before: Rendered, after: Rendered, seen: SlurmView) -> Kept:
    return kept_slots(after, seen, before.nodes_conf, before.gres_conf)


@pytest.mark.parametrize(
    ("states", "job", "stays"),
    [
        (UP, "RUNNING", True),
        (UP, "CONFIGURING", True),
        (UP, "", True),
        ("IDLE+CLOUD", "", True),
        ("IDLE+CLOUD+COMPLETING", "", True),
        ("MIXED+CLOUD+COMPLETING+POWERING_DOWN", "COMPLETING", True),
        ("MIXED+CLOUD+DRAIN+POWER_DOWN", "RUNNING", True),
        ("IDLE+CLOUD+DRAIN", "", False),
        ("IDLE+CLOUD+POWERING_DOWN", "", False),
        (OFF, "", False),
        (BOOTS, "CONFIGURING", False),
        ("MIXED+CLOUD+POWERED_DOWN", "CONFIGURING", False),
        ("IDLE+CLOUD+POWERING_UP+NOT_RESPONDING", "", False),
        ("DOWN+CLOUD+NOT_RESPONDING", "", False),
    ],
)
def test_a_machine_leaves_a_slot_on_which_no_job_can_be(states: str, job: str, stays: bool) -> None:
    found = kept(JOINED, FREE, view(states, job))
    assert set(found.reasons) == ({"a-1"} if stays else set())
    if stays:
        assert found.lines["a-1"] == read_lines(JOINED.nodes_conf, JOINED.gres_conf)["a-1"]


@pytest.mark.parametrize(
    ("states", "job", "stays"), [(BOOTS, "CONFIGURING", False), (UP, "RUNNING", True), (OFF, "", False)]
)
def test_another_machine_comes_only_to_a_job_that_waits(states: str, job: str, stays: bool) -> None:
    assert set(kept(JOINED, files(QUEUE, ("a-1", OTHER)), view(states, job)).reasons) == ({"a-1"} if stays else set())


@pytest.mark.parametrize(("states", "job"), [(BOOTS, "CONFIGURING"), (UP, "RUNNING")])
def test_the_line_of_a_machine_whose_address_was_set_follows_whatever_its_jobs_do(states: str, job: str) -> None:
    assert not kept(FREE, JOINED, view(states, job)).reasons
    assert not kept(FREE, files(QUEUE, ("a-1", OWN), first=4), view(BOOTS, "CONFIGURING")).reasons, "other devices"


@pytest.mark.parametrize(("states", "job"), [(BOOTS, "CONFIGURING"), (UP, "RUNNING"), (UP, "")])
def test_a_slot_with_a_job_keeps_its_shape_and_gets_its_address(states: str, job: str) -> None:
    after = files(LARGER, ("a-1", OWN))
    found = kept(FREE, after, view(states, job))
    line = found.lines["a-1"]
    assert (line.node_addr, "CPUs=4" in line.node.split(), line.cloud) == (OWN, True, True)
    merged = holding(after, found.lines, found.lines.keys())
    check(merged.nodes_conf, merged.gres_conf)
    assert merged.node_addrs == {"a-1": OWN}
    assert merged.nodes_conf.count("CPUs=8") == 1, "the other slots' line"
    assert not kept(FREE, after, view(OFF)).reasons


def test_a_free_slot_for_which_a_job_waits_stays_a_cloud_node() -> None:
    after = files(BY_HAND)
    found = kept(FREE, after, view(BOOTS, "CONFIGURING", "239.192.0.0"))
    merged = holding(after, found.lines, found.lines.keys())
    check(merged.nodes_conf, merged.gres_conf)
    assert merged.node_addrs == {}
    lines = [line for line in merged.nodes_conf.splitlines() if line.startswith("NodeName=")]
    assert [line.rpartition("State=")[2].split()[0] for line in lines] == ["CLOUD", "DOWN"]
    assert "NodeName=a-1 Name=gpu Type=h100 File=/dev/nvidia[0-1]" in merged.gres_conf
    gone = render([replace(QUEUE, name="b")], [], shapes_fixed=False)
    assert set(kept(FREE, gone, view(BOOTS, "CONFIGURING", "239.192.0.0")).reasons) == {"a-1"}


def test_a_pool_changes_its_form_under_a_job_that_runs_and_a_slot_of_another_shape_follows_later() -> None:
    seen = view("MIXED", "RUNNING")
    by_hand = files(BY_HAND, ("a-1", OWN))
    assert set(kept(by_hand, JOINED, seen).reasons) == {"a-1"}, "it has its machine's own 16 CPUs"
    small = render([BY_HAND], [JoinedNode("a-1", OWN, SHAPE, gpus())], shapes_fixed=True)
    assert not kept(small, JOINED, seen).reasons
    assert not kept(JOINED, small, view(UP, "RUNNING")).reasons
    assert not kept(by_hand, JOINED, view("IDLE+DRAIN")).reasons
    assert leaves_power_saving(small.nodes_conf, JOINED.nodes_conf)
    assert not leaves_power_saving(JOINED.nodes_conf, small.nodes_conf)
    assert not leaves_power_saving("", JOINED.nodes_conf), "no slot is left"


def test_which_machine_needs_no_more_than_its_address() -> None:
    def settable(before: Rendered, after: Rendered) -> dict[str, str]:
        return dict(settable_addrs(after, before.nodes_conf, before.gres_conf))

    assert settable(FREE, JOINED) == {"a-1": OWN}
    assert settable(JOINED, files(QUEUE, ("a-1", OTHER), ("a-4", OWN))) == {"a-1": OTHER, "a-4": OWN}
    assert settable(FREE, files(QUEUE, ("a-1", OWN), first=4)) == {}, "its device files are others"
    assert settable(FREE, files(QUEUE, ("a-1", OWN), count=8)) == {"a-1": OWN}, "the first two GPUs are as promised"
    assert settable(FREE, files(LARGER, ("a-1", OWN))) == {}
    assert settable(files(BY_HAND), JOINED) == {}, "it is no CLOUD node yet"
    assert settable(FREE, files(BY_HAND, ("a-1", OWN))) == {}
    assert settable(files(replace(QUEUE, max_nodes=2)), files(QUEUE, ("a-3", OWN))) == {}


def test_which_change_is_of_addresses_alone() -> None:
    def only(before: Rendered, after: Rendered) -> set[str]:
        texts = before.nodes_conf, before.gres_conf
        return set(only_addrs(after, read_lines(*texts), *texts, settable_addrs(after, *texts)))

    two = files(QUEUE, ("a-1", OTHER), ("a-4", OWN))
    assert only(FREE, JOINED) == only(JOINED, FREE) == {"a-1"}
    assert only(JOINED, two) == only(two, JOINED) == {"a-1", "a-4"}
    assert only(JOINED, JOINED) == set()
    assert only(FREE, files(QUEUE, ("a-1", OWN), first=4)) == set(), "its jobs need its own device files"
    assert only(files(QUEUE, ("a-1", OWN), first=4), FREE) == {"a-1"}
    assert only(files(QUEUE, ("a-1", OWN), first=4), JOINED) == set()
    assert only(files(QUEUE, ("a-1", OTHER)), files(QUEUE, ("a-1", OWN), ("a-2", OTHER), first=4)) == set()
    tagged = [
        render([QUEUE], [JoinedNode("a-1", address, SHAPE, gpus(), words)], shapes_fixed=False)
        for address, words in ((OWN, ("aws", "share")), (OTHER, ("aws", "share", "spot")), (OWN, ("gce", "share")))
    ]
    assert only(FREE, tagged[0]) == only(tagged[0], tagged[1]) == only(tagged[0], FREE) == {"a-1"}
    assert only(tagged[1], tagged[0]) == only(tagged[0], tagged[2]) == set(), "a job could ask for what is gone"
    for other in (
        LARGER,
        BY_HAND,
        replace(QUEUE, max_nodes=5),
        replace(QUEUE, features=("x",)),
        replace(QUEUE, default=True),
    ):
        assert only(FREE, files(other, ("a-1", OWN))) == only(JOINED, files(other)) == set(), other
    assert only(files(BY_HAND), files(BY_HAND, ("a-1", OWN))) == set()


@pytest.mark.parametrize(
    ("before", "after", "states", "job", "shown", "becomes"),
    [
        (FREE, JOINED, BOOTS, "CONFIGURING", "239.192.0.0", OWN),
        (FREE, JOINED, OFF, "", OTHER, OWN),
        (FREE, JOINED, BOOTS, "CONFIGURING", OTHER, OWN),
        (FREE, JOINED, UP, "RUNNING", "239.192.0.0", OWN),
        (FREE, JOINED, UP, "RUNNING", "a-1", OWN),
        (FREE, JOINED, UP, "RUNNING", OTHER, None),
        (FREE, JOINED, UP, "RUNNING", OWN, None),
        (JOINED, FREE, OFF, "", OWN, None),
        (JOINED, FREE, OFF, "", "a-1", "239.192.0.0"),  # as Slurm leaves it that has powered the node down
        (JOINED, FREE, "MIXED+CLOUD+POWERED_DOWN", "CONFIGURING", "a-1", "239.192.0.0"),
        (JOINED, FREE, UP, "RUNNING", "a-1", None),
        (FREE, FREE, OFF, "", OTHER, "239.192.0.0"),
        (FREE, FREE, BOOTS, "CONFIGURING", OTHER, "239.192.0.0"),
        (FREE, FREE, UP, "RUNNING", OTHER, None),
        (FREE, FREE, "IDLE+CLOUD", "", OTHER, None),
        (files(BY_HAND), JOINED, "DOWN", "", "239.192.0.0", None),
    ],
)
def test_the_address_in_force_follows_what_is_wanted(
    before: Rendered, after: Rendered, states: str, job: str, shown: str, becomes: str | None
) -> None:
    settable = settable_addrs(after, before.nodes_conf, before.gres_conf)
    found = addrs_off(after, view(states, job, shown), before.nodes_conf, settable)
    assert found == ({} if becomes is None else {"a-1": becomes})


@pytest.mark.parametrize(
    ("before", "after", "was", "shown", "becomes"),
    [
        (FREE, JOINED, "239.192.0.0", "239.192.0.0", OWN),
        (FREE, JOINED, OWN, OWN, None),
        (FREE, JOINED, OTHER, OTHER, None),  # set for a machine that came after this content was made
        (JOINED, FREE, OWN, OWN, "239.192.0.0"),
        (JOINED, FREE, OWN, "239.192.0.0", None),
        (FREE, FREE, OTHER, OTHER, None),
        (FREE, FREE, OTHER, "239.192.0.0", OTHER),  # as 22.05 leaves it
        (FREE, FREE, "239.192.0.0", "a-1", "239.192.0.0"),  # as power saving with cloud_reg_addrs leaves it
    ],
)
def test_addresses_after_a_reconfigure(
    before: Rendered, after: Rendered, was: str, shown: str, becomes: str | None
) -> None:
    nodes, earlier = view(OFF, "", shown).nodes, view(OFF, "", was).nodes
    found = addrs_to_set(after, nodes, earlier, before.nodes_conf)
    assert found == ({} if becomes is None else {"a-1": becomes})
    assert all(is_placeholder(node.node_addr) for name, node in nodes.items() if name != "a-1")
