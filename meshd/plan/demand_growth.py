"""The machines for the slots that Slurm demands: what is rented, what moves, and what cannot be had now. PURE.

Every slot of a pool promises the same, so each machine counts as one, and the cheapest place for a gang is the one with
the cheapest offer. A gang is rented whole or not at all: a job cannot start on a part of its nodes. Each gang has its
own way through the offers, whatever the others do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from meshd.codes import DemandCode, WarningCode
from meshd.model.cooldown import CooldownCause, CooldownKey
from meshd.model.desired import Desired, Pool, Target, options_of
from meshd.model.ids import slot_name
from meshd.model.machine import Machine, Phase, Removal
from meshd.model.observed import Fresh, Snapshot
from meshd.model.plan import OpenSlots, RefusedDemand, Remove, RequestMachine, Step, Warn
from meshd.plaintext import counted
from meshd.plan.cover import micros
from meshd.plan.demand import Demand, Gang
from meshd.plan.demand_places import Places, first_within
from meshd.plan.gang import Group, group_of, place
from meshd.plan.grow import hindrance_of
from meshd.plan.placement import misses, spot_policy, usable, usable_from, why_none
from meshd.plan.plan_input import PlanInput
from meshd.plan.room import Money, leaves_soon, taken_slots
from meshd.plan.tried_alone import TriedAlone
from meshd.provider_api import Offer

UNREAD_PATIENCE_S = 300.0
"""Offers of a provider that could not be read for so long count as none. Before, they are unknown, and not refused."""

AGAIN_S = 300
"""Where nothing says when to try again, it is tried at a whole multiple of this, at the earliest after as long."""

MOVES_S = 30
"""For so long a job goes back to the queue whose nodes leave, so that it gets all of them in another place."""

ENDS_SOMEHOW = frozenset({DemandCode.FROZEN, DemandCode.RESTORED_UNLISTED})
"""A freeze ends when somebody ends it, and a cloud can be listed again at any time."""

_CODES = {
    WarningCode.FROZEN: DemandCode.FROZEN,
    WarningCode.RESTORED_UNLISTED: DemandCode.RESTORED_UNLISTED,
    WarningCode.AUTH_KEY_DEAD: DemandCode.AUTH_KEY_DEAD,
    WarningCode.NO_IPV4: DemandCode.NO_IPV4,
    WarningCode.POOL_COOLING: DemandCode.POOL_COOLING,
}


class _Refusal:
    """Why nothing can be had, and until when."""

    def __init__(self, code: DemandCode, reason: str, until: datetime) -> None:
        self.code, self.reason, self.until = code, reason, until


class DemandGrowth:
    """Decides about one pool's demand.

    Args:
        machines: those of the pool that are not GONE.
        have: those that count as supply and stay.
        money: what the plan may still spend.

    Attributes:
        refused: the gangs that cannot be had; filled by `steps`.
    """

    def __init__(
        self,
        desired: Desired,
        pool: Pool,
        machines: Sequence[Machine],
        have: Sequence[Machine],
        snapshot: Snapshot,
        given: PlanInput,
        money: Money,
    ) -> None:
        self._desired = desired
        self._pool = pool
        self._target = Target(pool.name, 0)  # the options of a person's order are not for jobs
        self._machines = machines
        self._have = have
        self._given = given
        self._money = money
        self._snapshot = snapshot
        self._users = {job.id: job.user for job in given.slurm.jobs if job.configuring} if given.slurm else {}
        self._tried = TriedAlone(desired, pool, machines, have)
        self._hindrance = hindrance_of(desired, pool, given)
        leaving = [m for m in machines if leaves_soon(m, given)]
        self._usd = money.left(pool, self._target, machines, leaving)
        self._spent = 0
        self._let_go: dict[str, int] = {}  # micro-USD per hour of nodes that leave once a job has let go of them
        self._stopped = False
        self._offers = snapshot.known_offers
        self._fit = usable(self._offers, pool, self._target, desired.cooldowns, given.now)
        self._all = Places(self._fit, self._place_of, self._objective)
        least = self._tried.least_failed(self._fit) if self._tried.any_due else self._fit
        self._least = self._all if least is self._fit else Places(least, self._place_of, self._objective)
        self._whys: dict[Group | None, _Refusal] = {}
        self.refused: list[RefusedDemand] = []

    def steps(self, gangs: Iterable[Gang]) -> Iterator[Step]:
        """The machines to rent, the removals with which gangs move, and warnings."""
        waits = self._tried.hindrance()
        if waits is not None:
            yield waits
            return
        told: set[Warn] = set()
        for gang in gangs:
            for step in self._of_gang(gang):
                if isinstance(step, Warn):
                    if step in told:
                        continue
                    told.add(step)
                yield step

    def open_slots(self, demand: Demand) -> OpenSlots | None:
        """How many of the free slots are worth powering up; None while that is not known. Call it after `steps`."""
        taken = taken_slots(self._machines, self._given) | demand.slots | demand.closed
        slots = (slot_name(self._pool.name, index) for index in range(1, self._pool.max_nodes + 1))
        free = sum(slot not in taken for slot in slots)
        if self._hindrance is not None:
            found = self._hindered(self._hindrance)
            if found is None:
                return OpenSlots(free)
            until = None if found.code in ENDS_SOMEHOW else found.until
            return OpenSlots(0, found.code, found.reason, until)
        if not self._fit:
            if self._unread():
                return None
            none = self._why_none()
            return OpenSlots(0, none.code, none.reason, none.until)
        left = self._left_micros(self._usd.soon)
        if left is not None:
            left += sum(self._let_go.values())
            dearest = min(micros(offer.usd_per_hour) for offer in self._fit)
            count = max(0, left // dearest, self._by_moves(left)) if dearest else free
            if count < free:
                limit = self._over_limit(1)
                return OpenSlots(count, limit.code, limit.reason, limit.until)
        return OpenSlots(free)

    def _by_moves(self, left: int) -> int:
        """How many slots a job can have beside all idle nodes, if these make room for it and it moves elsewhere.

        A job that asks for more nodes than are idle gets all of them, and then moves by `_of_gang`.

        Args:
            left: micro-USD per hour for new machines, beside those that exist.
        """
        nodes = [m for m in self._have if m.phase is Phase.READY and self._is_free(m)]
        here = set() if self._pool.spread else {group_of(m.offer) for m in nodes}
        if len(here) != 1 or not all(self._can_leave(m, Gang((), (), frozenset(), ())) for m in nodes):
            return 0
        other = self._all.cheapest(1, None, without=next(iter(here)))
        price = micros(other.usd_per_hour) if other is not None else 0
        return (left + sum(micros(m.usd_per_hour) for m in nodes)) // price - len(nodes) if price else 0

    def _is_free(self, machine: Machine) -> bool:
        """Whether Slurm gives the node to the next job that asks for one."""
        node = self._given.node(machine)
        return node is not None and node.up and not node.drained and self._given.idle(machine)

    # -- one gang -------------------------------------------------------------------------------------------------

    def _of_gang(self, gang: Gang) -> Iterator[Step]:
        if self._hindrance is not None:
            refusal = self._hindered(self._hindrance)
            if refusal is not None:
                self._refuse(gang, refusal)
            return
        if self._stopped:
            return  # one machine proves the pool first
        # Nothing can be rented where a host is, and it does not move.
        gang = replace(gang, machines=tuple(m for m in gang.machines if not m.offer.slot))
        if gang.moving:
            self._count_on(gang.moving)
            names = ", ".join(m.slot for m in gang.moving)
            self._refuse(gang, self._goes_elsewhere(f"{names} leaves before all its machines are there"))
            return
        here = set() if self._pool.spread else {group_of(m.offer) for m in gang.machines}
        only = next(iter(here)) if len(here) == 1 else None
        count, limit = len(gang.slots), self._left_micros(self._usd.soon)
        offer = self._cheapest(count, limit, here, only)
        if offer is not None:
            yield from self._requests(gang, offer)
            return
        if self._unread():
            return
        if only is not None and any(m.removal or m.phase is Phase.LAUNCHING for m in gang.machines):
            return  # where it may go is known once this is settled
        if only is not None and all(self._can_leave(machine, gang) for machine in gang.machines):
            instead = sum(micros(m.usd_per_hour) for m in gang.machines)
            roomy = None if limit is None else limit + instead
            other = self._all.cheapest(count + len(gang.machines), roomy, without=only)
            if other is not None:
                removals = list(self._moves(gang, only, other))
                self._count_on(gang.machines)
                if any(m.phase is Phase.READY or not self._given.idle(m) for m in gang.machines):
                    # Slurm keeps the job's slots together: it gets others once it has let go of this node.
                    self._refuse(gang, self._goes_elsewhere(removals[0].reason))
                yield from removals
                return
        self._refuse(gang, self._refusal(count, only, gang))

    def _cheapest(self, count: int, limit: int | None, here: set[Group], only: Group | None) -> Offer | None:
        if only is None:
            tables = (self._least, self._all) if self._least is not self._all else (self._all,)
            found = (table.cheapest(count, limit, here=here) for table in tables)
            return next((offer for offer in found if offer is not None), None)
        mine = self._all.offers(only)
        least = self._tried.least_failed(mine) if self._tried.any_due else mine
        return first_within(least, count, limit) or first_within(mine, count, limit)

    def _requests(self, gang: Gang, offer: Offer) -> Iterator[Step]:
        price, now = micros(offer.usd_per_hour), self._left_micros(self._usd.now)
        whole = price * len(gang.slots)
        waits_for_money = now is not None and whole > now
        self._spent += whole
        self._money.spend(self._pool.name, gang.slots, offer)
        if waits_for_money:
            return
        slots = [slot for slot in gang.slots if slot not in gang.soon]
        pool_is_tried = self._tried.pool_is_tried()
        asked: list[str] = []
        for slot in slots:
            warning = self._tried.take(offer)
            if warning is not None:
                yield warning
                break
            asked.append(slot)
            if pool_is_tried:
                self._stopped = True
                break
        tried = pool_is_tried or self._tried.is_tried(offer)
        # Where a job may be spread, a cloud that has room for a part of it gives that part: one call would give none.
        together = len(asked) > 1 and not self._pool.spread
        call = f"{asked[0]}-{self._given.now.astimezone(UTC):%Y%m%d%H%M%S}" if together else ""
        whose = ", ".join(sorted({self._users[job] for job in gang.jobs if job in self._users})[:3])
        reason = f"Slurm powers it up for {gang.words} of {whose}" if gang.jobs else "somebody powered it up"
        for slot in asked:
            yield RequestMachine(
                slot, f"{reason}; it is tried alone first" if tried else reason, self._pool.name, offer,
                by_queue=True, for_jobs=self._given.configuring_jobs.get(slot, ()), gang=call,
            )  # fmt: skip

    def _can_leave(self, machine: Machine, gang: Gang) -> bool:
        """Whether a machine of a gang may be given up for one elsewhere.

        One that is not a node yet may, if no job can start there. A node may, if no other job has it, none runs there,
        and nobody has ordered it where it is.
        """
        slot, given = machine.slot, self._given
        if machine.phase is not Phase.READY and given.idle(machine):
            return True
        target, node = self._desired.target(self._pool), given.node(machine)
        kept = machine.held or (given.slurm is not None and slot in given.slurm.suspend_exc)
        ordered = target is not None and bool(options_of(target))
        strangers = given.jobs.get(slot) or not set(given.configuring_jobs.get(slot, ())) <= set(gang.jobs)
        return not (kept or ordered or strangers) and node is not None and "COMPLETING" not in node.states

    def _count_on(self, nodes: Iterable[Machine]) -> None:
        """Keep slots open for the money of these: reopening them would bring the job back before they are gone."""
        self._let_go |= {m.name: micros(m.usd_per_hour) for m in nodes if not leaves_soon(m, self._given)}

    def _goes_elsewhere(self, reason: str) -> _Refusal:
        return _Refusal(DemandCode.PLACE, reason, self._given.now + timedelta(seconds=MOVES_S))

    def _moves(self, gang: Gang, only: Group, other: Offer) -> Iterator[Remove]:
        total = counted(len(gang.slots) + len(gang.machines), "machine")
        reason = (
            f"its gang moves: {place(only)} cannot give {len(gang.slots)} of {total} for {gang.words}, and "
            f"{place(group_of(other))} can give all"
        )
        for machine in gang.machines:
            yield Remove(machine.name, reason, Removal.GANG_MOVED)

    # -- what cannot be had ---------------------------------------------------------------------------------------

    def _refuse(self, gang: Gang, refusal: _Refusal) -> None:
        self.refused.append(
            RefusedDemand(self._pool.name, gang.jobs, gang.slots, refusal.code, refusal.reason, refusal.until)
        )

    def _hindered(self, warning: Warn) -> _Refusal | None:
        """The refusal that follows from what hinders the whole pool; None for a pause, which is over soon."""
        cooldown = self._desired.cooldowns.get(CooldownKey.of_pool(self._pool.name))
        cooling = warning.code is WarningCode.POOL_COOLING and cooldown is not None
        if cooling and cooldown is not None and cooldown.cause is CooldownCause.PAUSE:
            return None
        restored = self._desired.restored
        if warning.code is WarningCode.RESTORED_UNLISTED and restored is not None:
            # At first its listing is only about to come.
            if (self._given.now - restored.at).total_seconds() < UNREAD_PATIENCE_S:
                return None
            return _Refusal(_CODES[warning.code], restored.words(), again_at(self._given.now))
        until = cooldown.until if cooling and cooldown is not None else again_at(self._given.now)
        freeze = self._desired.freeze
        return _Refusal(_CODES[warning.code], freeze.words if freeze is not None else warning.reason, until)

    def _refusal(self, count: int, only: Group | None, gang: Gang) -> _Refusal:
        if not self._fit:
            return self._why_none()
        if only is None or self._all.offers(only):
            return self._over_limit(count)
        stuck = self._why_none(only)
        ready = sum(m.phase is Phase.READY or not self._given.idle(m) for m in gang.machines)
        state = f"{counted(ready, 'machine')} of it are nodes already" if ready else "no other place has all of it"
        total = counted(count + len(gang.machines), "machine")
        reason = f"{count} of {total} are missing in {place(only)}, and {state}: {stuck.reason}"
        return _Refusal(DemandCode.PLACE, reason, stuck.until)

    def _why_none(self, only: Group | None = None) -> _Refusal:
        """Why no offer can be rented: of all places, or of one."""
        if only not in self._whys:
            pool, now, cooldowns = self._pool, self._given.now, self._desired.cooldowns
            offers = [o for o in self._offers if only is None or self._place_of(o) == only]
            suited = [o for o in offers if next(misses(o, pool, self._target), None) is None]
            code = DemandCode.NO_CAPACITY if suited else DemandCode.NO_OFFER
            until = min((usable_from(o, cooldowns, now, pool.name) for o in suited), default=again_at(now))
            self._whys[only] = _Refusal(code, why_none(offers, pool, self._target, cooldowns, now), until)
        return self._whys[only]

    def _over_limit(self, count: int) -> _Refusal:
        price = min(offer.usd_per_hour for offer in self._fit)
        reason = f"{counted(count, 'machine')} for {price * count:.2f} USD per hour would be {self._usd.words}"
        budget = self._usd.budget
        code = DemandCode.LIMIT_IN_ALL if budget is None else DemandCode.BUDGET
        until = budget.until if budget is not None else None
        return _Refusal(code, reason, until or again_at(self._given.now))

    def _unread(self) -> bool:
        """Whether offers of one of the pool's providers are not known."""
        for provider in self._pool.providers:
            seen = self._snapshot.offers.get(provider)
            if seen is None:
                continue
            if not isinstance(seen, Fresh) and (self._given.now - seen.since).total_seconds() < UNREAD_PATIENCE_S:
                return True
        return False

    # -- the choice -----------------------------------------------------------------------------------------------

    def _left_micros(self, usd: float | None) -> int | None:
        return None if usd is None else micros(usd) - self._spent

    def _place_of(self, offer: Offer) -> Group:
        return ("", "") if self._pool.spread else group_of(offer)

    def _objective(self, offer: Offer) -> tuple[bool, int, int, int, str]:
        prefer_spot = spot_policy(self._pool, self._target) == "prefer"
        order = self._pool.providers.index(offer.provider)
        # Of two that cost the same, the one with the promised GPUs leaves none idle.
        return prefer_spot and not offer.spot, micros(offer.usd_per_hour), offer.gpus, order, offer.key


def again_at(now: datetime) -> datetime:
    """When to try again where nothing says it: in AGAIN_S to 2 x AGAIN_S, and the same for as long as possible."""
    begun = int(now.timestamp()) // AGAIN_S * AGAIN_S
    return datetime.fromtimestamp(begun, UTC) + timedelta(seconds=2 * AGAIN_S)
