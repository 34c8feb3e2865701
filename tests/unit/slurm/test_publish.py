"""The publisher and the client against a stand-in slurmctld: same files, and it dies where the real one does."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from meshd.errors import SlotsKept, SlurmError, SlurmRefused
from meshd.model.hardware import NodeShape
from meshd.runtime.run import Result
from meshd.slurm import files as files_module
from meshd.slurm.client import SlurmClient
from meshd.slurm.nodes import JoinedNode, PoolLine, Rendered, render
from meshd.slurm.publish import Publisher
from meshd.slurm.read_back import read_node_addrs, read_slots
from tests.unit.slurm.slurm_publisher import PublisherLab, wanted


@pytest.fixture
def world(tmp_path: Path) -> PublisherLab:
    return PublisherLab(tmp_path)


async def test_a_join_is_one_reconfigure_and_in_force(world: PublisherLab) -> None:
    assert await world.publisher.apply(wanted("a-2"))
    assert world.slurm.addresses["a-2"] == "100.64.0.2"
    assert world.publisher.applier.node_addrs == {"a-2": "100.64.0.2"}
    status = world.publisher.status()
    assert (status.reconfigures, status.restarts, status.problems) == (1, 0, ())
    assert status.last_applied_at == world.clock.now()


async def test_the_same_content_is_not_applied_twice_not_even_by_the_next_daemon(world: PublisherLab) -> None:
    await world.publisher.apply(wanted("a-2"))
    calls = len(world.slurm.calls)
    assert not await world.publisher.apply(wanted("a-2"))
    again = world.made()
    assert again.applier.node_addrs == {"a-2": "100.64.0.2"}
    assert not await again.apply(wanted("a-2"))
    assert len(world.slurm.calls) == calls


async def test_slurm_is_reconfigured_on_request_once_also_with_a_change(world: PublisherLab) -> None:
    task = asyncio.create_task(world.publisher.run())
    for content, reconfigures in ((None, 1), (wanted("a-2"), 2), (wanted("a-2"), 3)):
        if content is not None:
            world.publisher.request(content)
        world.publisher.reconfigure()
        for _ in range(200):
            await asyncio.sleep(0)
        assert world.publisher.status().reconfigures == reconfigures
    task.cancel()
    assert world.slurm.addresses["a-2"] == "100.64.0.2"


async def test_a_busy_or_open_slot_is_never_freed(world: PublisherLab) -> None:
    await world.publisher.apply(wanted("a-2"))
    before = world.files.current()
    for state in ("MIXED", "IDLE+COMPLETING", "IDLE"):
        world.slurm.states["a-2"] = state
        with pytest.raises(SlurmError, match="a-2"):
            await world.publisher.apply(wanted())
    world.slurm.states["a-2"] = "IDLE+DRAIN"
    world.slurm.jobs = [("7", "a-2", "1:00")]
    with pytest.raises(SlurmError, match="7"):
        await world.publisher.apply(wanted())
    assert world.files.current() == before
    world.slurm.jobs = []
    assert await world.publisher.apply(wanted())
    assert world.publisher.applier.node_addrs == {}


async def test_a_slot_with_jobs_keeps_its_line_and_all_others_go_on(world: PublisherLab) -> None:
    await world.publisher.apply(wanted("a-2"))
    world.slurm.jobs = [("7", "a-2", "1:00")]
    assert await world.publisher.apply(wanted("a-1", "a-3"))
    assert set(world.publisher.applier.node_addrs) == {"a-1", "a-2", "a-3"}
    assert set(world.publisher.applier.unsafe) == {"a-2"}
    reconfigures = world.slurm.count("scontrol reconfigure")
    with pytest.raises(SlotsKept, match="7"):
        await world.publisher.apply(wanted("a-1", "a-3"))
    assert world.slurm.count("scontrol reconfigure") == reconfigures
    assert world.publisher.status().problems == (), "a slot that keeps its line is no fault of Slurm's files"
    world.slurm.jobs = []
    world.slurm.states["a-2"] = "IDLE+DRAIN"
    assert await world.publisher.apply(wanted("a-1", "a-3"))
    assert set(world.publisher.applier.node_addrs) == {"a-1", "a-3"}
    assert world.publisher.applier.unsafe == {}


@pytest.mark.parametrize("bad", [{"a-3"}, {"a-1", "a-4"}, {"a-1", "a-2", "a-3", "a-4"}])
async def test_a_machine_whose_line_slurm_refuses_is_left_out_alone(world: PublisherLab, bad: set[str]) -> None:
    await world.publisher.apply(wanted("a-2"))
    before = world.publisher.applier.lines["a-2"]
    world.slurm.dislikes = {f"100.64.1.{slot[2:]}" for slot in bad}
    joined = [JoinedNode(f"a-{i}", f"100.64.1.{i}", NodeShape(2, 1, 1, 2, 1, 4096)) for i in range(1, 5)]
    content = render([PoolLine("a", "", 4, "", 0, 1, 1024)], joined, shapes_fixed=True)
    assert await world.publisher.apply(content)
    assert set(world.publisher.refused_lines.reasons) == bad
    taken = {node.slot: node.node_addr for node in joined if node.slot not in bad}
    kept = {"a-2": before.node_addr} if "a-2" in bad else {}
    assert world.publisher.applier.node_addrs == {**taken, **kept}
    reconfigures = world.slurm.count("scontrol reconfigure")
    assert not await world.publisher.apply(content), "what was refused is not tried again as it is"
    assert world.slurm.count("scontrol reconfigure") == reconfigures
    world.clock.time_s += 200
    assert await world.publisher.apply(content), "but after a while it is"
    assert set(world.publisher.refused_lines.reasons) == bad
    assert world.slurm.count("scontrol reconfigure") > reconfigures
    world.slurm.dislikes = set()
    mended = [replace(node, node_addr=node.node_addr.replace("64.1.", "64.2.")) for node in joined]
    assert await world.publisher.apply(render([PoolLine("a", "", 4, "", 0, 1, 1024)], mended, shapes_fixed=True))
    assert world.publisher.refused_lines.reasons == {}
    assert len(world.publisher.applier.node_addrs) == 4


async def test_a_refusal_that_no_machine_causes_is_told_as_before(world: PublisherLab) -> None:
    await world.publisher.apply(wanted("a-2"))
    world.slurm.dislikes = {"239.192.0.5"}
    with pytest.raises(SlurmRefused):
        await world.publisher.apply(wanted("a-1", "a-2", size=6))
    assert world.publisher.refused_lines.reasons == {}
    assert world.publisher.applier.node_addrs == {"a-2": "100.64.0.2"}


async def test_a_changed_node_set_restarts_an_old_slurmctld_after_the_last_job_start_is_saved(tmp_path: Path) -> None:
    world = PublisherLab(tmp_path, "22.05.8")
    await world.publisher.apply(wanted("a-2"))
    world.slurm.jobs = [("7", "a-2", "0:02")]
    world.clock.on_sleep = lambda: world.slurm.jobs.__setitem__(0, ("7", "a-2", "0:06"))
    reconfigures = world.slurm.count("scontrol reconfigure")
    await world.publisher.apply(wanted("a-2", size=6))
    assert world.restarts == 1
    assert world.slurm.count("scontrol reconfigure") == reconfigures
    assert world.clock.time_s >= 4
    assert "a-6" in world.slurm.addresses


async def test_a_restarted_slurmctld_that_takes_its_time_until_it_answers_is_not_dead(tmp_path: Path) -> None:
    world = PublisherLab(tmp_path, "22.05.8")
    await world.publisher.apply(wanted("a-2"))

    async def restart() -> None:
        world.restarts += 1
        world.slurm.running = False
        answers_s = world.clock.time_s + 8
        world.clock.on_sleep = lambda: world.slurm.start() if world.clock.time_s > answers_s else None

    slow = Publisher(files=world.files, client=SlurmClient(world.slurm, 5.0), clock=world.clock, restart=restart)
    assert await slow.apply(wanted("a-2", size=6))
    assert world.restarts == 1
    assert "a-6" in world.slurm.addresses


async def test_a_restarted_slurmctld_that_never_answers_is_put_back(tmp_path: Path) -> None:
    world = PublisherLab(tmp_path, "22.05.8")
    await world.publisher.apply(wanted("a-2"))

    async def restart() -> None:
        world.restarts += 1
        world.slurm.running = False
        if world.restarts > 1:
            world.slurm.start()

    dying = Publisher(files=world.files, client=SlurmClient(world.slurm, 5.0), clock=world.clock, restart=restart)
    with pytest.raises(SlurmRefused):
        await dying.apply(wanted("a-2", size=6))
    assert 10 < world.clock.time_s < 12
    assert world.restarts == 2
    assert "a-6" not in world.slurm.addresses


async def test_a_changed_node_set_is_a_reconfigure_on_a_new_slurmctld(world: PublisherLab) -> None:
    await world.publisher.apply(wanted(size=6))
    assert world.restarts == 0
    assert "a-6" in world.slurm.addresses


async def test_what_cannot_be_parsed_is_undone(world: PublisherLab) -> None:
    await world.publisher.apply(wanted("a-2"))
    good = wanted("a-2")
    bad = Rendered(good.nodes_conf + "Junk=1\n", good.gres_conf, good.slots, good.node_addrs)
    with pytest.raises(SlurmRefused, match="Unable to process configuration file"):
        await world.publisher.apply(bad)
    assert world.files.current().nodes == good.nodes_conf
    assert world.slurm.running
    assert world.publisher.applier.node_addrs == {"a-2": "100.64.0.2"}
    assert world.publisher.status().refusals == 1


async def test_a_slurmctld_that_died_is_started_again_on_the_last_good_file(tmp_path: Path) -> None:
    world = PublisherLab(tmp_path, "22.05.8")
    await world.publisher.apply(wanted("a-2"))
    world.slurm.addresses["late"] = "10.0.0.1"
    world.slurm.states["late"] = "IDLE"
    with pytest.raises(SlurmRefused, match="fatal: its own words"):
        await world.publisher.apply(replace(wanted("a-2", "a-3"), source=None))
    assert world.slurm.running
    assert world.restarts == 1
    assert read_node_addrs(world.files.current().nodes) == {"a-2": "100.64.0.2"}
    assert await world.publisher.apply(wanted("a-2", "a-3")), "and the next try succeeds"


async def test_a_slurmctld_that_dies_once_is_no_fault_of_the_newcomer(tmp_path: Path) -> None:
    world = PublisherLab(tmp_path, "22.05.8")
    await world.publisher.apply(wanted("a-2"))
    world.slurm.addresses["late"] = "10.0.0.1"
    world.slurm.states["late"] = "IDLE"
    assert await world.publisher.apply(wanted("a-2", "a-3"))
    assert world.restarts == 1
    assert set(world.publisher.applier.node_addrs) == {"a-2", "a-3"}
    assert world.publisher.refused_lines.reasons == {}


async def test_a_reconfigure_that_timed_out_but_happened_counts(world: PublisherLab) -> None:
    world.slurm.reconfigure_times_out = True
    assert await world.publisher.apply(wanted("a-1"))
    assert world.publisher.applier.node_addrs == {"a-1": "100.64.0.1"}


async def test_nothing_is_written_while_slurm_cannot_be_asked(world: PublisherLab) -> None:
    before = world.files.current()
    world.slurm.running = False
    with pytest.raises(SlurmError, match="Unable to contact"):
        await world.publisher.apply(wanted("a-1"))
    assert world.files.current() == before


async def test_a_full_disk_leaves_everything_and_is_told(world: PublisherLab, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.publisher.apply(wanted("a-1"))
    before = world.files.current()

    def full(path: Path, data: bytes, *, mode: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files_module, "write_atomic", full)
    with pytest.raises(SlurmError, match="No space left on device"):
        await world.publisher.apply(wanted("a-1", "a-2"))
    assert world.files.current() == before
    assert any("No space left" in text for text in world.publisher.status().problems)
    assert world.slurm.running
    monkeypatch.undo()
    assert await world.publisher.apply(wanted("a-1", "a-2"))
    assert world.publisher.status().problems == ()


async def test_a_hand_edit_is_told_kept_aside_and_overwritten_even_one_that_breaks_everything(
    world: PublisherLab,
) -> None:
    await world.publisher.apply(wanted("a-1"))
    (world.files.directory / "nodes.conf").write_text("Junk=1\n")
    assert any("edited by hand" in text for text in world.publisher.status().problems)
    assert await world.publisher.apply(wanted("a-1"))
    assert (world.files.directory / "nodes.conf.edited").read_text() == "Junk=1\n"
    assert read_slots(world.files.current().nodes) == wanted().slots
    assert await world.publisher.apply(wanted("a-1", "a-2"))
    assert any("remove *.edited" in text for text in world.publisher.status().problems), "told until it was looked at"
    (world.files.directory / "nodes.conf.edited").unlink()
    assert world.publisher.status().problems == ()


async def test_the_address_of_a_slot_with_a_job_is_not_changed(world: PublisherLab) -> None:
    await world.publisher.apply(wanted("a-1"))
    world.slurm.jobs = [("7", "a-1", "1:00")]
    other = wanted("a-1")
    moved = Rendered(
        other.nodes_conf.replace("100.64.0.1", "100.64.0.9"), other.gres_conf, other.slots, {"a-1": "100.64.0.9"}
    )
    with pytest.raises(SlurmError, match="a-1"):
        await world.publisher.apply(moved)
    world.slurm.jobs = []
    assert await world.publisher.apply(moved)


async def test_a_crash_between_writing_and_reconfigure_is_made_good(world: PublisherLab) -> None:
    await world.publisher.apply(wanted("a-1"))
    new = wanted("a-1", "a-2")
    await world.files.install(files_module.Texts(new.nodes_conf, new.gres_conf))
    again = world.made()
    assert again.applier.node_addrs == {"a-1": "100.64.0.1"}, "what was written is not yet in force"
    assert await again.apply(new)
    assert world.slurm.addresses["a-2"] == "100.64.0.2"
    assert again.status().problems == ()


@asynccontextmanager
async def running(publisher: Publisher) -> AsyncIterator[Callable[[Rendered], Awaitable[None]]]:
    """The publisher at work; what is given asks for a content and waits until it was tried."""

    async def publish(content: Rendered) -> None:
        publisher.request(content)
        async with asyncio.timeout(10):
            while publisher.status().pending:  # noqa: ASYNC110 - its clock moves while others run
                await asyncio.sleep(0)

    task = asyncio.create_task(publisher.run())
    yield publish
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_of_what_is_asked_for_in_one_breath_the_newest_is_put_in_force(world: PublisherLab) -> None:
    slots = ["a-1", "a-2", "a-3", "a-4"]
    async with running(world.publisher) as publish:
        for i in range(4):
            world.publisher.request(wanted(*slots[: i + 1]))
        await publish(wanted(*slots))
        assert set(world.publisher.applier.node_addrs) == set(slots)
        assert world.slurm.count("scontrol reconfigure") == 1
        await publish(wanted(*slots))
        assert world.slurm.count("scontrol reconfigure") == 1, "it is in force already"


async def test_a_failure_is_forgotten_once_what_failed_is_not_wanted_any_more(world: PublisherLab) -> None:
    await world.publisher.apply(wanted("a-2"))
    good = wanted("a-2")
    bad = Rendered(good.nodes_conf + "Junk=1\n", good.gres_conf, good.slots, good.node_addrs)
    async with running(world.publisher) as publish:
        await publish(bad)
        assert world.publisher.status().problems
        await publish(good)
        assert world.publisher.status().problems == (), "it is in force, and nothing else is asked for"


async def test_a_refused_content_is_tried_again_by_itself_after_growing_pauses(world: PublisherLab) -> None:
    good = wanted("a-2")
    bad = Rendered(good.nodes_conf + "Junk=1\n", good.gres_conf, good.slots, good.node_addrs)
    tried: list[float] = []
    async with running(world.publisher) as publish:
        while len(tried) < 8:
            refusals = world.publisher.status().refusals
            await publish(bad)
            if world.publisher.status().refusals > refusals:
                tried.append(world.clock.time_s)
            world.clock.time_s += 1
        pauses = [round(later - sooner) for sooner, later in pairwise(tried)]
        assert pauses[:5] == [10, 20, 40, 80, 160]
        assert pauses[5:] == [300, 300]
        world.slurm.takes_junk = True  # the cause is gone
        world.clock.time_s += 300
        await publish(bad)
        assert world.publisher.status().problems == ()


@pytest.mark.parametrize(
    ("job", "reservation"),
    [
        (("b", ""), ""), (("a,b", ""), ""), (("a", "a-4"), ""), (("a", "a-[3-4]"), ""),
        (None, "ReservationName=r1 Nodes=a-4 PartitionName=(null)\n"),
        (None, "ReservationName=r1 Nodes=(null) PartitionName=b\n"),
    ],
)  # fmt: skip
async def test_what_a_waiting_job_or_a_reservation_names_does_not_go(
    world: PublisherLab, job: tuple[str, str] | None, reservation: str
) -> None:
    """Slurm would end the job with NODE_FAIL, and delete the reservation."""
    two = [PoolLine("a", "", 4, "", 0, 1, 1024), PoolLine("b", "", 1, "", 0, 1, 1024)]
    await world.publisher.apply(render(two, [], shapes_fixed=True))
    before = world.files.current()
    world.slurm.waiting = [job] if job else []
    world.slurm.reservations = reservation
    with pytest.raises(SlurmError):
        await world.publisher.apply(wanted(size=3))
    assert world.files.current() == before
    world.slurm.waiting, world.slurm.reservations = [("a", "a-1")], "ReservationName=r1 Nodes=a-1 PartitionName=a\n"
    assert await world.publisher.apply(wanted(size=3)), "they name what stays"


async def test_a_refused_content_is_not_tried_again_at_once(world: PublisherLab) -> None:
    good = wanted("a-2")
    bad = Rendered(good.nodes_conf + "Junk=1\n", good.gres_conf, good.slots, good.node_addrs)
    async with running(world.publisher) as publish:
        for _ in range(2):
            await publish(bad)
            assert world.publisher.status().refusals == 1 and world.publisher.status().problems
        await publish(good)
        assert world.publisher.status().problems == ()
        assert set(world.publisher.applier.node_addrs) == {"a-2"}


async def test_a_reason_cannot_carry_a_line_break(tmp_path: Path) -> None:
    calls: list[Sequence[str]] = []

    async def record(argv: Sequence[str], **_: object) -> Result:
        calls.append(argv)
        return Result(tuple(argv), 0, f"SLURM_VERSION = {version}\n", "")

    version = "22.05.8"
    client = SlurmClient(record, 5.0)
    await client.drain("a-1", "spot notice\nstate=resume")
    await client.set_down("a-1", "meshd: lost")
    assert calls == [
        ["scontrol", "update", "nodename=a-1", "state=drain", "reason=spot notice state=resume"],
        ["scontrol", "update", "nodename=a-1", "state=down", "reason=meshd: lost"],
        ["scontrol", "show", "config"],
    ]
    version = "24.11.5"
    newer = SlurmClient(record, 5.0)
    await newer.set_down("a-1", "meshd: lost")
    assert calls[-1] == ["scontrol", "update", "nodename=a-1", "instanceid=", "instancetype="]
    for name in ("a-1,a-2", "ALL nodes", "-x", "a-[1-2]", ""):
        with pytest.raises(SlurmError):
            await client.drain(name, "x")


@pytest.mark.parametrize("version", ["22.05.8", "24.11.5"])
async def test_cloud_nodes_get_the_addresses_of_the_file_and_keep_those_that_were_set(
    tmp_path: Path, version: str
) -> None:
    world = PublisherLab(tmp_path, version)
    await world.publisher.apply(wanted(from_queue=True))
    client = SlurmClient(world.slurm, 5.0)
    await client.set_node_addrs({"a-2": "100.64.0.2", "a-3": "100.64.0.3"})
    await world.publisher.apply(wanted("a-1", "a-2", from_queue=True))
    addrs = {name: address for name, address in world.slurm.addresses.items() if address.startswith("100.")}
    assert addrs == {"a-1": "100.64.0.1", "a-2": "100.64.0.2", "a-3": "100.64.0.3"}
    await world.publisher.apply(wanted("a-2", "a-3", from_queue=True))
    assert world.slurm.addresses["a-1"] == "239.192.0.0"
    assert (world.restarts, len(world.publisher.applier.node_addrs)) == (0, 2)
    await world.publisher.apply(wanted("a-2"))
    assert world.restarts == (version < "23.11"), "22.05 forgets only so that they were CLOUD nodes"
    assert world.slurm.states == {"a-1": "DOWN", "a-2": "IDLE", "a-3": "DOWN", "a-4": "DOWN"}


async def test_an_address_that_cannot_be_set_is_no_refusal_of_the_file(world: PublisherLab) -> None:
    await world.publisher.apply(wanted(from_queue=True))
    world.slurm.takes_no_addresses = True
    assert await world.publisher.apply(wanted("a-1", from_queue=True))
    assert world.publisher.status().refusals == 0
    assert world.publisher.applier.node_addrs == {"a-1": "100.64.0.1"}
