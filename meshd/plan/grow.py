"""What a pool below its target rents next, and what hinders it. PURE.

The cover is chosen for all missing GPUs, as if the machines on their way out were gone. A machine of the cover that has
no free slot or no money yet waits for them. So nothing dearer is rented only because something cheaper has to wait.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from meshd.codes import WarningCode
from meshd.model.cooldown import TRIED_ALONE, Cooldown, CooldownKey, scopes
from meshd.model.desired import Desired, Pool, Target
from meshd.model.ids import slot_name
from meshd.model.machine import HOLDS_SLOT, Machine, Phase, Removal
from meshd.model.observed import Snapshot
from meshd.model.plan import Remove, RequestMachine, Step, Warn
from meshd.plan.alternatives import Selection
from meshd.plan.arriving import DEAD_KEY_CURE
from meshd.plan.budget import Used
from meshd.plan.budget import room as budget_room
from meshd.plan.cover import Cover, Need, fullest, micros
from meshd.plan.devices import NO_IPV4_CURE
from meshd.plan.gang import cheapest_in_one, fullest_in_one, group_of, groups_of, is_gang, place
from meshd.plan.placement import amount, overshoot_most, spot_policy, total_limit, usable
from meshd.plan.plan_input import PlanInput
from meshd.plan.shortage import Shortage
from meshd.provider_api import Offer


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
    desired: Desired,
    pool: Pool,
    target: Target,
    machines: Sequence[Machine],
    staying: Collection[Machine],
    given: PlanInput,
) -> Room:
    """The slots and money that are left. `staying` are machines that count as not leaving."""
    ours = {m.tailnet_ip for m in machines}
    taken: set[str] = {m.slot for m in machines if m.phase in HOLDS_SLOT}
    # A joined line with another address is that of a machine that the journal does not know.
    taken |= {slot for slot, address in given.node_addrs.items() if address not in ours}
    slots = [slot_name(pool.name, index) for index in range(1, pool.max_nodes + 1)]
    leaving = [m for m in machines if m not in staying and _leaves_soon(m, given)]
    limit = total_limit(pool, target)
    free = Room(
        slots=tuple(slot for slot in slots if slot not in taken),
        slots_soon=len({m.slot for m in leaving if m.phase in HOLDS_SLOT}.intersection(slots)),
        usd=None if limit is None else limit - sum(m.usd_per_hour for m in machines),
        usd_soon=None if limit is None else limit - sum(m.usd_per_hour for m in machines if m not in leaving),
    )
    return _within_budget(free, desired, pool, frozenset(m.name for m in leaving), given)


def _within_budget(free: Room, desired: Desired, pool: Pool, leaving: frozenset[str], given: PlanInput) -> Room:
    """The room that the budget leaves, over all pools and in this one."""
    now = budget_room(desired.budget, pool.name, pool.providers, given.now)
    soon = budget_room(desired.budget.without(leaving), pool.name, pool.providers, given.now)
    if now is None or soon is None:
        return free
    tighter = free.usd_soon is None or soon.usd_per_hour < free.usd_soon
    return replace(
        free,
        usd=now.usd_per_hour if free.usd is None else min(free.usd, now.usd_per_hour),
        usd_soon=soon.usd_per_hour if free.usd_soon is None else min(free.usd_soon, soon.usd_per_hour),
        budget=soon.binding if tighter else None,
    )


def _leaves_soon(machine: Machine, given: PlanInput) -> bool:
    """Whether it leaves without waiting for a job. A LOST machine does not: its cloud does not end it."""
    if machine.phase in HOLDS_SLOT:
        on_its_way = machine.phase is Phase.DRAINING or bool(machine.removal or machine.failure)
        never_was = machine.phase in {Phase.REQUESTED, Phase.LAUNCHING} or not machine.may_run_jobs
        return on_its_way and (never_was or given.idle(machine))
    return machine.phase is Phase.TERMINATING


class Growth:
    """Decides what one pool rents.

    Args:
        missing: GPUs to rent; machines where they have none.
        machines: those of the pool that are not GONE.
        have: those that count as supply and stay.
    """

    def __init__(
        self,
        desired: Desired,
        pool: Pool,
        target: Target,
        missing: int,
        machines: Sequence[Machine],
        have: Sequence[Machine],
        snapshot: Snapshot,
        given: PlanInput,
    ) -> None:
        self._desired = desired
        self._pool = pool
        self._target = target
        self._missing = missing
        self._machines = machines
        self._have = have
        self._given = given
        self._offers = snapshot.known_offers
        self._gang = is_gang(pool, target)
        self._here = groups_of(have, target) if self._gang else ()

    def steps(self) -> Iterator[Step]:
        """The machines to rent, by slot; or the removals with which a gang moves; and warnings."""
        hindrance = self._hindrance()
        if hindrance is not None:
            yield hindrance
            return
        free = room(self._desired, self._pool, self._target, self._machines, self._have, self._given)
        selection = self.selection(free)
        if selection.cover.units < selection.need.units:
            moves = list(self._move(selection.fit, free))
            if moves:
                yield from moves
                return
            lacking = Shortage(self._desired, self._pool, self._target, self._missing, self._machines, self._have)
            yield lacking.warning(selection, self._offers, self._given.now)
        yield from self._requests(selection.cover, free)

    def selection(self, free: Room | None = None) -> Selection:
        """The usable offers and the best cover out of them: of the whole need, or of as much as possible."""
        free = free or room(self._desired, self._pool, self._target, self._machines, self._have, self._given)
        fit = usable(self._offers, self._pool, self._target, self._desired.cooldowns, self._given.now)
        choice = Selection(fit, self._need(self._missing, free), Cover(), self._here, self._gang, free.budget)
        mine, need = choice.in_place(), choice.need
        cover = choice.best(self._least_failed(mine), need) or choice.best(mine, need)
        if cover is None:
            cover = fullest_in_one(mine, need, self._here) if self._gang else fullest(mine, need)
        return replace(choice, cover=cover)

    def _requests(self, cover: Cover, free: Room) -> Iterator[Step]:
        breaker = self._expired_breaker(CooldownKey.of_pool(self._pool.name))
        missing, spent = self._missing, 0
        chosen, hindrance = self._one_of_each_to_prove(cover.offers)
        yield from hindrance
        for slot, offer in zip(free.slots, chosen, strict=False):
            spent += micros(offer.usd_per_hour)
            if free.usd is not None and spent > micros(free.usd):
                return  # it waits for the money of the machines that leave
            reason = f"{amount(self._target.gpus, self._pool)} wanted, {missing} more needed"
            proving = breaker or any(self._expired_breaker(key) for key in scopes(self._pool.name, offer))
            yield RequestMachine(
                slot, f"{reason}; it is tried alone first" if proving else reason, self._pool.name, offer
            )
            if breaker:
                return
            missing -= offer.gpus or 1

    # -- what hinders the pool ------------------------------------------------------------------------------------

    def _hindrance(self) -> Warn | None:
        if self._given.dead_key:
            return Warn(
                self._pool.name, f"no new machines: {self._given.dead_key}", WarningCode.AUTH_KEY_DEAD, DEAD_KEY_CURE
            )
        if self._given.no_ipv4:
            return Warn(self._pool.name, f"no new machines: {self._given.no_ipv4}", WarningCode.NO_IPV4, NO_IPV4_CURE)
        cooldown = self._desired.cooldowns.get(CooldownKey.of_pool(self._pool.name))
        if cooldown is not None and cooldown.until > self._given.now:
            return Warn(
                self._pool.name,
                f"no new machines until {cooldown.until:%H:%M:%S} UTC: {cooldown.reason}",
                WarningCode.POOL_COOLING,
                f"remove the cause (see `meshctl events`); `meshctl scale --pool {self._pool.name}` lifts this at once",
            )
        cooldown = self._expired_breaker(CooldownKey.of_pool(self._pool.name))
        proving_slot = self._proving_slot(cooldown, self._have) if cooldown is not None else ""
        return self._waits_for_proof(proving_slot, cooldown) if cooldown is not None and proving_slot else None

    def _one_of_each_to_prove(self, offers: Sequence[Offer]) -> tuple[list[Offer], list[Warn]]:
        """The offers to rent now, and warnings about those that wait until one machine has proved their place."""
        chosen: list[Offer] = []
        hindrance: dict[str, Warn] = {}
        for offer in offers:
            keys = set(scopes(self._pool.name, offer)[:-1])
            found = [(key, cooldown) for key in sorted(keys) if (cooldown := self._expired_breaker(key)) is not None]
            ahead = [(self._proof_of(key, cooldown, chosen), cooldown) for key, cooldown in found]
            proving_slot, cooldown = next(((slot, cooldown) for slot, cooldown in ahead if slot), ("", None))
            if cooldown is None:
                chosen.append(offer)
            else:
                hindrance.setdefault(cooldown.key, self._waits_for_proof(proving_slot, cooldown))
        return chosen, list(hindrance.values())

    def _proof_of(self, key: CooldownKey, cooldown: Cooldown, chosen: Sequence[Offer]) -> str:
        """The machine or offer that proves this key already; "" when there is none."""
        there = [m for m in self._have if key in scopes(m.pool, m.offer)]
        about_to = (f"one machine of {o.key}" for o in chosen if key in scopes(self._pool.name, o))
        return self._proving_slot(cooldown, there) or next(about_to, "")

    def _least_failed(self, offers: Sequence[Offer]) -> Sequence[Offer]:
        """Where one machine has to prove a place or the pool: its offers that failed least, or longest ago."""
        best: dict[str, tuple[int, float]] = {}
        proving: dict[str, list[str]] = {}
        for offer in offers:
            keys = scopes(self._pool.name, offer)
            proving[offer.key] = [key for key in keys[1:] if self._expired_breaker(key) is not None]
            for key in proving[offer.key]:
                best[key] = min(best.get(key, self._failures(offer)), self._failures(offer))
        return [o for o in offers if all(self._failures(o) == best[key] for key in proving[o.key])]

    def _failures(self, offer: Offer) -> tuple[int, float]:
        """A sort key: the offer's consecutive cooldowns, and when the last one ended."""
        cooldown = self._expired_breaker(CooldownKey.of_offer(offer))
        return (cooldown.strikes, cooldown.until.timestamp()) if cooldown is not None else (0, 0.0)

    def _expired_breaker(self, key: CooldownKey) -> Cooldown | None:
        """The expired cooldown after which one machine has to be READY before others are rented; None for none.

        A READY machine of another pool, which proves an offer as well, lifts its cooldown in the journal.
        """
        cooldown = self._desired.expired_cooldowns.get(key)
        if cooldown is None or cooldown.cause not in TRIED_ALONE:
            return None
        of_key = [m for m in self._machines if key in scopes(m.pool, m.offer)]
        proved = any(m.ready_at is not None and m.ready_at >= cooldown.until for m in of_key)
        return None if proved else cooldown

    def _proving_slot(self, cooldown: Cooldown, machines: Sequence[Machine]) -> str:
        """The slot of the machine that was rented after the cooldown and is not READY yet; "" when there is none."""
        since = (m.slot for m in machines if m.created_at >= cooldown.until and m.phase is not Phase.READY)
        return next(since, "")

    def _waits_for_proof(self, what: str, cooldown: Cooldown) -> Warn:
        return Warn(
            self._pool.name,
            f"{what} is tried alone; the others follow once it is READY: {cooldown.reason}",
            WarningCode.TRIED_ALONE,
            f"`meshctl scale --pool {self._pool.name}` lifts this at once",
        )

    # -- the choice -----------------------------------------------------------------------------------------------

    def _need(self, units: int, free: Room, *, instead: Collection[Machine] = ()) -> Need:
        """So much, in the room that there will be; `instead` of these machines."""
        usd = None if free.usd_soon is None else free.usd_soon + sum(m.usd_per_hour for m in instead)
        return Need(
            units=units,
            machines_most=len(free.slots) + free.slots_soon + len(instead),
            overshoot_most=overshoot_most(self._pool, self._target),
            usd_per_hour_most=usd,
            prefer_spot=spot_policy(self._pool, self._target) == "prefer",
            preference={name: index for index, name in enumerate(self._pool.providers)},
        )

    def _move(self, fit: Sequence[Offer], free: Room) -> Iterator[Step]:
        """The gang goes elsewhere as a whole, as long as none of it is READY and another place has room for all."""
        # One that is kept after all has its step in this tick already, and one whose create call is not settled yet
        # might come into being beside the machine that is rented in its place.
        hindrance = any(
            m.phase in {Phase.READY, Phase.LAUNCHING} or m.removal or self._given.jobs.get(m.slot) for m in self._have
        )
        if len(self._here) != 1 or hindrance:
            return
        elsewhere = [offer for offer in fit if group_of(offer) not in self._here]
        cover = cheapest_in_one(elsewhere, self._need(self._target.gpus, free, instead=self._have))
        if cover is None:
            return
        reason = (
            f"its gang moves: {place(self._here[0])} cannot give {self._missing} of {self._target.gpus} GPUs, and "
            f"{place(group_of(cover.offers[0]))} can give all"
        )
        for machine in self._have:
            yield Remove(machine.name, reason, Removal.GANG_MOVED)
