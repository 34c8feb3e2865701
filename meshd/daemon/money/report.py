"""What is to be told of the budget: limits that are nearly used up, and machines that are given back for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from meshd.api.schema import ProblemView
from meshd.codes import ProblemCode
from meshd.daemon.reporting import Reporter, problem
from meshd.model.budget import MICROS
from meshd.model.desired import Desired, Target
from meshd.model.observed import Snapshot
from meshd.plan.budget import ended_by, too_small, warned_of
from meshd.plan.placement import usable
from meshd.runtime.clock import Clock


class BudgetReporter(Reporter):
    """Tells it.

    Args:
        desired: the budget of now.
        snapshot: what can be rented.
        clock: time.
    """

    def __init__(self, desired: Callable[[], Desired], snapshot: Callable[[], Snapshot], clock: Clock) -> None:
        self._desired = desired
        self._snapshot = snapshot
        self._clock = clock

    def problems(self) -> Iterable[ProblemView]:
        """From `warn_at` on a warning; at the limit an error, since nothing more is rented."""
        desired, now = self._desired(), self._clock.now()
        budget = desired.budget
        if not budget.limits:
            return
        offers = self._snapshot().known_offers
        for pool in desired.pools.values():
            fit = usable(offers, pool, Target(pool.name, 0), {}, now)
            if (small := too_small(budget, pool.name, fit, now)) is not None:
                text = f"{small.setting} = {small.limit / MICROS:g} does not pay for one machine of {pool.name}"
                cure = f"raise {small.setting}, or allow a cheaper offer (`meshctl offers`)"
                yield problem(ProblemCode.BUDGET_TOO_SMALL, "error", text, cure, pool=pool.name)
        killing = {(one.scope, one.period) for one in ended_by(budget, now)}
        for one in warned_of(budget, now):
            if (one.scope, one.period) in killing:
                text = f"all machines are given back, and their jobs killed, by kill_at: {one.words}"
                cure = f"raise {one.setting}"
                if desired.freeze is not None:
                    text = f"kill_at is reached and the freeze holds it: all machines go on and cost money. {one.words}"
                    cure = f"`meshctl thaw` lets kill_at end them; {cure} to keep them"
                yield problem(ProblemCode.BUDGET_KILL, "error", text, cure, pool=one.scope)
                continue
            over = one.left <= 0
            text = f"nothing more is rented: {one.words}" if over else one.words
            cure = f"`meshctl cost --by day` shows what was spent; raise {one.setting}, or give machines back"
            yield problem(ProblemCode.BUDGET_WARNING, "error" if over else "warning", text, cure, pool=one.scope)
