"""The tick: observe, plan, begin. Whatever changes wakes it; the timer is only a fallback."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from meshd.api.schema import ProblemView
from meshd.codes import EventKind
from meshd.daemon.controller import Controller, Wakes
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.machine_store import MachineStore
from meshd.daemon.machines import problems
from meshd.daemon.machines.executor import Executor
from meshd.daemon.machines.policies import Policies
from meshd.errors import IllegalMove, StoreError
from meshd.model.desired import Desired, Policy
from meshd.model.machine import Machine, Phase, set_with_clock, without_future
from meshd.model.observed import Fresh, Snapshot
from meshd.model.plan import Launch, Plan, RecordDevice, RecordFitness, RecordPublished, RequestMachine, Step
from meshd.plan.plan_input import believed
from meshd.plan.planner import plan
from meshd.provider_api import InstanceState
from meshd.runtime.clock import CLOCK_STEP, Clock, ClockSteps

log = structlog.get_logger(__name__)

NOTES = (RecordDevice, RecordFitness, RecordPublished)
"""Steps that only write down what is seen: when they are lost, the next tick has them again."""

TICK_SPACING_S = 0.01
"""The least time between two ticks: a burst of events is one tick."""


_Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Strangers:
    """Listed instances that no live machine claims, by provider and id.

    Attributes:
        ended: those of machines that the journal holds to be GONE.
        late: those that the journal never had, but whose name it knows.
        first_seen: when each was listed first. Those of a provider that cannot be read now are kept.
    """

    ended: set[_Key]
    late: set[_Key]
    first_seen: dict[_Key, datetime]


@dataclass(frozen=True, slots=True)
class Tick:
    """What the last tick saw and decided."""

    at: datetime
    plan: Plan
    snapshot: Snapshot
    took_s: float


class MachineController(Controller):
    """Looks at everything, plans, and begins what the plan says.

    Args:
        machine_store: the journal's machines.
        executor: carries steps out.
        policies: look at each snapshot before the plan is made.
        desired: what is desired now; called once for each tick.
        snapshot: what every source said last; called once for each tick.
        live: the settings: how long it waits for a change at most.
        clock: time.
        awake: set to start a tick now; its own event when none is given.
        followers: woken after each tick: what they do follows from the journal.
        tick_took_s: called with the seconds that each tick took.
        restored: notes which clouds were listed since an older journal was restored.

    Attributes:
        last: the last tick.
        ticks: how many there were.
        problem: why it could not be finished; "" when it was.
    """

    name = "machines"

    def __init__(
        self,
        machine_store: MachineStore,
        executor: Executor,
        policies: Policies,
        live: LiveSettings,
        clock: Clock,
        *,
        desired: Callable[[], Desired],
        snapshot: Callable[[], Snapshot],
        awake: asyncio.Event | None = None,
        followers: Sequence[Wakes] = (),
        tick_took_s: Callable[[float], object] = lambda _: None,
        restored: Callable[[Snapshot, Policy], None] = lambda _, __: None,
    ) -> None:
        super().__init__(clock, awake)
        self._machine_store = machine_store
        self._executor = executor
        self._policies = policies
        self._live = live
        self._desired = desired
        self._snapshot = snapshot
        self._followers = followers
        self._tick_took_s = tick_took_s
        self._restored = restored
        self._first_seen: dict[_Key, datetime] = {}
        self._clock_steps = ClockSteps(clock)
        self._clock_since = clock.now()
        self.last: Tick | None = None
        self.ticks = 0
        self.problem = ""

    def problems(self) -> Iterable[ProblemView]:
        """Why the last tick failed, machines that fail or do not die, and what keeps pools from their targets."""
        journal, now = self._machine_store.journal, self._clock.now()
        machines, desired = journal.machines(), self._desired()
        yield from problems.tick(self.problem)
        yield from problems.machines(machines, self._executor.problems)
        yield from problems.journal(journal.unreadable.lately(now), machines, journal.targets())
        if self.last is not None:
            yield from problems.pools(desired, machines, self.last.plan.warnings, self.last.snapshot)

    async def reconcile(self) -> float:
        """Tick once, and rest for a moment: a burst of changes is one tick."""
        self.tick()
        await asyncio.sleep(TICK_SPACING_S)
        return self._live.settings.timing.tick_interval_s

    def tick(self) -> Tick:
        """Look, decide, begin. Reads memory only, so it is quick and can be measured."""
        started_s = self._clock.monotonic_s()
        now = self._clock.now()
        snapshot = self._snapshot()
        decided = Plan()
        try:
            self._heal_times(now)
            self._policies.look(snapshot, now)
            desired = self._desired()
            if desired.restored is not None:
                self._restored(snapshot, desired.policy)
                desired = self._desired()
            machines = self._machines(desired)
            strangers = self._strangers(machines, snapshot, now)
            self._first_seen = strangers.first_seen
            decided = self._plan(desired, machines, strangers, snapshot, now)
            self._begin(decided)
            self.problem = ""
        except StoreError as error:
            # Nothing is done that is not in the journal: the rest of the plan waits for the next tick.
            if self.problem != str(error):
                log.error("tick_stopped", reason=str(error))
            self.problem = str(error)
        self.last = Tick(now, decided, snapshot, self._clock.monotonic_s() - started_s)
        self.ticks += 1
        self._tick_took_s(self.last.took_s)
        for follower in self._followers:
            follower.wake()
        return self.last

    def _begin(self, decided: Plan) -> None:
        self._executor.forget_all_but({subject for step in decided.steps for subject in step.subjects})
        launches = [step for step in decided.steps if isinstance(step, Launch)]
        self._executor.note_turns(launches, decided.held_orders)
        notes = [step for step in decided.steps if isinstance(step, NOTES)]
        if notes:
            # When much changes at once, say the tailnet, each of a thousand machines has one.
            with self._machine_store.journal.together():
                for step in notes:
                    self._begin_one(step)
        requests = [step for step in decided.steps if isinstance(step, RequestMachine)]
        if requests:
            self._executor.request(requests)
        for other in decided.steps:
            if not isinstance(other, (*NOTES, RequestMachine)):
                self._begin_one(other)

    def _begin_one(self, step: Step) -> None:
        try:
            self._executor.begin(step)
        except IllegalMove as error:  # a fault of the planner's: it must not keep the other machines waiting
            log.error("step_refused", step=step.action, subject=step.subject, reason=str(error))

    def _heal_times(self, now: datetime) -> None:
        """After the clock was set, what happened is as long ago as before. Raises StoreError.

        Else deadlines and idle times would be over at once, or a question "was this seen after that was done?" would
        wait for the clock to catch up. What an earlier meshd wrote stays, but for times that are yet to come.
        """
        step = self._clock_steps.last
        if not step and self.last is not None and now >= self.last.at:
            return
        journal, since = self._machine_store.journal, self._clock_since
        was_set = bool(step) or any(event.at > now + CLOCK_STEP for event in journal.events(-1, 1))
        if step:
            log.warning("clock_was_set", by_s=round(step.total_seconds()))
            self._clock_steps.taken()
            self._clock_since += step
            self._first_seen = {key: min(at + step, now) for key, at in self._first_seen.items()}
            self._policies.clock_set(step)
        machines = journal.machines()
        after = [without_future(set_with_clock(one, step, since) if step else one, now) for one in machines]
        healed = [new for new, old in zip(after, machines, strict=True) if new != old]
        if not healed and not was_set:
            return
        with journal.together():
            for machine in healed:
                journal.put(machine, EventKind.CLOCK, f"{_set_by(step)}: its times follow", now)
            if was_set:
                # How much of them is left is not known; without them some offers refuse once more.
                journal.lift_cooldowns({*journal.cooldowns(now), *journal.expired_cooldowns(now)})
                journal.event(now, EventKind.CLOCK, f"{_set_by(step)}; cooldowns are lifted")

    def decide(self, snapshot: Snapshot, now: datetime, desired: Desired | None = None) -> Plan:
        """The plan from this snapshot, for `meshctl plan` as for the tick. It changes nothing."""
        desired = desired or self._desired()
        machines = self._machines(desired)
        return self._plan(desired, machines, self._strangers(machines, snapshot, now), snapshot, now)

    def _plan(
        self, desired: Desired, machines: list[Machine], strangers: _Strangers, snapshot: Snapshot, now: datetime
    ) -> Plan:
        read_at = snapshot.slurm.at if believed(snapshot.slurm, desired.policy, now) else None
        return plan(
            desired, machines, snapshot, now, busy=self._executor.busy | self._executor.not_shown(read_at),
            ended_ids=strangers.ended, late_ids=strangers.late, first_seen=strangers.first_seen,
        )  # fmt: skip

    def _machines(self, desired: Desired) -> list[Machine]:
        machines = self._machine_store.journal.machines()
        if desired.policy.may_change_devices:
            machines += self._machine_store.journal.gone_with_device()
        return machines

    def _strangers(self, machines: list[Machine], snapshot: Snapshot, now: datetime) -> _Strangers:
        claimed = {(m.provider, m.instance_id) for m in machines if m.phase is not Phase.GONE}
        strangers: dict[_Key, str] = {
            (provider, instance.id): instance.token
            for provider, listing in snapshot.instances.items()
            if isinstance(listing, Fresh)
            for instance in listing.value
            if (provider, instance.id) not in claimed and instance.state is not InstanceState.GONE
        }
        unread = {provider for provider, listing in snapshot.instances.items() if not isinstance(listing, Fresh)}
        kept = {key for key in self._first_seen if key[0] in unread}
        journal = self._machine_store.journal
        ended = {key for key in (*strangers, *kept) if journal.knows_instance(*key)}
        named = {key for key, token in strangers.items() if token and key not in ended and journal.machine(token)}
        return _Strangers(ended, named, {key: self._first_seen.get(key, now) for key in (*strangers, *kept)})


def _set_by(step: timedelta) -> str:
    if not step:
        return "the clock was set back"
    way = "forward" if step > timedelta() else "back"
    return f"the clock was set {way} by {abs(step).total_seconds():.0f} s"
