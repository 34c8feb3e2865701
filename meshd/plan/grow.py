"""What a pool below its target rents next, and what hinders it. PURE.

The cover is chosen for all missing GPUs, as if the machines on their way out were gone. A machine of the cover that has
no free slot or no money yet waits for them. So nothing dearer is rented only because something cheaper has to wait.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from meshd.codes import WarningCode
from meshd.model.cooldown import CooldownKey
from meshd.model.desired import Desired, Pool, Target
from meshd.model.machine import Machine, Phase, Removal
from meshd.model.observed import Snapshot
from meshd.model.plan import Remove, RequestMachine, Step, Warn
from meshd.plan import freeze
from meshd.plan.alternatives import Selection
from meshd.plan.arriving import DEAD_KEY_CURE
from meshd.plan.cover import Cover, Need, fullest, micros, units
from meshd.plan.devices import NO_IPV4_CURE
from meshd.plan.gang import cheapest_in_one, fullest_in_one, group_of, groups_of, is_gang, place
from meshd.plan.placement import amount, overshoot_most, spot_policy, usable
from meshd.plan.plan_input import PlanInput
from meshd.plan.restored import cure
from meshd.plan.room import Money, Room, room
from meshd.plan.shortage import Shortage
from meshd.plan.tried_alone import TriedAlone
from meshd.provider_api import Offer


class Growth:
    """Decides what one pool rents.

    Args:
        missing: GPUs to rent; machines where they have none.
        machines: those of the pool that are not GONE.
        have: those that count as supply and stay.
        money: what the plan may still spend.
        reserved: slots that are for jobs.
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
        money: Money,
        reserved: Collection[str] = (),
    ) -> None:
        self._desired = desired
        self._pool = pool
        self._target = target
        self._missing = missing
        self._machines = machines
        self._have = have
        self._given = given
        self._money = money
        self._reserved = reserved
        self._offers = snapshot.known_offers
        self._gang = is_gang(pool, target)
        # Machines that were rented for jobs are where their jobs are, and that is no place for the target's.
        # Nothing can be rented where a host is.
        self._ours = [m for m in have if not (m.offer.slot or (m.by_queue and pool.from_queue))]
        self._here = groups_of(self._ours, target) if self._gang else ()
        self._tried = TriedAlone(desired, pool, machines, have)

    def steps(self) -> Iterator[Step]:
        """The machines to rent, by slot; or the removals with which a gang moves; and warnings."""
        hindrance = hindrance_of(self._desired, self._pool, self._given) or self._tried.hindrance()
        if hindrance is not None:
            yield hindrance
            return
        free = self._room()
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
        free = free or self._room()
        fit = usable(self._offers, self._pool, self._target, self._desired.cooldowns, self._given.now)
        choice = Selection(fit, self._need(self._missing, free), Cover(), self._here, self._gang, free.budget)
        mine, need = choice.in_place(), choice.need
        cover = choice.best(self._tried.least_failed(mine), need) or choice.best(mine, need)
        if cover is None:
            cover = fullest_in_one(mine, need, self._here) if self._gang else fullest(mine, need)
        return replace(choice, cover=cover)

    def _room(self) -> Room:
        return room(
            self._pool, self._target, self._machines, self._have, self._given, self._money, self._reserved
        )  # fmt: skip

    def _requests(self, cover: Cover, free: Room) -> Iterator[Step]:
        pool_is_tried = self._tried.pool_is_tried()
        missing, spent = self._missing, 0
        chosen: list[Offer] = []
        waiting: dict[Warn, None] = {}
        for offer in cover.offers:
            waits = self._tried.take(offer)
            if waits is None:
                chosen.append(offer)
            else:
                waiting[waits] = None
        yield from waiting
        for slot, offer in zip(free.slots, chosen, strict=False):
            spent += micros(offer.usd_per_hour)
            if free.usd is not None and spent > micros(free.usd):
                return  # it waits for the money of the machines that leave
            reason = f"{amount(self._target.gpus, self._pool)} wanted, {missing} more needed"
            tried = pool_is_tried or self._tried.is_tried(offer)
            self._money.spend(self._pool.name, [slot], offer)
            yield RequestMachine(
                slot, f"{reason}; it is tried alone first" if tried else reason, self._pool.name, offer
            )
            if pool_is_tried:
                return
            missing -= offer.gpus or 1

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
        # Nor does one move on which a job runs, or for which one waits.
        given = self._given
        hindrance = any(
            m.phase in {Phase.READY, Phase.LAUNCHING} or m.removal or given.jobs.get(m.slot)
            or given.configuring_jobs.get(m.slot) for m in self._ours
        )  # fmt: skip
        if len(self._here) != 1 or hindrance:
            return
        elsewhere = [offer for offer in fit if group_of(offer) not in self._here]
        whole = self._missing + sum(units(m.offer) for m in self._ours)
        cover = cheapest_in_one(elsewhere, self._need(whole, free, instead=self._ours))
        if cover is None:
            return
        reason = (
            f"its gang moves: {place(self._here[0])} cannot give {self._missing} of {self._target.gpus} GPUs, and "
            f"{place(group_of(cover.offers[0]))} can give all"
        )
        for machine in self._ours:
            yield Remove(machine.name, reason, Removal.GANG_MOVED)


def hindrance_of(desired: Desired, pool: Pool, given: PlanInput) -> Warn | None:
    """What keeps a pool from renting anything; None when it may rent."""
    if desired.freeze is not None:
        text = f"no new machines: {desired.freeze.words}"
        return Warn(pool.name, text, WarningCode.FROZEN, freeze.CURE)
    restored = desired.restored
    if restored is not None and pool.name in restored.pools:
        text = f"no new machines: {restored.words()}"
        return Warn(pool.name, text, WarningCode.RESTORED_UNLISTED, cure(restored.unlisted))
    if given.dead_key:
        return Warn(pool.name, f"no new machines: {given.dead_key}", WarningCode.AUTH_KEY_DEAD, DEAD_KEY_CURE)
    if given.no_ipv4:
        return Warn(pool.name, f"no new machines: {given.no_ipv4}", WarningCode.NO_IPV4, NO_IPV4_CURE)
    cooldown = desired.cooldowns.get(CooldownKey.of_pool(pool.name))
    if cooldown is not None and cooldown.until > given.now:
        return Warn(
            pool.name,
            f"no new machines until {cooldown.until:%H:%M:%S} UTC: {cooldown.reason}",
            WarningCode.POOL_COOLING,
            f"remove the cause (see `meshctl events`); `meshctl scale --pool {pool.name}` lifts this at once",
        )
    return None
