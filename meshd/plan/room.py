"""The slots and the money that a pool has left for new machines. PURE."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from meshd.model.budget import Budget
from meshd.model.desired import Pool, Target
from meshd.model.ids import slot_name
from meshd.model.machine import HOLDS_SLOT, Machine, Phase
from meshd.plan.budget import Used, charge_of
from meshd.plan.budget import room as budget_room
from meshd.plan.cover import MICROS, micros
from meshd.plan.placement import total_limit
from meshd.plan.plan_input import PlanInput
from meshd.provider_api import Offer


@dataclass(frozen=True, slots=True)
class Usd:
    """What new machines of a pool may cost per hour, in USD; None for no limit.

    Attributes:
        now: at this moment.
        soon: when the machines that leave are gone.
        budget: the limit of the budget that allows less than the limits of pool and target; None when none does.
        words: the limit that binds, for people; "" for no limit.
    """

    now: float | None
    soon: float | None
    budget: Used | None = None
    words: str = ""


class Money:
    """What one plan may still spend. Here, and nowhere else, limits in USD hold for new machines.

    Pools, targets and jobs share it: what one of them is given, the next one no longer has.

    Args:
        budget: over all pools and in each; with the machines that exist.
        now: UTC.
    """

    def __init__(self, budget: Budget, now: datetime) -> None:
        self._budget = budget
        self._now = now
        self._ordered_micros: dict[str, int] = {}

    def left(self, pool: Pool, target: Target, machines: Sequence[Machine], leaving: Collection[Machine] = ()) -> Usd:
        """What is left for a pool.

        Args:
            pool: its limit.
            target: its limit, which may be lower.
            machines: those of the pool that are not GONE.
            leaving: those of them that are gone soon.
        """
        gone, limit = frozenset(str(m.name) for m in leaving), total_limit(pool, target)
        usd = Usd(None, None)
        if limit is not None:
            left = limit - self._ordered_micros.get(pool.name, 0) / MICROS
            usd = Usd(
                left - sum(m.usd_per_hour for m in machines),
                left - sum(m.usd_per_hour for m in machines if m.name not in gone),
                words=f"over the limit of {limit:.2f} USD per hour in all (pools.{pool.name}.max_usd_per_hour)",
            )
        now = budget_room(self._budget, pool.name, pool.providers, self._now)
        soon = budget_room(self._budget.without(gone), pool.name, pool.providers, self._now)
        if now is None or soon is None:
            return usd
        tighter = usd.soon is None or soon.usd_per_hour < usd.soon
        return Usd(
            now.usd_per_hour if usd.now is None else min(usd.now, now.usd_per_hour),
            soon.usd_per_hour if usd.soon is None else min(usd.soon, soon.usd_per_hour),
            soon.binding if tighter else None,
            f"too much: {soon.binding.words} ({soon.binding.setting})" if tighter else usd.words,
        )

    def spend(self, pool: str, slots: Sequence[str], offer: Offer) -> None:
        """Count machines of an offer that this plan rents for these slots, or keeps the money for."""
        price = micros(offer.usd_per_hour) * len(slots)
        self._ordered_micros[pool] = self._ordered_micros.get(pool, 0) + price
        if self._budget.limits:
            charges = [charge_of(offer, pool, slot, self._budget, self._now) for slot in slots]
            self._budget = self._budget.beside(*charges)


@dataclass(frozen=True, slots=True)
class Room:
    """The slots and the money that a pool has left.

    Attributes:
        slots: free now, in order.
        slots_soon: the number of slots that are free soon: their machines leave, and have no job.
        usd: what new machines may cost per hour now; None for no limit.
        usd_soon: the same when the machines that leave are gone.
        budget: the limit of the budget that allows less than the limits of pool and target; None when none does.
    """

    slots: tuple[str, ...]
    slots_soon: int
    usd: float | None
    usd_soon: float | None
    budget: Used | None = None


def room(
    pool: Pool,
    target: Target,
    machines: Sequence[Machine],
    staying: Collection[Machine],
    given: PlanInput,
    money: Money,
    reserved: Collection[str] = (),
) -> Room:
    """The slots and money that are left.

    Args:
        pool: that needs machines.
        target: its options.
        machines: those of the pool that are not GONE.
        staying: machines that count as not leaving.
        given: the observed state.
        money: what the plan may still spend.
        reserved: slots that are for others.
    """
    taken = taken_slots(machines, given).union(reserved)
    slots = [slot_name(pool.name, index) for index in range(1, pool.max_nodes + 1)]
    leaving = [m for m in machines if m not in staying and leaves_soon(m, given)]
    usd = money.left(pool, target, machines, leaving)
    return Room(
        slots=tuple(slot for slot in slots if slot not in taken),
        slots_soon=len({m.slot for m in leaving if m.phase in HOLDS_SLOT}.intersection(slots).difference(reserved)),
        usd=usd.now,
        usd_soon=usd.soon,
        budget=usd.budget,
    )


def taken_slots(machines: Sequence[Machine], given: PlanInput) -> set[str]:
    """The slots that no new machine can have now. `machines` are those of the pool that are not GONE."""
    ours = {m.tailnet_ip for m in machines}
    taken: set[str] = {m.slot for m in machines if m.phase in HOLDS_SLOT}
    # A joined line with another address is that of a machine that the journal does not know.
    others = {slot for slot, address in given.node_addrs.items() if address not in ours}
    return taken | {slot for slot in others if _line_counts(slot, given)}


def _line_counts(slot: str, given: PlanInput) -> bool:
    """Whether Slurm uses the slot's line: for a CLOUD node it shows the address in force, which the file follows."""
    node = given.slurm.nodes.get(slot) if given.slurm is not None else None
    return node is None or not node.cloud or node.node_addr == given.node_addrs[slot]


def leaves_soon(machine: Machine, given: PlanInput) -> bool:
    """Whether it leaves without waiting for a job. A LOST machine does not: its cloud does not end it."""
    if machine.phase in HOLDS_SLOT:
        on_its_way = machine.phase is Phase.DRAINING or bool(machine.removal or machine.failure)
        never_was = machine.phase in {Phase.REQUESTED, Phase.LAUNCHING} or not machine.may_run_jobs
        return on_its_way and (never_was or given.idle(machine))
    return machine.phase is Phase.TERMINATING
