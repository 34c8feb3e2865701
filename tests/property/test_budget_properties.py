"""Never past a limit, whatever happens; and what everybody used adds up to what the machines cost."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from meshd.codes import EventKind
from meshd.model import plan as p
from meshd.model.budget import MICROS, BudgetLimits
from meshd.model.desired import Desired, Pool, Target
from meshd.model.ids import MachineName, PoolName, SlotName
from meshd.model.ledger import JobUse, Life
from meshd.model.machine import Machine, Phase
from meshd.model.observed import Fresh
from meshd.plan.ledger import Rounding, budget_of, shares
from meshd.plan.planner import plan
from meshd.provider_api import Offer
from meshd.store.journal import Journal
from meshd.store.ledger import Ledger
from tests.tiers import bounded
from tests.unit.worlds import AWS, snapshot

BEGIN = datetime(2026, 1, 31, 22, tzinfo=UTC)
OFFERS = tuple(
    Offer(AWS, "r1", "r1a", f"g.{gpus}", "h100-sxm", gpus, 80, 8, 65536, usd)
    for gpus, usd in ((1, 1.0), (2, 3.1), (4, 2.9), (8, 11.3))
)
POOLS = {name: Pool(name, "h100", 1, 6, ("aws",), gpus_per_node_max=8) for name in ("a", "b")}
LEAST_S = 900.0

limits = st.one_of(
    st.builds(BudgetLimits, usd_per_hour=st.floats(0.5, 30)),
    st.builds(BudgetLimits, usd_per_day=st.floats(0.1, 9)),
    st.builds(BudgetLimits, usd_per_hour=st.floats(5, 30), usd_per_month=st.floats(0.1, 20)),
)
actions = st.one_of(
    st.tuples(st.just("scale"), st.sampled_from("ab"), st.integers(0, 16)),
    st.tuples(st.just("wait"), st.integers(1, 30_000)),
    st.tuples(st.just("order"), st.integers(0, 3)),
    st.tuples(st.just("refuse"), st.integers(0, 3)),
    st.tuples(st.just("end"), st.integers(0, 20)),
    st.tuples(st.just("restart")),
    st.tuples(st.just("limits"), st.fixed_dictionaries({}, optional={"": limits, "a": limits})),
)


class History:
    """Machines as the real journal and ledger keep them, ordered as the real planner says."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "journal.db"
        self.now = BEGIN
        self.limits: dict[str, BudgetLimits] = {}
        self.targets: dict[str, int] = {}
        self.count = 0
        self.costs: list[tuple[str, float, datetime, datetime | None]] = []
        self.open()

    def open(self) -> None:
        self.journal = Journal(self.path)
        self.ledger = Ledger(self.journal, {"aws": Rounding(1.0, 60.0)}, lambda: self.now)

    def put(self, machine: Machine) -> None:
        self.journal.put(machine, EventKind.PHASE, "", self.now)

    def plan(self) -> p.Plan:
        machines = self.journal.machines()
        budget = budget_of(self.limits, self.ledger.spent(self.now), machines, {"aws": LEAST_S}, self.now)
        targets = {name: Target(name, gpus) for name, gpus in self.targets.items()}
        seen = snapshot(offers={"aws": Fresh(OFFERS, self.now)}, slurm=Fresh(snapshot().slurm.value, self.now))  # type: ignore[union-attr]
        return plan(Desired("lab", POOLS, targets, budget=budget), machines, seen, self.now)

    def tick(self) -> None:
        """Journal what is to be ordered, and withdraw what the budget does not allow any more."""
        for step in self.plan().steps:
            if isinstance(step, p.RequestMachine):
                self.count += 1
                self.put(
                    Machine(
                        MachineName(f"m{self.count}"),
                        PoolName(step.pool),
                        SlotName(step.subject),
                        "aws",
                        step.offer,
                        Phase.REQUESTED,
                        self.now,
                        self.now,
                        region="r1",
                    )
                )
            elif isinstance(step, p.Move) and step.to is Phase.GONE:
                machine = self.journal.machine(step.subject)
                assert machine is not None
                self.put(replace(machine.moved(Phase.GONE, self.now, step.reason), gone_at=self.now))
        assert self.plan() == self.plan(), "the plan follows from what is known alone"

    def order(self, number: int) -> None:
        """Send the orders that the plan sends now, and check them against the sums of our own."""
        for step in [s for s in self.plan().steps if isinstance(s, p.Launch)][: number + 1]:
            machine = self.journal.machine(step.subject)
            assert machine is not None
            machine = machine.moved(Phase.LAUNCHING, self.now, "")
            self.put(replace(machine, launch_called_at=self.now))
            machine = machine.moved(Phase.BOOTING, self.now, "")
            self.put(replace(machine, launch_called_at=self.now, launched_at=self.now, instance_id=f"i-{machine.name}"))
            self.costs.append((machine.pool, machine.usd_per_hour, self.now, None))
            self.check(machine.pool)

    def check(self, pool: str) -> None:
        """What is spent, and what the machines cost at least from now on, is within every limit of the pool."""
        for scope in ("", pool):
            found = self.limits.get(scope, BudgetLimits())
            mine = [one for one in self.costs if scope in ("", one[0])]
            rate = sum(usd for _, usd, _, until in mine if until is None)
            assert found.usd_per_hour is None or rate <= found.usd_per_hour + 1e-4
            midnight = self.now.replace(hour=0, minute=0, second=0, microsecond=0)
            for limit, since in ((found.usd_per_day, midnight), (found.usd_per_month, midnight.replace(day=1))):
                spent = sum(
                    usd * max(0.0, ((until or max(self.now, begun + timedelta(seconds=LEAST_S))) - max(begun, since))
                    / timedelta(hours=1)) for _, usd, begun, until in mine
                )  # fmt: skip
                assert limit is None or spent <= limit + 1e-3, (scope, spent, limit)

    def end(self, number: int) -> None:
        machines = [m for m in self.journal.machines() if m.instance_id]
        if machines:
            machine = machines[number % len(machines)]
            index = [i for i, one in enumerate(self.costs) if one[3] is None and one[2] == machine.launched_at]
            at = next(i for i in index if self.costs[i][0] == machine.pool and self.costs[i][1] == machine.usd_per_hour)
            over = max(self.now, self.costs[at][2] + timedelta(seconds=60))  # a minute is billed at least
            self.costs[at] = (*self.costs[at][:3], over)
            machine = replace(machine, phase=Phase.GONE, phase_since=self.now, gone_at=self.now)
            self.put(machine)

    def refuse(self, number: int) -> None:
        waiting = [m for m in self.journal.machines() if m.phase is Phase.REQUESTED]
        for machine in waiting[: number + 1]:
            called = replace(machine.moved(Phase.LAUNCHING, self.now, ""), launch_called_at=self.now)
            self.put(called)
            self.put(replace(called.moved(Phase.GONE, self.now, "sold out"), gone_at=self.now))

    def do(self, action: tuple[object, ...]) -> None:
        match action:
            case ("scale", str(pool), int(gpus)):
                self.targets[pool] = gpus
            case ("wait", int(seconds)):
                self.now += timedelta(seconds=seconds)
            case ("order", int(number)):
                self.order(number)
            case ("refuse", int(number)):
                self.refuse(number)
            case ("end", int(number)):
                self.end(number)
            case ("restart",):
                self.journal.close()
                self.open()
            case ("limits", dict(found)):
                self.limits = found
        self.tick()
        if action[0] != "refuse":
            self.order(2)


@settings(max_examples=bounded(40, 1000), deadline=None)
@given(st.lists(actions, min_size=5, max_size=30), limits)
def test_nothing_is_ever_ordered_past_a_limit(history: list[tuple[object, ...]], first: BudgetLimits) -> None:
    with TemporaryDirectory() as directory:
        found = History(Path(directory))
        found.limits = {"": first}
        found.targets = {"a": 9, "b": 5}
        found.tick()
        for action in history:
            found.do(action)
        found.journal.close()


seconds = st.integers(0, 20_000).map(lambda s: BEGIN + timedelta(seconds=s, microseconds=s * 7919 % MICROS))


@st.composite
def life(draw: st.DrawFn, number: int) -> Life:
    begin, end = sorted((draw(seconds), draw(seconds)))
    return Life(
        machine=f"m{number}", pool="a", slot=f"a-{draw(st.integers(1, 3))}", provider="aws", region="r1",
        instance_type="g", instance_id="i", spot=False, gpus=draw(st.sampled_from((0, 1, 8))), vcpus=8,
        micros_per_hour=draw(st.integers(0, 99_999_999)), since=begin, until=draw(st.sampled_from((None, end))),
        increment_s=draw(st.sampled_from((1.0, 60.0))), minimum_s=draw(st.sampled_from((0.0, 60.0))),
    )  # fmt: skip


@st.composite
def use(draw: st.DrawFn, number: int) -> JobUse:
    begin, end = sorted((draw(seconds), draw(seconds)))
    return JobUse(
        f"{number}", f"a-{draw(st.integers(1, 3))}", "u", "", "", begin, draw(st.sampled_from((None, end))),
        draw(st.integers(0, 9)), draw(st.integers(0, 9)),
    )  # fmt: skip


@settings(max_examples=bounded(150, 5000), deadline=None)
@given(st.data())
def test_the_parts_add_up_to_the_whole_exactly(data: st.DataObject) -> None:
    lives = [data.draw(life(number)) for number in range(data.draw(st.integers(1, 5)))]
    uses = [data.draw(use(number)) for number in range(data.draw(st.integers(0, 8)))]
    start, end = sorted((data.draw(seconds), data.draw(seconds)))
    now = BEGIN + timedelta(seconds=20_100)
    found = list(shares(lives, uses, start, end, now))
    whole: Counter[str] = Counter()
    for one in lives:
        whole[one.machine] += one.cost(max(start, one.since), min(end, one.billed_until(now)))
    parts: Counter[str] = Counter()
    for share in found:
        assert share.micros >= 0
        parts[share.life.machine] += share.micros
    assert +parts == +whole
    cut = data.draw(seconds)
    if start <= cut <= end:
        halves = [*shares(lives, uses, start, cut, now), *shares(lives, uses, cut, end, now)]
        assert sum(one.micros for one in halves) == sum(whole.values()), "nothing is lost between two days"
