"""No interval has more orders than `guards.max_launches` says, across restarts too; and each has its turn."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from meshd.codes import EventKind
from meshd.model import plan as p
from meshd.model.desired import Desired, Policy, Pool, Target
from meshd.model.guards import Guards
from meshd.model.ids import MachineName, PoolName, SlotName
from meshd.model.machine import COUNTS_AS_SUPPLY, Machine, Phase, Removal
from meshd.model.observed import Fresh, SlurmJob
from meshd.plan.guards import leaving_room
from meshd.plan.planner import plan
from meshd.store.journal import Journal
from meshd.store.launches import Launches
from tests.tiers import bounded
from tests.unit.worlds import OFFER, machine, slurm, snapshot

BEGIN = datetime(2026, 1, 31, 22, tzinfo=UTC)
POOLS = {name: Pool(name, "h100", 1, 12, ("aws",)) for name in ("a", "b")}
INTERVAL_S = 600.0

actions = st.one_of(
    st.tuples(st.just("scale"), st.sampled_from("ab"), st.integers(0, 12)),
    st.tuples(st.just("job"), st.sampled_from("ab"), st.integers(2, 6)),
    st.tuples(st.just("wait"), st.integers(1, 900)),
    st.tuples(st.just("order"), st.integers(0, 8), st.sampled_from(["made", "refused", "busy", "unclear", "flies"])),
    st.tuples(st.just("end"), st.integers(0, 20)),
    st.tuples(st.just("restart")),
)


class History:
    """Machines as the real journal keeps them, ordered as the real planner says; every order is counted here too."""

    def __init__(self, directory: Path, most: int, gang_max: int) -> None:
        self.path, self.now = directory / "journal.db", BEGIN
        self.guards = Guards(most, INTERVAL_S)
        self.policy = Policy(gang_max={"aws": gang_max} if gang_max > 1 else {}, boot_timeout_s=300.0)
        self.targets: dict[str, int] = {}
        self.busy: set[str] = set()
        self.count = 0
        self.sent: dict[str, datetime] = {}
        self.free_since: dict[str, datetime] = {}
        self.open()

    def open(self) -> None:
        self.journal = Journal(self.path)
        self.launches = Launches(self.journal, self.now)

    def put(self, one: Machine) -> None:
        self.journal.put(one, EventKind.PHASE, "", self.now)

    def plan(self) -> p.Plan:
        desired = Desired(
            "lab", POOLS, {name: Target(name, gpus) for name, gpus in self.targets.items()}, self.policy,
            guards=self.guards, launches=self.launches.within(INTERVAL_S, self.now),
        )  # fmt: skip
        seen = snapshot(
            instances={"aws": Fresh((), self.now - timedelta(days=1))}, offers={"aws": Fresh((OFFER,), self.now)},
            slurm=Fresh(slurm(), self.now),
        )  # fmt: skip
        return plan(desired, self.journal.machines(), seen, self.now, busy=self.busy)

    def note(self, name: str, since: datetime | None) -> None:
        """As the executor does in each tick."""
        one = self.journal.machine(name)
        assert one is not None
        self.journal.note(replace(one, turn_since=since))

    def request(self, pool: str, slot: str, gang: str, jobs: tuple[str, ...]) -> None:
        self.count += 1
        name = MachineName(f"m{self.count:04}")
        self.put(
            Machine(
                name, PoolName(pool), SlotName(slot), "aws", OFFER, Phase.REQUESTED, self.now, self.now, region="r1",
                gang=gang, for_jobs=jobs, by_queue=bool(jobs),
            )
        )  # fmt: skip

    def tick(self) -> None:
        found = self.plan()
        for name in found.held_orders:
            self.free_since.pop(name, None)
            self.note(name, None)
        for step in found.steps:
            if isinstance(step, p.Launch):
                for name in step.machines:
                    self.free_since.setdefault(name, self.now)
                    self.note(name, self.free_since[name])
            if isinstance(step, p.RequestMachine):
                self.request(step.pool, step.subject, f"{step.gang} {self.now}" if step.gang else "", ())
            elif isinstance(step, p.Remove):
                one = self.journal.machine(step.subject)
                assert one is not None
                self.put(replace(one, removal=step.removal))
            elif isinstance(step, p.Move) and step.to is Phase.GONE:
                one = self.journal.machine(step.subject)
                assert one is not None
                free_s = (self.now - self.free_since.get(one.name, self.now)).total_seconds()
                assert not step.failure or free_s > 300, "an order that waits for its turn is not given up"
                self.put(replace(one.moved(Phase.GONE, self.now, step.reason), gone_at=self.now))

    def order(self, number: int, answer: str) -> None:
        launches = [step for step in self.plan().steps if isinstance(step, p.Launch)]
        for step in launches[: number + 1]:
            for name in step.machines:
                one = self.journal.machine(name)
                assert one is not None and one.phase is Phase.REQUESTED
                if answer == "flies":  # its call is about to go out
                    self.busy.add(name)
                    continue
                self.call(one, answer)
        if answer == "flies":
            for name in sorted(self.busy):
                one = self.journal.machine(name)
                if one is not None and one.phase is Phase.REQUESTED and int(name[1:]) % 2:
                    self.call(one, "made")
            self.busy = {name for name in self.busy if not int(name[1:]) % 2}

    def call(self, one: Machine, answer: str) -> None:
        called = replace(
            one.moved(Phase.LAUNCHING, self.now, ""), launch_called_at=self.now, launch_first_called_at=self.now,
            launch_attempts=1,
        )  # fmt: skip
        self.put(called)
        if answer == "made":
            self.put(replace(called.moved(Phase.BOOTING, self.now, ""), instance_id=f"i-{one.name}"))
        elif answer == "refused":
            self.put(replace(called.moved(Phase.GONE, self.now, ""), gone_at=self.now, refusal="no_capacity"))
        elif answer == "busy":
            self.put(called.moved(Phase.REQUESTED, self.now, ""))
        if answer in {"made", "unclear"}:
            self.sent[one.name] = self.now
            times = [at for at in self.sent.values() if self.now - at < timedelta(seconds=INTERVAL_S)]
            assert self.guards.max_launches is not None and len(times) <= self.guards.max_launches

    def do(self, action: tuple[object, ...]) -> None:
        match action:
            case ("scale", str(pool), int(gpus)):
                self.targets[pool] = gpus
            case ("job", str(pool), int(nodes)):
                taken = {m.slot for m in self.journal.machines()}
                free = [s for i in range(1, 13) if (s := f"{pool}-{i}") not in taken][:nodes]
                self.targets[pool] = self.targets.get(pool, 0) + len(free)
                for slot in free:
                    self.request(pool, slot, "", (f"job {self.now}",))
            case ("wait", int(seconds)):
                for _ in range(seconds // 90 + 1):
                    self.now += timedelta(seconds=seconds / (seconds // 90 + 1))
                    self.tick()
            case ("order", int(number), str(answer)):
                self.order(number, answer)
            case ("end", int(number)):
                machines = [m for m in self.journal.machines() if m.instance_id]
                if machines:
                    one = machines[number % len(machines)]
                    self.put(replace(one, phase=Phase.GONE, phase_since=self.now, gone_at=self.now))
            case ("restart",):
                self.busy = set()
                self.journal.close()
                self.open()
        self.tick()

    def serve_all(self) -> None:
        """Every order has its turn, in the order in which they were decided."""
        self.busy = set()
        self.targets = {}
        self.tick()
        waiting = [m for m in self.journal.machines() if m.phase is Phase.REQUESTED and not m.removal]
        assert self.guards.max_launches is not None
        for _ in range(2 + 2 * len(waiting)):
            while launches := [step for step in self.plan().steps if isinstance(step, p.Launch)]:
                for name in launches[0].machines:
                    one = self.journal.machine(name)
                    assert one is not None
                    self.call(one, "made")
            self.now += timedelta(seconds=INTERVAL_S)
            self.tick()
        left = [m for m in self.journal.machines() if m.phase is Phase.REQUESTED and not m.removal]
        assert not left, "an order never has its turn"


@settings(max_examples=bounded(60, 2000), deadline=None)
@given(st.lists(actions, min_size=5, max_size=40), st.integers(1, 7), st.sampled_from([1, 4, 12]))
def test_no_interval_has_more_orders_than_allowed_and_each_has_its_turn(
    history: list[tuple[object, ...]], most: int, gang_max: int
) -> None:
    with TemporaryDirectory() as directory:
        found = History(Path(directory), most, gang_max)
        for action in history:
            found.do(action)
        found.serve_all()
        found.journal.close()


@settings(max_examples=bounded(100, 3000), deadline=None)
@given(st.data())
def test_no_more_nodes_leave_at_once_than_allowed(data: st.DataObject) -> None:
    """As many as there is room for are given back; those that wait for a job take no room, so nobody waits for ever."""
    most = data.draw(st.integers(1, 4))
    machines, jobs = [], []
    for index in range(1, data.draw(st.integers(1, 8)) + 1):
        phase = data.draw(st.sampled_from(sorted(COUNTS_AS_SUPPLY | {Phase.DRAINING, Phase.TERMINATING, Phase.LOST})))
        one = machine(phase, index=index)
        removal = data.draw(st.sampled_from([None, Removal.SCALE_DOWN, Removal.BY_USER]))
        machines.append(replace(one, removal=removal if phase is Phase.READY else one.removal))
        if data.draw(st.booleans()):
            jobs.append(SlurmJob(f"{index}", "u", "h100", "RUNNING", (one.slot,)))
    view = replace(slurm(), jobs=tuple(jobs))
    room = leaving_room(Guards(max_leaving=most), machines, view)
    at_work = {job.nodes[0] for job in jobs}
    leave = [
        m
        for m in machines
        if m.phase is Phase.TERMINATING
        or (m.slot not in at_work and (m.phase is Phase.DRAINING or (m.phase is Phase.READY and m.removal)))
    ]
    assert room == max(0, most - len(leave))
    assert leaving_room(Guards(), machines, view) is None
