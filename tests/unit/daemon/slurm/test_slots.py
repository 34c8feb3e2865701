"""The controller of free slots: in which order Slurm is told, and what happens when it refuses."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from meshd.codes import DemandCode, ProblemCode
from meshd.config.models import PoolSettings
from meshd.daemon.slurm.slots import OFF_STRAY_S, STRAY_S, STUCK_S, SlotController
from meshd.errors import SlurmError
from meshd.model.machine import Phase
from meshd.model.observed import Fresh, Observation, SlurmJob, SlurmNode, SlurmView
from meshd.model.plan import OpenSlots, Plan, RefusedDemand
from meshd.plan.waiting import Wait, WaitingJob
from meshd.store.journal import Journal
from tests.clocks import HandClock
from tests.live import live_settings
from tests.unit.worlds import GONE_DARK, NOW, machine

UNTIL = NOW.replace(hour=13)


class Slurm:
    """Notes what it is told, and shows what was set."""

    def __init__(self) -> None:
        self.seen = SlurmView("24.11.5", {}, (), power_saving=True)
        self.orders: list[str] = []
        self.said = ""
        self.refuses: frozenset[str] = frozenset()
        self.before_view: Callable[[], None] = lambda: None

    def set(self, *nodes: SlurmNode, jobs: tuple[SlurmJob, ...] = ()) -> None:
        self.seen = replace(self.seen, nodes={node.name: node for node in nodes}, jobs=jobs)

    async def view(self) -> SlurmView:
        self.before_view()
        return self.seen

    def _told(self, verb: str, *words: str) -> None:
        if verb in self.refuses:
            raise SlurmError(f"{verb}: Invalid")
        self.orders.append(" ".join((verb, *words)))

    async def drain_slots(self, slots: Collection[str], reason: str) -> None:
        self._told("drain", *slots)
        nodes = {
            name: replace(node, states=node.states | {"DRAIN"}, reason=reason) if name in slots else node
            for name, node in self.seen.nodes.items()
        }
        self.seen = replace(self.seen, nodes=nodes)

    async def resume_slots(self, slots: Collection[str]) -> None:
        if slots:
            self._told("resume", *slots)

    async def power_down(self, slots: Collection[str], reason: str = "", *, force: bool = False) -> None:
        if not slots:
            return
        self._told("force" if force else "asap", *slots)
        if not force:
            nodes = {
                name: replace(node, states=node.states | {"DRAIN", "POWER_DOWN"}, reason=reason)
                if name in slots
                else node
                for name, node in self.seen.nodes.items()
            }
            self.seen = replace(self.seen, nodes=nodes)

    async def requeue(self, job: str) -> None:
        self._told("requeue", job)
        nodes = {
            name: replace(node, states=(node.states - {"MIXED"}) | {"IDLE"}) for name, node in self.seen.nodes.items()
        }
        self.seen = replace(self.seen, jobs=(), nodes=nodes)

    async def update_job(
        self, job: str, *, wait_s: float | None = None, admin_comment: str | None = None, requeue: bool | None = None
    ) -> None:
        self._told("job", job, f"wait={wait_s}", f"requeue={requeue}")

    async def tell(self, job: str, message: str) -> None:
        self._told("tell", job)
        self.said = message

    async def cancel(self, job: str) -> None:
        self._told("cancel", job)


class World:
    """The controller with a Slurm that obeys."""

    def __init__(self, directory: Path) -> None:
        self.clock, self.slurm, self.journal = HandClock(), Slurm(), Journal(directory / "j.db")
        self.waiting: tuple[WaitingJob, ...] = ()
        self.plan: Plan | None = Plan(open_slots={"h100": OpenSlots(4)})
        self.source: Observation[SlurmView] | None = None
        pool = PoolSettings(gpu="h100", gpus_per_node=1, max_nodes=4, providers=["aws"])
        self.controller = SlotController(
            live_settings(pools={"h100": pool}), self.journal, self.slurm, self.clock, self, plan=lambda: self.plan,
            waiting=lambda: self.waiting, changed=lambda: None,
        )  # fmt: skip

    @property
    def current(self) -> Observation[SlurmView]:
        return self.source or Fresh(self.slurm.seen, self.clock.now())

    async def step(self) -> list[str]:
        self.slurm.orders.clear()
        await self.controller.reconcile()
        return self.slurm.orders

    def codes(self) -> list[str]:
        return [one.code for one in self.controller.problems()]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.journal.close()


def slot(index: int, *states: str, reason: str = "") -> SlurmNode:
    return SlurmNode(f"h100-{index}", f"239.192.0.{index}", frozenset({"CLOUD", *states}), reason)


REFUSED = RefusedDemand("h100", ("7",), ("h100-1",), DemandCode.NO_CAPACITY, "aws has none", UNTIL)
CLOSED = Plan(refused=(REFUSED,), open_slots={"h100": OpenSlots(0, DemandCode.NO_CAPACITY, "aws has none", UNTIL)})


def waiting(**changes: object) -> SlurmJob:
    return replace(SlurmJob("7", "u", "h100", "CONFIGURING", ("h100-1",)), **changes)  # type: ignore[arg-type]


async def test_slots_are_drained_before_the_job_goes_back_and_powered_down_after_it(world: World) -> None:
    world.plan = CLOSED
    world.slurm.set(slot(1, "MIXED", "POWERING_UP"), slot(2, "IDLE", "POWERED_DOWN"), jobs=(waiting(),))
    wait_s = (UNTIL - NOW).total_seconds()
    assert await world.step() == [
        "drain h100-2", "requeue 7", f"job 7 wait={wait_s} requeue=None", "asap h100-1", "force h100-1",
    ]  # fmt: skip


async def test_a_job_that_forbids_it_is_requeued_all_the_same_since_it_never_started(world: World) -> None:
    world.plan = CLOSED
    world.slurm.set(slot(1, "MIXED", "POWERING_UP"), jobs=(waiting(requeue=False),))
    orders = await world.step()
    assert orders[:2] == ["job 7 wait=None requeue=True", "requeue 7"]
    assert orders[2].endswith("requeue=False")


async def test_a_job_that_slurm_put_back_itself_gets_its_time_and_its_comment(world: World) -> None:
    world.plan = CLOSED
    world.slurm.set(slot(1, "MIXED", "POWERING_UP"), jobs=(waiting(),))
    world.slurm.refuses = frozenset({"requeue"})
    looks = iter((False, True))

    def put_back() -> None:
        if next(looks, True):
            world.slurm.set(slot(1, "IDLE", "POWERED_DOWN"), jobs=(waiting(state="PENDING", nodes=()),))

    world.slurm.before_view = put_back
    assert any(order.startswith("job 7 wait=") for order in await world.step())


async def test_who_waits_at_a_terminal_is_told_and_let_go(world: World) -> None:
    world.plan = CLOSED
    world.slurm.set(slot(1, "MIXED", "POWERING_UP", "DRAIN", reason="meshd: x"), jobs=(waiting(batch=False),))
    assert await world.step() == ["tell 7", "cancel 7"], "its slot is powered down once it is free"
    assert world.slurm.said.endswith("aws has none")
    text = "no h100 can be had before 12:30 UTC: aws has none in 3 zones"
    world.waiting = (WaitingJob("7", "u", "h100", 1, 0, Wait.REFUSED, UNTIL, text, batch=False),)
    await world.step()
    assert world.slurm.said == f"meshd: {text}", "in short, where that is known"


async def test_a_job_that_gets_the_slot_meanwhile_keeps_it(world: World) -> None:
    world.plan = replace(world.plan or Plan(), unwanted_slots=("h100-1",))
    world.slurm.set(slot(1, "IDLE", "POWERING_UP"))
    seen = world.current

    def allocate() -> None:
        if world.slurm.orders:  # it was closed a moment ago, and a job had got it before that
            (node,) = world.slurm.seen.nodes.values()
            world.slurm.set(replace(node, states=(node.states - {"IDLE"}) | {"MIXED"}), jobs=(waiting(),))

    world.source, world.slurm.before_view = seen, allocate
    assert await world.step() == ["asap h100-1"]
    world.source, world.plan = None, Plan(open_slots={"h100": OpenSlots(4)})
    assert await world.step() == ["resume h100-1"]


async def test_one_job_that_has_ended_does_not_keep_the_others_waiting(world: World) -> None:
    world.plan = replace(CLOSED, refused=(REFUSED, replace(REFUSED, jobs=("8",), slots=("h100-2",))))
    jobs = (waiting(batch=False), waiting(id="8", nodes=("h100-2",), batch=False))
    world.slurm.set(*(slot(n, "MIXED", "POWERING_UP", "DRAIN", reason="meshd: x") for n in (1, 2)), jobs=jobs)
    world.slurm.refuses = frozenset({"tell"})
    assert await world.step() == []
    assert world.codes() == []


async def test_a_slot_that_is_up_without_a_machine_is_given_time(world: World) -> None:
    world.slurm.set(slot(1, "IDLE"))
    assert await world.step() == []
    world.clock.t_s += STRAY_S
    assert await world.step() == ["force h100-1"]


@pytest.mark.parametrize(("phase", "address", "given_back"), [
    (Phase.GONE, "239.192.0.1", True),
    (Phase.GONE, "100.64.0.9", False),  # the node is another machine's, which the journal does not know
    (Phase.LOST, "239.192.0.1", False),  # its cloud has not said so
])  # fmt: skip
async def test_a_job_whose_machine_is_gone_does_not_run_for_ever(
    world: World, phase: Phase, address: str, given_back: bool
) -> None:
    world.journal.put(machine(phase, left_slurm=True, tailnet_ip=address), "phase", "given", NOW)
    job = SlurmJob("7", "u", "h100", "RUNNING", ("h100-1",))
    world.slurm.set(slot(1, "ALLOCATED", "NOT_RESPONDING"), jobs=(job,))
    assert await world.step() == []
    world.clock.t_s += STRAY_S
    assert await world.step() == (["force h100-1"] if given_back else [])


async def test_a_slot_that_stays_silent_after_a_resume_is_soon_free_again(world: World) -> None:
    """No job can get it meanwhile, and it is off: no machine is behind it."""
    world.slurm.set(slot(1, "IDLE", "POWERED_DOWN", "NOT_RESPONDING"))
    assert await world.step() == []
    world.clock.t_s += OFF_STRAY_S
    assert await world.step() == ["force h100-1"]


async def test_people_are_told_of_slots_that_do_not_come_back(world: World) -> None:
    world.slurm.set(slot(1, "DOWN", "POWERED_DOWN", reason="ResumeTimeout reached"))
    world.slurm.refuses = frozenset({"force"})
    await world.step()
    assert world.codes() == [ProblemCode.SLOTS_STUCK]
    world.clock.t_s += STUCK_S + 1
    await world.step()
    assert world.codes() == [ProblemCode.SLOTS_STUCK]
    world.slurm.set(slot(1, "IDLE", "POWERED_DOWN"))
    await world.step()
    assert world.codes() == []


async def test_nothing_is_done_while_slurm_or_the_plan_is_not_known(world: World) -> None:
    world.slurm.set(slot(1, "DOWN", "POWERED_DOWN"))
    world.source = GONE_DARK
    assert await world.step() == []
    world.source, world.plan = None, None
    assert await world.step() == []
