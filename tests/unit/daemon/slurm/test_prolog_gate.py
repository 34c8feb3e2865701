"""Prologs that wait at FIFOs, and the bell by which they tell."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshd.codes import EventKind
from meshd.config import PoolSettings
from meshd.daemon.agents import AgentQueues
from meshd.daemon.slurm.bell import Bell
from meshd.daemon.slurm.prolog_gate import ALLOWED, LOOK_S, SILENT_S, TOUCH_S, JobUsers, PrologGate
from meshd.errors import SlurmError
from meshd.model.machine import Phase
from meshd.model.observed import Fresh, SlurmJob, SlurmNode, SlurmView
from meshd.runtime.clock import SystemClock
from meshd.store.journal import Journal
from tests import waiting
from tests.clocks import HandClock
from tests.live import live_settings
from tests.unit.worlds import NOW, machine

PROGRAM = Path(__file__).resolve().parents[4] / "deploy/head/programs/prolog-slurmctld"
UP, BOOTS = ("ALLOCATED", "CLOUD"), ("ALLOCATED", "CLOUD", "POWERING_UP", "NOT_RESPONDING")


class World:
    """A gate with its surroundings."""

    def __init__(self, directory: Path, clock: Any) -> None:
        self.directory, self.clock = directory, clock
        self.journal, self.agents = Journal(directory / "journal.db"), AgentQueues()
        self.slurm: Any = SimpleNamespace(current=None)
        self.hurried = 0
        self.timeout_s: float | None = None
        self.read, self.lacks = True, set[tuple[str, int]]()
        self.asked = list[int]()
        self.shows(BOOTS, BOOTS)
        pool = PoolSettings(gpu="h100", gpus_per_node=8, max_nodes=4)
        self.gate = PrologGate(
            directory, live_settings(pools={"h100": pool}), self.journal, self.agents, self.slurm, self.hurry, self,
            clock, self.users(),
        )  # fmt: skip

    def hurry(self) -> None:
        self.hurried += 1

    def users(self) -> JobUsers:
        return JobUsers({"ann": 1000}.get, self.read_for, lambda name, uid: (name, uid) not in self.lacks)

    def read_for(self, uid: int, since_s: float) -> bool:
        self.asked.append(uid)
        return self.read

    async def prolog_timeout_s(self) -> float | None:
        return self.timeout_s

    def shows(self, *states: tuple[str, ...], job: str = "7") -> None:
        nodes = {f"h100-{n}": SlurmNode(f"h100-{n}", "a", frozenset(words)) for n, words in enumerate(states, 1)}
        jobs = (SlurmJob(job, "ann", "h100", "CONFIGURING", tuple(nodes)),)
        self.slurm.current = Fresh(SlurmView("24.11.5", nodes, jobs), self.clock.now())

    def has(self, name: str) -> bool:
        return (self.directory / "prolog" / name).exists()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path, HandClock())
    yield world
    world.journal.close()


def fifo(world: World, name: str) -> int:
    """A prolog's FIFO with its reader."""
    path = world.directory / "prolog" / name
    os.mkfifo(path, 0o600)
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK)


def ended(fd: int) -> bool:
    """Whether meshd has been there: the file has no name any more."""
    return os.fstat(fd).st_nlink == 0


async def waits(world: World, fd: int, line: str, *states: tuple[str, ...], seconds: int) -> None:
    """A prolog that tells its line each second, beside such nodes, waits for so many seconds and ends with the next."""
    for _ in range(seconds):
        world.gate.heard([line])
        world.shows(*states)
        await world.gate.reconcile()
        assert not ended(fd)
        world.clock.t_s += 1
    world.clock.t_s += 1
    await world.gate.reconcile()
    assert ended(fd)
    os.close(fd)


async def test_one_that_waits_is_ended_when_its_nodes_are_up(world: World) -> None:
    assert await world.gate.reconcile() == TOUCH_S
    fd = fifo(world, "7.100")
    world.gate.heard(["7.100 h100-[1-2]"])
    assert await world.gate.reconcile() == LOOK_S
    assert (ended(fd), world.hurried) == (False, 1)
    await world.gate.reconcile()
    assert world.hurried == 1, "Slurm is read at once only for a new one"
    world.clock.t_s += 60
    world.gate.heard(["7.100 h100-[1-2]"])
    world.shows(UP, UP)
    assert await world.gate.reconcile() == TOUCH_S
    assert ended(fd)
    os.close(fd)


async def test_what_waits_is_seen_without_a_ring(world: World) -> None:
    """After a restart of meshd."""
    await world.gate.reconcile()
    fd = fifo(world, "7.100")
    world.shows(UP, UP)
    await world.gate.reconcile()
    assert ended(fd)
    os.close(fd)


async def test_one_without_a_reader_is_tried_again_and_removed_when_it_is_silent(world: World) -> None:
    await world.gate.reconcile()
    os.mkfifo(world.directory / "prolog/7.100", 0o600)
    world.shows(UP, UP)
    assert await world.gate.reconcile() == LOOK_S
    assert world.has("7.100")
    world.clock.t_s += SILENT_S
    assert await world.gate.reconcile() == TOUCH_S
    assert not world.has("7.100")


async def test_one_without_a_reader_is_removed_when_its_job_is_gone(world: World) -> None:
    await world.gate.reconcile()
    os.mkfifo(world.directory / "prolog/7.100", 0o600)
    await world.gate.reconcile()
    assert world.has("7.100"), "its job has its nodes: the prolog is just between two looks"
    world.clock.t_s += 3
    world.shows(BOOTS, BOOTS, job="8")
    assert await world.gate.reconcile() == TOUCH_S
    assert not world.has("7.100")


async def test_one_that_goes_on_telling_is_kept(world: World) -> None:
    await world.gate.reconcile()
    fd = fifo(world, "7.100")
    for _ in range(10):
        world.gate.heard(["7.100 h100-[1-2]"])
        world.shows(BOOTS, BOOTS)
        await world.gate.reconcile()
        world.clock.t_s += SILENT_S / 2
    assert world.has("7.100")
    os.close(fd)


async def test_other_files_are_left_alone(world: World) -> None:
    await world.gate.reconcile()
    directory = world.directory / "prolog"
    (directory / "7.100").write_text("")
    (directory / "8.100").symlink_to("/dev/null")
    os.mkfifo(directory / "x", 0o600)
    os.mkfifo(directory / "-7.100", 0o600)
    world.gate.heard(["nonsense", "", "../7.100 h100-1", "9.1 h100-[", "9.2 " + "x" * 100])
    world.shows(UP, UP)
    assert await world.gate.reconcile() == TOUCH_S
    assert len(list(directory.iterdir())) == 4


async def test_names_are_waited_for_for_some_seconds(world: World) -> None:
    for n in (1, 2):
        world.journal.put(machine(Phase.TESTING, index=n), "phase", "as it is", NOW)
    world.agents.keep({"h100-1": "a", "h100-2": "b"}, set(), set())
    await world.gate.reconcile()
    fd = fifo(world, "7.100")
    world.gate.heard(["7.100 h100-[1-2]"])
    world.shows(UP, UP)
    await world.gate.reconcile()
    assert not ended(fd)
    for n in (1, 2):
        world.agents.offer_roster(machine(Phase.TESTING, index=n).name, 1, 0.0)
    await world.gate.reconcile()
    assert ended(fd)
    os.close(fd)


async def job_of_new_user(world: World, line: str) -> int:
    """A job on a machine that does not have its user; the reader of its FIFO."""
    one = machine(Phase.READY, index=1)
    world.journal.put(one, "phase", "as it is", NOW)
    world.shows(UP)
    world.lacks = {(one.name, 1000)}
    await world.gate.reconcile()
    fd = fifo(world, "7.100")
    world.gate.heard([line])
    await world.gate.reconcile()
    return fd


@pytest.mark.parametrize("told", ["h100-1 1000", " 1000", "h100-1", "h100-1 x", "h100-1 ", ""])
async def test_a_job_waits_until_its_machine_has_its_user(world: World, told: str) -> None:
    """Who it is says the prolog; of one that does not, Slurm."""
    fd = await job_of_new_user(world, f"7.100 {told}")
    assert not ended(fd)
    world.read, world.lacks = False, set()
    await world.gate.reconcile()
    assert not ended(fd), "the head's accounts are not read yet"
    world.read = True
    await world.gate.reconcile()
    assert ended(fd) and set(world.asked) == {1000}
    os.close(fd)


@pytest.mark.parametrize("timeout_s", [None, 40.0])
async def test_a_job_whose_machine_does_not_get_its_user_starts_and_it_is_told_once(
    world: World, timeout_s: float | None
) -> None:
    """After a minute, or when slurmctld ends the wait."""
    world.timeout_s = timeout_s
    fd = await job_of_new_user(world, "7.100 h100-1 1000")
    await waits(world, fd, "7.100 h100-1 1000", UP, seconds=29 if timeout_s else 59)
    events = world.journal.events()
    assert [one.machine for one in events if one.kind == EventKind.ACCOUNTS] == [machine(Phase.READY, index=1).name]
    second = fifo(world, "8.100")
    world.gate.heard(["8.100 h100-1 1000"])
    for _ in range(62):
        world.gate.heard(["8.100 h100-1 1000"])
        world.shows(UP, job="8")
        await world.gate.reconcile()
        world.clock.t_s += 1
    assert ended(second)
    os.close(second)
    assert len(world.journal.events()) == len(events)


async def test_a_job_on_ready_machines_starts_by_what_slurm_said_before(world: World) -> None:
    world.journal.put(machine(Phase.READY, index=1), "phase", "as it is", NOW)
    world.shows(UP)
    world.clock.t_s += 4
    await world.gate.reconcile()
    fd = fifo(world, "8.100")
    world.gate.heard(["8.100 h100-1"])
    await world.gate.reconcile()
    assert (ended(fd), world.hurried) == (True, 0)
    os.close(fd)


async def test_it_ends_before_slurmctld_does(world: World) -> None:
    world.timeout_s = 60.0
    await world.gate.reconcile()
    fd = fifo(world, "7.100")
    await waits(world, fd, "7.100 h100-[1-2]", BOOTS, BOOTS, seconds=49)


async def test_prologs_see_that_meshd_lives_and_how_long_they_may_wait(world: World) -> None:
    world.timeout_s = 300.0
    await world.gate.reconcile()
    file = world.directory / ALLOWED
    assert file.read_text() == "290\n"
    world.timeout_s = None
    for passed_s, touched in ((TOUCH_S - 1, False), (1, True), (TOUCH_S - 1, False), (1, True)):
        os.utime(file, (0, 0))
        world.clock.t_s += passed_s
        await world.gate.reconcile()
        assert (file.stat().st_mtime > 0) == touched
    world.clock.t_s += 300
    await world.gate.reconcile()
    assert file.read_text() == "3600\n"


@pytest.mark.parametrize("hours", [1, -1])
async def test_a_clock_that_is_set_does_not_end_the_wait(hours: int, world: World) -> None:
    await world.gate.reconcile()
    fd = fifo(world, "7.100")
    world.gate.heard(["7.100 h100-[1-2]"])
    await world.gate.reconcile()
    world.clock.shift = timedelta(hours=hours)
    world.clock.t_s += 1
    world.shows(BOOTS, BOOTS)
    await world.gate.reconcile()
    assert not ended(fd)
    world.shows(UP, UP)
    await world.gate.reconcile()
    assert ended(fd)
    os.close(fd)


async def test_a_directory_that_is_gone_is_told(world: World) -> None:
    world.gate = PrologGate(
        world.directory / "gone",
        live_settings(),
        world.journal,
        world.agents,
        world.slurm,
        world.hurry,
        world,
        world.clock,
        world.users(),
    )
    with pytest.raises(SlurmError):
        await world.gate.reconcile()


async def test_a_roster_is_known_by_its_version() -> None:
    agents = AgentQueues()
    agents.keep({"h100-1": "a"}, {"m"}, set())
    agents.offer_roster("m", 1, 0.0)
    assert agents.knows("m", ["h100-1"])
    assert not agents.knows("m", ["h100-2"])
    agents.keep({"h100-1": "a", "h100-2": "b"}, {"m"}, set())
    assert agents.knows("m", ["h100-1"])
    assert not agents.knows("m", ["h100-2"])
    agents.offer_roster("m", 2, 0.0)
    assert agents.knows("m", ["h100-1", "h100-2"])
    agents.keep({"h100-1": "c", "h100-2": "b"}, {"m"}, set())
    assert not agents.knows("m", ["h100-1"]), "another address"
    agents.offer_roster("m", 99, 0.0)
    assert not agents.knows("m", ["h100-2"]), "the number is of another life of meshd"


class Rung:
    """A bell that counts."""

    def __init__(self, directory: Path) -> None:
        self.looks, self.lines = 0, list[str]()
        self.bell = Bell(directory, self.look, self.lines.extend, SystemClock())

    def look(self) -> None:
        self.looks += 1


def ring(directory: Path, data: bytes) -> None:
    fd = os.open(directory / "bell", os.O_WRONLY | os.O_NONBLOCK)
    os.write(fd, data)
    os.close(fd)


async def until(condition: Callable[[], bool]) -> None:
    async def look() -> bool:
        return condition()

    await waiting.until(look, bool, "what is waited for", every_s=0.005)


async def test_rings_close_together_are_one_look(tmp_path: Path) -> None:
    rung = Rung(tmp_path)
    task = asyncio.create_task(rung.bell.run())
    await until(lambda: (tmp_path / "bell").exists())
    began_s = time.monotonic()
    for _ in range(200):
        ring(tmp_path, b"\n")
        await asyncio.sleep(0)
    await until(lambda: rung.looks > 0)
    await asyncio.sleep(1.2)
    assert 1 <= rung.looks <= 2 + (time.monotonic() - began_s) / 0.5
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    with pytest.raises(OSError):
        ring(tmp_path, b"\n")


async def test_lines_of_prologs_are_handed_on_and_do_not_have_slurm_read(tmp_path: Path) -> None:
    rung = Rung(tmp_path)
    await rung.bell.reconcile()
    ring(tmp_path, b"7.100 h100-[1-2]\n8.3 \n")
    await until(lambda: len(rung.lines) == 2)
    assert (rung.lines, rung.looks) == (["7.100 h100-[1-2]", "8.3 "], 0)
    await rung.bell.aclose()


async def test_a_bell_that_was_removed_is_made_again(tmp_path: Path) -> None:
    rung = Rung(tmp_path)
    await rung.bell.reconcile()
    (tmp_path / "bell").unlink()
    await rung.bell.reconcile()
    ring(tmp_path, b"7.100 a\n")
    await until(lambda: bool(rung.lines))
    await rung.bell.aclose()


async def test_a_bell_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "bell").write_text("")
    with pytest.raises(SlurmError):
        await Rung(tmp_path).bell.reconcile()


async def test_two_hundred_programs_at_once_on_nodes_that_are_up(tmp_path: Path) -> None:
    """The real program, the real FIFOs; each is let go in a moment, and none is left behind."""
    world = World(tmp_path, SystemClock())
    world.journal.put(machine(Phase.READY, index=1), "phase", "as it is", NOW)
    world.shows(UP)
    bell = Bell(tmp_path, world.hurry, world.gate.heard, SystemClock())
    tasks = [asyncio.create_task(one.run()) for one in (bell, world.gate)]
    await until(lambda: (tmp_path / "bell").exists() and (tmp_path / ALLOWED).exists())
    text = PROGRAM.read_text().replace("/run/meshd", str(tmp_path)).replace("/etc/meshd", str(tmp_path))
    program = tmp_path / "program"
    program.write_text(re.sub(r"^own=.*", "own=/none", text, flags=re.M))
    program.chmod(0o755)

    async def run(number: int) -> int:
        process = await asyncio.create_subprocess_exec(
            program, env={"SLURM_JOB_ID": str(number), "SLURM_JOB_NODELIST": "h100-1"}, stderr=subprocess.PIPE
        )
        _, said = await process.communicate()
        assert said == b""
        return process.returncode or 0

    async with asyncio.timeout(240):  # a thousand starts of programs: 7 s of both cores, where they do nothing else
        assert await asyncio.gather(*(run(number) for number in range(1, 201))) == [0] * 200
    await until(lambda: world.gate.waiting == 0)
    assert list((tmp_path / "prolog").iterdir()) == []
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    world.journal.close()
