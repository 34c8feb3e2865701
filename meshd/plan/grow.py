"""What a pool that has too little rents next, and what keeps it from doing so. PURE.

The cover is chosen for all that is missing, as if what is about to leave had left already; what has no slot or no money
yet waits for it. So nothing dearer is rented only because something cheaper has to wait for a moment.
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
from meshd.plaintext import counted
from meshd.plan.alternatives import Selection
from meshd.plan.arriving import DEAD_KEY_CURE
from meshd.plan.cover import Cover, Need, cheapest, fullest, micros
from meshd.plan.devices import NO_IPV4_CURE
from meshd.plan.gang import Group, cheapest_in_one, fullest_in_one, group_of, groups_of, is_gang, place
from meshd.plan.placement import overshoot_most, spot_policy, total_limit, usable, why_none
from meshd.plan.plan_input import PlanInput
from meshd.provider_api import Offer


def unit_of(pool: Pool) -> str:
    """What is counted in a pool: its GPUs, or its machines where they have none."""
    return "machine" if pool.cpu_only else "GPU"


def amount(units: int, pool: Pool) -> str:
    """So many GPUs, or machines where they have none, for people."""
    return counted(units, unit_of(pool))


@dataclass(frozen=True, slots=True)
class Room:
    """What a pool may still fill.

    Attributes:
        slots: free now, in order.
        slots_soon: about to be free: their machines are on their way out, and no job is waited for.
        usd: what new machines may cost now, per hour; None for no limit.
        usd_soon: the same once those on their way out are gone.
    """

    slots: tuple[str, ...]
    slots_soon: int
    usd: float | None
    usd_soon: float | None


def room(
    pool: Pool, target: Target, machines: Sequence[Machine], staying: Collection[Machine], given: PlanInput
) -> Room:
    """What is left of the pool's slots and money."""
    ours = {m.tailnet_ip for m in machines}
    taken: set[str] = {m.slot for m in machines if m.phase in HOLDS_SLOT}
    # A line in force that is none of ours stands for a machine that the journal does not know yet, or not any more.
    taken |= {slot for slot, address in given.node_addrs.items() if address not in ours}
    slots = [slot_name(pool.name, index) for index in range(1, pool.max_nodes + 1)]
    leaving = [m for m in machines if m not in staying and _leaves_soon(m, given)]
    limit = total_limit(pool, target)
    return Room(
        slots=tuple(slot for slot in slots if slot not in taken),
        slots_soon=len({m.slot for m in leaving if m.phase in HOLDS_SLOT}.intersection(slots)),
        usd=None if limit is None else limit - sum(m.usd_per_hour for m in machines),
        usd_soon=None if limit is None else limit - sum(m.usd_per_hour for m in machines if m not in leaving),
    )


def _leaves_soon(machine: Machine, given: PlanInput) -> bool:
    """On its way out with nothing to wait for. One that its cloud does not end is not."""
    if machine.phase in HOLDS_SLOT:
        on_its_way = machine.phase is Phase.DRAINING or bool(machine.removal or machine.failure)
        never_was = machine.phase in {Phase.REQUESTED, Phase.LAUNCHING} or not machine.may_run_jobs
        return on_its_way and (never_was or given.idle(machine))
    return machine.phase is Phase.TERMINATING


class Growth:
    """What one pool needs, and what it may take.

    Args:
        missing: GPUs, or machines.
        machines: all of the pool's.
        have: those that are there or on their way.
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
        self._world = given
        self._offers = snapshot.known_offers
        self._gang = is_gang(pool, target)
        self._here = groups_of(have, target) if self._gang else ()

    def steps(self) -> Iterator[Step]:
        """The machines to rent, in the order of the slots; or those that go since their gang moves; and warnings."""
        held = self._held_back()
        if held is not None:
            yield held
            return
        free = room(self._pool, self._target, self._machines, self._have, self._world)
        selection = self.selection(free)
        if selection.cover.units < selection.need.units:
            moves = list(self._move(selection.fit, free))
            if moves:
                yield from moves
                return
            yield self._short(selection)
        yield from self._requests(selection.cover, free)

    def selection(self, free: Room | None = None) -> Selection:
        """What there is to choose from, and the best of it: for the whole need, or as much of it as can be had."""
        free = free or room(self._pool, self._target, self._machines, self._have, self._world)
        fit = usable(self._offers, self._pool, self._target, self._desired.cooldowns, self._world.now)
        mine, need = self._in_place(fit), self._need(self._missing, free)
        cover = self._best(self._calmest(mine), need) or self._best(mine, need)
        if cover is None:
            cover = fullest_in_one(mine, need, self._here) if self._gang else fullest(mine, need)
        return Selection(fit, need, cover, self._here, self._gang)

    def _in_place(self, fit: Sequence[Offer]) -> Sequence[Offer]:
        """Those where the gang is, if it is in one place."""
        return [offer for offer in fit if group_of(offer) in self._here] if len(self._here) == 1 else fit

    def _requests(self, cover: Cover, free: Room) -> Iterator[Step]:
        probe = self._probing(CooldownKey.of_pool(self._pool.name))
        missing, spent = self._missing, 0
        wanted, held = self._one_of_each_probed(cover.offers)
        yield from held
        for slot, offer in zip(free.slots, wanted, strict=False):
            spent += micros(offer.usd_per_hour)
            if free.usd is not None and spent > micros(free.usd):
                return  # it waits for the money of those that leave
            reason = f"{amount(self._target.gpus, self._pool)} wanted, {missing} more needed"
            alone = probe or any(self._probing(key) for key in scopes(self._pool.name, offer))
            yield RequestMachine(
                slot, f"{reason}; it is tried alone first" if alone else reason, self._pool.name, offer
            )
            if probe:
                return
            missing -= offer.gpus or 1

    # -- what holds the pool back ---------------------------------------------------------------------------------

    def _held_back(self) -> Warn | None:
        if self._world.dead_key:
            return Warn(
                self._pool.name, f"no new machines: {self._world.dead_key}", WarningCode.AUTH_KEY_DEAD, DEAD_KEY_CURE
            )
        if self._world.no_ipv4:
            return Warn(self._pool.name, f"no new machines: {self._world.no_ipv4}", WarningCode.NO_IPV4, NO_IPV4_CURE)
        cooldown = self._desired.cooldowns.get(CooldownKey.of_pool(self._pool.name))
        if cooldown is not None and cooldown.until > self._world.now:
            return Warn(
                self._pool.name,
                f"no new machines until {cooldown.until:%H:%M:%S} UTC: {cooldown.reason}",
                WarningCode.POOL_COOLING,
                f"mend the cause (see `meshctl events`); `meshctl scale --pool {self._pool.name}` lifts this at once",
            )
        cooldown = self._probing(CooldownKey.of_pool(self._pool.name))
        tried = self._tried(cooldown, self._have) if cooldown is not None else ""
        return self._alone(tried, cooldown) if cooldown is not None and tried else None

    def _one_of_each_probed(self, offers: Sequence[Offer]) -> tuple[list[Offer], list[Warn]]:
        """Those to rent now, and what waits: an offer whose breaker has cooled down has one machine to prove it."""
        wanted: list[Offer] = []
        held: dict[str, Warn] = {}
        for offer in offers:
            keys = set(scopes(self._pool.name, offer)[:-1])
            found = [(key, cooldown) for key in sorted(keys) if (cooldown := self._probing(key)) is not None]
            ahead = [(self._ahead_in(key, cooldown, wanted), cooldown) for key, cooldown in found]
            tried, cooldown = next(((slot, cooldown) for slot, cooldown in ahead if slot), ("", None))
            if cooldown is None:
                wanted.append(offer)
            else:
                held.setdefault(cooldown.key, self._alone(tried, cooldown))
        return wanted, list(held.values())

    def _ahead_in(self, key: CooldownKey, cooldown: Cooldown, wanted: Sequence[Offer]) -> str:
        """What is tried there already, or is about to be; "" for nothing."""
        there = [m for m in self._have if key in scopes(m.pool, m.offer)]
        about_to = (f"one machine of {o.key}" for o in wanted if key in scopes(self._pool.name, o))
        return self._tried(cooldown, there) or next(about_to, "")

    def _calmest(self, offers: Sequence[Offer]) -> Sequence[Offer]:
        """Where one machine is to prove a place or the pool, it is of an offer that failed least, or longest ago."""
        best: dict[str, tuple[int, float]] = {}
        proving: dict[str, list[str]] = {}
        for offer in offers:
            keys = scopes(self._pool.name, offer)
            proving[offer.key] = [key for key in keys[1:] if self._probing(key) is not None]
            for key in proving[offer.key]:
                best[key] = min(best.get(key, self._failed(offer)), self._failed(offer))
        return [o for o in offers if all(self._failed(o) == best[key] for key in proving[o.key])]

    def _failed(self, offer: Offer) -> tuple[int, float]:
        """How often in a row the offer's machines failed, and when that was over."""
        cooldown = self._probing(CooldownKey.of_offer(offer))
        return (cooldown.strikes, cooldown.until.timestamp()) if cooldown is not None else (0, 0.0)

    def _probing(self, key: CooldownKey) -> Cooldown | None:
        """The breaker that has cooled down, and no machine has been READY since: one machine proves it.

        A machine of another pool that proves an offer takes its breaker out of the journal.
        """
        cooldown = self._desired.expired_cooldowns.get(key)
        if cooldown is None or cooldown.cause not in TRIED_ALONE:
            return None
        of_key = [m for m in self._machines if key in scopes(m.pool, m.offer)]
        proved = any(m.ready_at is not None and m.ready_at >= cooldown.until for m in of_key)
        return None if proved else cooldown

    def _tried(self, cooldown: Cooldown, machines: Sequence[Machine]) -> str:
        """The slot of the machine that is to prove it; "" when there is none."""
        since = (m.slot for m in machines if m.created_at >= cooldown.until and m.phase is not Phase.READY)
        return next(since, "")

    def _alone(self, what: str, cooldown: Cooldown) -> Warn:
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

    def _best(self, offers: Sequence[Offer], need: Need) -> Cover | None:
        return cheapest_in_one(offers, need, self._here) if self._gang else cheapest(offers, need)

    def _move(self, fit: Sequence[Offer], free: Room) -> Iterator[Step]:
        """The gang goes elsewhere as a whole, as long as none of it is READY and another place has room for all."""
        # One that is kept after all has its step in this tick already, and one whose create call is not settled yet
        # might come into being beside the machine that is rented in its place.
        held = any(
            m.phase in {Phase.READY, Phase.LAUNCHING} or m.removal or self._world.jobs.get(m.slot) for m in self._have
        )
        if len(self._here) != 1 or held:
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

    # -- what to say when it cannot be had ------------------------------------------------------------------------

    def _short(self, selection: Selection) -> Warn:
        pool, target, need, cover, fit = self._pool, self._target, selection.need, selection.cover, selection.fit
        mine = self._in_place(fit)
        have = self._target.gpus - self._missing + cover.units
        wanted = f"{amount(target.gpus, pool)} wanted, {have} can be had"
        if not fit:
            why = why_none(self._offers, pool, target, self._desired.cooldowns, self._world.now)
            return Warn(pool.name, f"{wanted}: no offer will do: {why}", WarningCode.NO_OFFER)
        if not mine:
            return self._stuck(self._here[0])
        if self._best(mine, replace(need, machines_most=need.units)) is not None:
            return Warn(
                pool.name,
                f"{wanted}: the pool has at most {pool.max_nodes} nodes, and {need.machines_most} slots are free",
                WarningCode.SLOTS,
                f"raise pools.{pool.name}.max_nodes",
            )
        if self._best(mine, replace(need, usd_per_hour_most=None)) is not None:
            limit = total_limit(pool, target)
            said = limit == target.max_usd_per_hour
            spent = sum(m.usd_per_hour for m in self._machines)
            if spent > (limit or 0.0):
                there = amount(self._target.gpus - self._missing, pool)
                return Warn(
                    pool.name,
                    f"{amount(target.gpus, pool)} wanted, {there} there: what the pool has costs {spent:.2f} USD per "
                    f"hour, over the limit of {limit or 0:.2f} in all, and no more is rented",
                    WarningCode.OVER_LIMIT,
                    f"raise {'--max-total' if said else f'pools.{pool.name}.max_usd_per_hour'}",
                )
            return Warn(
                pool.name,
                f"{wanted} under the limit of {limit or 0:.2f} USD per hour in all",
                WarningCode.LIMIT_IN_ALL,
                f"raise {'--max-total' if said else f'pools.{pool.name}.max_usd_per_hour'}",
            )
        if self._best(mine, replace(need, overshoot_most=None)) is not None:
            said = target.overshoot_max_gpus is not None
            return Warn(
                pool.name,
                f"{wanted}: no machines come to that number with at most {need.overshoot_most} more",
                WarningCode.OVERSHOOT,
                f"raise {'--max-overshoot' if said else f'pools.{pool.name}.overshoot_max_gpus'}",
            )
        if self._gang and len(self._here) == 1:
            return self._stuck(self._here[0])
        return Warn(
            pool.name,
            f"{wanted} within {need.machines_most} free slots and the limits on price and overshoot together",
            WarningCode.LIMITS_TOGETHER,
            f"raise pools.{pool.name}.max_nodes, or a limit",
        )

    def _stuck(self, group: Group) -> Warn:
        """The gang's place has not enough, and it cannot move."""
        there = [offer for offer in self._offers if group_of(offer) == group]
        why = why_none(there, self._pool, self._target, self._desired.cooldowns, self._world.now)
        ready = sum(m.phase is Phase.READY for m in self._have)
        unsettled = [m.slot for m in self._have if m.phase is Phase.LAUNCHING]
        state = "no other place has all of it"
        if ready:
            state = f"{ready} machines are READY there"
        elif unsettled:
            state = f"the gang stays until the create calls of {', '.join(unsettled)} are settled"
        return Warn(
            self._pool.name,
            f"{self._missing} of {self._target.gpus} GPUs are missing in {place(group)}, and {state}: {why}",
            WarningCode.PLACE,
            f"`meshctl scale --pool {self._pool.name} --spread` lets the rest be elsewhere",
        )
