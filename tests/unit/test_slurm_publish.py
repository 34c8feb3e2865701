"""The publisher and the client against a stand-in slurmctld: same files, and it dies where the real one does."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from meshd.errors import CommandError, CommandTimeout, SlurmError, SlurmRefused
from meshd.model.hardware import NodeShape
from meshd.runtime.run import Result
from meshd.slurm import files as files_module
from meshd.slurm.client import SlurmClient
from meshd.slurm.conf import parse
from meshd.slurm.files import SlurmFiles, Texts
from meshd.slurm.headfiles import put
from meshd.slurm.nodes import JoinedNode, PoolLine, Rendered, read_joined, read_slots, render
from meshd.slurm.publish import Publisher
from meshd.slurm.show import SEPARATOR, hostlist

POOL = PoolLine("a", "", 4, "", 0, 1, 1024)


class JumpingClock:
    """Time passes only by sleeping, and at once."""

    def __init__(self) -> None:
        self.time_s = 0.0
        self.on_sleep: Callable[[], None] = lambda: None

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.time_s)

    def monotonic_s(self) -> float:
        return self.time_s

    async def sleep(self, delay_s: float) -> None:
        self.time_s += delay_s
        self.on_sleep()
        await asyncio.sleep(0)


class StandInSlurm:
    """slurmctld with the commands that meshd uses. `version` decides what a changed node set does to it."""

    def __init__(self, directory: Path, version: str) -> None:
        self.directory = directory
        self.version = version
        self.running = True
        self.addresses: dict[str, str] = {}
        self.states: dict[str, str] = {}
        self.jobs: list[tuple[str, str, str]] = []
        self.waiting: list[tuple[str, str]] = []
        self.reservations = ""
        self.takes_junk = False
        self.calls: list[str] = []
        self.reconfigure_times_out = False
        self.dislikes: set[str] = set()
        self.start()

    def start(self) -> None:
        """Start with what is in the file; end at once when it cannot be read."""
        table = self._table()
        self.running = table is not None
        if table is not None:
            self.addresses = table
            free = set(table) - set(read_joined((self.directory / "nodes.conf").read_text()))
            self.states = {name: "DOWN" if name in free else self.states.get(name, "IDLE") for name in table}

    def _table(self) -> dict[str, str] | None:
        text = (self.directory / "nodes.conf").read_text()
        table: dict[str, str] = {}
        for line in parse(text).lines:
            if not self.takes_junk and any(pair.key == "Junk" for pair in line.pairs):
                return None
            if line.value("NodeName"):
                names, addresses = hostlist(line.value("NodeName") or ""), hostlist(line.value("NodeAddr") or "")
                table |= dict(zip(names, addresses, strict=True))
        return table

    async def __call__(
        self, argv: Sequence[str], *, timeout_s: float, stdin: bytes | None = None,
        env: Mapping[str, str] | None = None, check: bool = True,
    ) -> Result:  # fmt: skip
        self.calls.append(" ".join(argv))
        if self._table() is None:
            return self._end(argv, 1, "scontrol: fatal: Unable to process configuration file", check)
        if argv[:2] == ["scontrol", "ping"]:
            return self._end(argv, 0, f"Slurmctld(primary) at head is {'UP' if self.running else 'DOWN'}\n", check)
        if not self.running:
            return self._end(argv, 1, "slurm error: Unable to contact slurm controller (connect failure)", check)
        match argv[:3]:
            case ["scontrol", "show", "config"]:
                return self._end(argv, 0, f"SLURM_VERSION = {self.version}\n", check)
            case ["scontrol", "show", "nodes"]:
                lines = [f"NodeName={n} NodeAddr={a} State={self.states[n]}\n" for n, a in self.addresses.items()]
                return self._end(argv, 0, "".join(lines), check)
            case ["scontrol", "show", "reservation"]:
                return self._end(argv, 0, self.reservations or "No reservations in the system\n", check)
            case ["scontrol", "reconfigure"]:
                return self._reconfigure(argv, timeout_s, check)
            case ["squeue", *_]:
                lines = [
                    SEPARATOR.join([i, "u", "a", "RUNNING", node, "None", "1", "N/A", "N/A", "(null)", age, "", "\n"])
                    for i, node, age in self.jobs
                ]
                lines += [
                    SEPARATOR.join([str(i), "u", part, "PENDING", "", "", "1", "", "", "", "0:00", nodes, "\n"])
                    for i, (part, nodes) in enumerate(self.waiting, 90)
                ]
                return self._end(argv, 0, "".join(lines), check)
        raise AssertionError(f"not known: {argv}")

    def _reconfigure(self, argv: Sequence[str], timeout_s: float, check: bool) -> Result:
        table = self._table()
        assert table is not None
        if self.dislikes & set(table.values()):
            return self._end(argv, 1, "slurm_reconfigure error: Unspecified error", check)
        if self.version < "23.11" and set(table) != set(self.addresses):
            self.running = False
            return self._end(argv, 1, "slurm_reconfigure error: Zero Bytes were transmitted or received", check)
        self.start()
        if self.reconfigure_times_out:
            raise CommandTimeout(list(argv), timeout_s)
        return self._end(argv, 0, "", check)

    @staticmethod
    def _end(argv: Sequence[str], code: int, text: str, check: bool) -> Result:
        if code and check:
            raise CommandError(list(argv), code, text)
        return Result(tuple(argv), code, "" if code else text, text if code else "")

    def count(self, call: str) -> int:
        return sum(1 for made in self.calls if made.startswith(call))


class World:
    def __init__(self, directory: Path, version: str = "24.11.5") -> None:
        self.files = SlurmFiles(directory, write=self.write)
        (directory / "nodes.conf").write_text(render([POOL], [], shapes_fixed=True).nodes_conf)
        (directory / "gres.conf").write_text("")
        self.slurm = StandInSlurm(directory, version)
        self.clock = JumpingClock()
        self.restarts = 0
        self.publisher = self.made()

    def made(self, wait_until_quiet: Callable[[], Awaitable[None]] | None = None) -> Publisher:
        """A publisher as after a start of the daemon."""
        return Publisher(
            files=self.files, client=SlurmClient(self.slurm, 5.0), clock=self.clock, restart=self.restart,
            last_words=self.last_words, wait_until_quiet=wait_until_quiet,
        )  # fmt: skip

    async def write(self, texts: Texts) -> None:
        """Without a look at the lines: what Slurm refuses must get through to it."""
        put(self.files.directory, texts.nodes, texts.gres)

    async def restart(self) -> None:
        self.restarts += 1
        self.slurm.start()

    async def last_words(self) -> str:
        return "fatal: its own words" if not self.slurm.running else ""


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def wanted(*slots: str, size: int = 4) -> Rendered:
    joined = [JoinedNode(slot, f"100.64.0.{slot[2:]}", NodeShape(2, 1, 1, 2, 1, 4096)) for slot in slots]
    return render([PoolLine("a", "", size, "", 0, 1, 1024)], joined, shapes_fixed=True)


async def test_a_join_is_one_reconfigure_and_in_force(world: World) -> None:
    assert await world.publisher.apply(wanted("a-2"))
    assert world.slurm.addresses["a-2"] == "100.64.0.2"
    assert world.publisher.published == {"a-2": "100.64.0.2"}
    status = world.publisher.status()
    assert (status.reconfigures, status.restarts, status.problems) == (1, 0, ())
    assert status.last_applied_at == world.clock.now()


async def test_the_same_content_is_not_applied_twice_not_even_by_the_next_daemon(world: World) -> None:
    await world.publisher.apply(wanted("a-2"))
    calls = len(world.slurm.calls)
    assert not await world.publisher.apply(wanted("a-2"))
    again = world.made()
    assert again.published == {"a-2": "100.64.0.2"}
    assert not await again.apply(wanted("a-2"))
    assert len(world.slurm.calls) == calls


async def test_a_busy_or_open_slot_is_never_freed(world: World) -> None:
    await world.publisher.apply(wanted("a-2"))
    before = world.files.current()
    for state, pattern in (("MIXED", "jobs"), ("IDLE+COMPLETING", "jobs"), ("IDLE", "open to jobs")):
        world.slurm.states["a-2"] = state
        with pytest.raises(SlurmError, match=pattern):
            await world.publisher.apply(wanted())
    world.slurm.states["a-2"] = "IDLE+DRAIN"
    world.slurm.jobs = [("7", "a-2", "1:00")]
    with pytest.raises(SlurmError, match="7"):
        await world.publisher.apply(wanted())
    assert world.files.current() == before
    world.slurm.jobs = []
    assert await world.publisher.apply(wanted())
    assert world.publisher.published == {}


async def test_a_slot_with_jobs_keeps_its_line_and_all_others_go_on(world: World) -> None:
    await world.publisher.apply(wanted("a-2"))
    world.slurm.jobs = [("7", "a-2", "1:00")]
    assert await world.publisher.apply(wanted("a-1", "a-3"))
    assert set(world.publisher.published) == {"a-1", "a-2", "a-3"}
    assert set(world.publisher.unsafe) == {"a-2"}
    reconfigures = world.slurm.count("scontrol reconfigure")
    with pytest.raises(SlurmError, match="7"):
        await world.publisher.apply(wanted("a-1", "a-3"))
    assert world.slurm.count("scontrol reconfigure") == reconfigures
    world.slurm.jobs = []
    world.slurm.states["a-2"] = "IDLE+DRAIN"
    assert await world.publisher.apply(wanted("a-1", "a-3"))
    assert set(world.publisher.published) == {"a-1", "a-3"}
    assert world.publisher.unsafe == {}


@pytest.mark.parametrize("bad", [{"a-3"}, {"a-1", "a-4"}, {"a-1", "a-2", "a-3", "a-4"}])
async def test_a_machine_whose_line_slurm_refuses_is_left_out_alone(world: World, bad: set[str]) -> None:
    await world.publisher.apply(wanted("a-2"))
    before = world.publisher.lines["a-2"]
    world.slurm.dislikes = {f"100.64.1.{slot[2:]}" for slot in bad}
    joined = [JoinedNode(f"a-{i}", f"100.64.1.{i}", NodeShape(2, 1, 1, 2, 1, 4096)) for i in range(1, 5)]
    content = render([PoolLine("a", "", 4, "", 0, 1, 1024)], joined, shapes_fixed=True)
    assert await world.publisher.apply(content)
    assert set(world.publisher.culprits.reasons) == bad
    taken = {node.slot: node.node_addr for node in joined if node.slot not in bad}
    kept = {"a-2": before.node_addr} if "a-2" in bad else {}
    assert world.publisher.published == {**taken, **kept}
    reconfigures = world.slurm.count("scontrol reconfigure")
    assert not await world.publisher.apply(content), "what was refused is not tried again as it is"
    assert world.slurm.count("scontrol reconfigure") == reconfigures
    world.clock.time_s += 200
    assert await world.publisher.apply(content), "but after a while it is"
    assert set(world.publisher.culprits.reasons) == bad
    assert world.slurm.count("scontrol reconfigure") > reconfigures
    world.slurm.dislikes = set()
    mended = [replace(node, node_addr=node.node_addr.replace("64.1.", "64.2.")) for node in joined]
    assert await world.publisher.apply(render([PoolLine("a", "", 4, "", 0, 1, 1024)], mended, shapes_fixed=True))
    assert world.publisher.culprits.reasons == {}
    assert len(world.publisher.published) == 4


async def test_a_refusal_that_no_machine_causes_is_told_as_before(world: World) -> None:
    await world.publisher.apply(wanted("a-2"))
    world.slurm.dislikes = {"239.192.0.5"}
    with pytest.raises(SlurmRefused):
        await world.publisher.apply(wanted("a-1", "a-2", size=6))
    assert world.publisher.culprits.reasons == {}
    assert world.publisher.published == {"a-2": "100.64.0.2"}


async def test_a_changed_node_set_restarts_an_old_slurmctld_after_the_last_job_start_is_saved(tmp_path: Path) -> None:
    world = World(tmp_path, "22.05.8")
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
    world = World(tmp_path, "22.05.8")
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
    world = World(tmp_path, "22.05.8")
    await world.publisher.apply(wanted("a-2"))

    async def restart() -> None:
        world.restarts += 1
        world.slurm.running = False
        if world.restarts > 1:
            world.slurm.start()

    dying = Publisher(files=world.files, client=SlurmClient(world.slurm, 5.0), clock=world.clock, restart=restart)
    with pytest.raises(SlurmRefused, match="slurmctld ended; the last good configuration is back"):
        await dying.apply(wanted("a-2", size=6))
    assert 10 < world.clock.time_s < 12
    assert world.restarts == 2
    assert "a-6" not in world.slurm.addresses


async def test_a_changed_node_set_is_a_reconfigure_on_a_new_slurmctld(world: World) -> None:
    await world.publisher.apply(wanted(size=6))
    assert world.restarts == 0
    assert "a-6" in world.slurm.addresses


async def test_what_cannot_be_parsed_is_undone(world: World) -> None:
    await world.publisher.apply(wanted("a-2"))
    good = wanted("a-2")
    bad = Rendered(good.nodes_conf + "Junk=1\n", good.gres_conf, good.slots, good.joined)
    with pytest.raises(SlurmRefused, match="Unable to process configuration file"):
        await world.publisher.apply(bad)
    assert world.files.current().nodes == good.nodes_conf
    assert world.slurm.running
    assert world.publisher.published == {"a-2": "100.64.0.2"}
    assert world.publisher.status().refusals == 1


async def test_a_slurmctld_that_died_is_started_again_on_the_last_good_file(tmp_path: Path) -> None:
    world = World(tmp_path, "22.05.8")
    await world.publisher.apply(wanted("a-2"))
    world.slurm.addresses["late"] = "10.0.0.1"
    world.slurm.states["late"] = "IDLE"
    with pytest.raises(SlurmRefused, match=r"fatal: its own words.*last good"):
        await world.publisher.apply(replace(wanted("a-2", "a-3"), source=None))
    assert world.slurm.running
    assert world.restarts == 1
    assert read_joined(world.files.current().nodes) == {"a-2": "100.64.0.2"}
    assert await world.publisher.apply(wanted("a-2", "a-3")), "and the next try succeeds"


async def test_a_slurmctld_that_dies_once_is_no_fault_of_the_newcomer(tmp_path: Path) -> None:
    world = World(tmp_path, "22.05.8")
    await world.publisher.apply(wanted("a-2"))
    world.slurm.addresses["late"] = "10.0.0.1"
    world.slurm.states["late"] = "IDLE"
    assert await world.publisher.apply(wanted("a-2", "a-3"))
    assert world.restarts == 1
    assert set(world.publisher.published) == {"a-2", "a-3"}
    assert world.publisher.culprits.reasons == {}


async def test_a_reconfigure_that_timed_out_but_happened_counts(world: World) -> None:
    world.slurm.reconfigure_times_out = True
    assert await world.publisher.apply(wanted("a-1"))
    assert world.publisher.published == {"a-1": "100.64.0.1"}


async def test_nothing_is_written_while_slurm_cannot_be_asked(world: World) -> None:
    before = world.files.current()
    world.slurm.running = False
    with pytest.raises(SlurmError, match="Unable to contact"):
        await world.publisher.apply(wanted("a-1"))
    assert world.files.current() == before


async def test_a_full_disk_leaves_everything_and_is_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_a_hand_edit_is_told_kept_aside_and_overwritten_even_one_that_breaks_everything(world: World) -> None:
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


async def test_the_address_of_a_slot_with_a_job_is_not_changed(world: World) -> None:
    await world.publisher.apply(wanted("a-1"))
    world.slurm.jobs = [("7", "a-1", "1:00")]
    other = wanted("a-1")
    moved = Rendered(
        other.nodes_conf.replace("100.64.0.1", "100.64.0.9"), other.gres_conf, other.slots, {"a-1": "100.64.0.9"}
    )
    with pytest.raises(SlurmError, match="still has jobs"):
        await world.publisher.apply(moved)
    world.slurm.jobs = []
    assert await world.publisher.apply(moved)


async def test_a_crash_between_writing_and_reconfigure_is_made_good(world: World) -> None:
    await world.publisher.apply(wanted("a-1"))
    new = wanted("a-1", "a-2")
    await world.files.install(files_module.Texts(new.nodes_conf, new.gres_conf))
    again = world.made()
    assert again.published == {"a-1": "100.64.0.1"}, "what was written is not yet in force"
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


async def test_of_what_is_asked_for_in_one_breath_the_newest_is_put_in_force(world: World) -> None:
    slots = ["a-1", "a-2", "a-3", "a-4"]
    async with running(world.publisher) as publish:
        for i in range(4):
            world.publisher.request(wanted(*slots[: i + 1]))
        await publish(wanted(*slots))
        assert set(world.publisher.published) == set(slots)
        assert world.slurm.count("scontrol reconfigure") == 1
        await publish(wanted(*slots))
        assert world.slurm.count("scontrol reconfigure") == 1, "it is in force already"


async def test_a_failure_is_forgotten_once_what_failed_is_not_wanted_any_more(world: World) -> None:
    await world.publisher.apply(wanted("a-2"))
    good = wanted("a-2")
    bad = Rendered(good.nodes_conf + "Junk=1\n", good.gres_conf, good.slots, good.joined)
    async with running(world.publisher) as publish:
        await publish(bad)
        assert world.publisher.status().problems
        await publish(good)
        assert world.publisher.status().problems == (), "it is in force, and nothing else is asked for"


async def test_a_refused_content_is_tried_again_by_itself_after_growing_pauses(world: World) -> None:
    good = wanted("a-2")
    bad = Rendered(good.nodes_conf + "Junk=1\n", good.gres_conf, good.slots, good.joined)
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
    world: World, job: tuple[str, str] | None, reservation: str
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


async def test_a_refused_content_is_not_tried_again_at_once(world: World) -> None:
    good = wanted("a-2")
    bad = Rendered(good.nodes_conf + "Junk=1\n", good.gres_conf, good.slots, good.joined)
    async with running(world.publisher) as publish:
        for _ in range(2):
            await publish(bad)
            assert world.publisher.status().refusals == 1 and world.publisher.status().problems
        await publish(good)
        assert world.publisher.status().problems == ()
        assert set(world.publisher.published) == {"a-2"}


async def test_a_reason_cannot_carry_a_line_break(tmp_path: Path) -> None:
    calls: list[Sequence[str]] = []

    async def record(argv: Sequence[str], **_: object) -> Result:
        calls.append(argv)
        return Result(tuple(argv), 0, "", "")

    client = SlurmClient(record, 5.0)
    await client.drain("a-1", "spot notice\nstate=resume")
    await client.set_down("a-1", "meshd: lost")
    assert calls == [
        ["scontrol", "update", "nodename=a-1", "state=drain", "reason=spot notice state=resume"],
        ["scontrol", "update", "nodename=a-1", "state=down", "reason=meshd: lost"],
    ]
    for name in ("a-1,a-2", "ALL nodes", "-x", "a-[1-2]", ""):
        with pytest.raises(SlurmError):
            await client.drain(name, "x")
