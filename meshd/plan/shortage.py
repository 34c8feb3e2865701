"""Why a pool cannot reach its target: one warning, with what would help. PURE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from meshd.codes import WarningCode
from meshd.model.desired import Desired, Pool, Target
from meshd.model.machine import Machine, Phase
from meshd.model.plan import Warn
from meshd.plan.alternatives import Selection
from meshd.plan.gang import Group, group_of, place
from meshd.plan.placement import amount, total_limit, why_none
from meshd.provider_api import Offer


@dataclass(frozen=True, slots=True)
class Shortage:
    """A pool that lacks units.

    Attributes:
        missing: GPUs that it lacks; machines where they have none.
        machines: those of the pool that are not GONE.
        have: those that count as supply and stay.
    """

    desired: Desired
    pool: Pool
    target: Target
    missing: int
    machines: Sequence[Machine]
    have: Sequence[Machine]

    def warning(self, selection: Selection, offers: Sequence[Offer], now: datetime) -> Warn:
        """What keeps the pool from its target.

        Args:
            selection: what it chose from, and the cover that is too small.
            offers: of all providers.
            now: UTC.
        """
        pool, target, need = self.pool, self.target, selection.need
        mine = selection.in_place()
        have = target.gpus - self.missing + selection.cover.units
        text = f"{amount(target.gpus, pool)} wanted, {have} can be had"
        if not selection.fit:
            why = why_none(offers, pool, target, self.desired.cooldowns, now)
            return Warn(pool.name, f"{text}: no offer will do: {why}", WarningCode.NO_OFFER)
        if not mine:
            return self._stuck(selection.here[0], offers, now)
        if selection.best(mine, replace(need, machines_most=need.units)) is not None:
            return Warn(
                pool.name,
                f"{text}: the pool has at most {pool.max_nodes} nodes, and {need.machines_most} slots are free",
                WarningCode.SLOTS,
                f"raise pools.{pool.name}.max_nodes",
            )
        if selection.best(mine, replace(need, usd_per_hour_most=None)) is not None:
            if selection.budget is not None:
                return Warn(
                    pool.name,
                    f"{text}: {selection.budget.words}",
                    WarningCode.BUDGET,
                    f"raise {selection.budget.setting}",
                )
            limit = total_limit(pool, target)
            said = limit == target.max_usd_per_hour
            spent = sum(m.usd_per_hour for m in self.machines)
            if spent > (limit or 0.0):
                there = amount(self.target.gpus - self.missing, pool)
                return Warn(
                    pool.name,
                    f"{amount(target.gpus, pool)} wanted, {there} there: what the pool has costs {spent:.2f} USD per "
                    f"hour, over the limit of {limit or 0:.2f} in all, and no more is rented",
                    WarningCode.OVER_LIMIT,
                    f"raise {'--max-total' if said else f'pools.{pool.name}.max_usd_per_hour'}",
                )
            return Warn(
                pool.name,
                f"{text} under the limit of {limit or 0:.2f} USD per hour in all",
                WarningCode.LIMIT_IN_ALL,
                f"raise {'--max-total' if said else f'pools.{pool.name}.max_usd_per_hour'}",
            )
        if selection.best(mine, replace(need, overshoot_most=None)) is not None:
            said = target.overshoot_max_gpus is not None
            return Warn(
                pool.name,
                f"{text}: no machines come to that number with at most {need.overshoot_most} more",
                WarningCode.OVERSHOOT,
                f"raise {'--max-overshoot' if said else f'pools.{pool.name}.overshoot_max_gpus'}",
            )
        if selection.gang and len(selection.here) == 1:
            return self._stuck(selection.here[0], offers, now)
        return Warn(
            pool.name,
            f"{text} within {need.machines_most} free slots and the limits on price and overshoot together",
            WarningCode.LIMITS_TOGETHER,
            f"raise pools.{pool.name}.max_nodes, or a limit",
        )

    def _stuck(self, group: Group, offers: Sequence[Offer], now: datetime) -> Warn:
        """The gang's place cannot give the rest, and the gang cannot move."""
        there = [offer for offer in offers if group_of(offer) == group]
        why = why_none(there, self.pool, self.target, self.desired.cooldowns, now)
        ready = sum(m.phase is Phase.READY for m in self.have)
        unsettled = [m.slot for m in self.have if m.phase is Phase.LAUNCHING]
        state = "no other place has all of it"
        if ready:
            state = f"{ready} machines are READY there"
        elif unsettled:
            state = f"the gang stays until the create calls of {', '.join(unsettled)} are settled"
        return Warn(
            self.pool.name,
            f"{self.missing} of {self.target.gpus} GPUs are missing in {place(group)}, and {state}: {why}",
            WarningCode.PLACE,
            f"`meshctl scale --pool {self.pool.name} --spread` lets the rest be elsewhere",
        )
