"""Owned machines (hosts) in the plan. PURE.

A host has one slot for its whole stay, which no rented machine takes. One that never sleeps is wanted whenever it is
there: it costs nothing more while it has no job. One that sleeps is rented for its slot like any other offer, before
all others, and put to sleep when its machine is given back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from meshd import gpus
from meshd.model.desired import Desired, Pool, Target
from meshd.model.host import PROVIDER, Host, HostOrder, HostState
from meshd.model.machine import Machine
from meshd.model.observed import TailnetView
from meshd.model.plan import RequestMachine
from meshd.plan.placement import cooldown_of, misses
from meshd.plan.plan_input import PlanInput
from meshd.plan.room import Money, taken_slots
from meshd.provider_api import Offer, PriceSource, ProviderName

REGION = "owned"


def offer_of(host: Host) -> Offer | None:
    """What the host offers; None before it is enrolled."""
    if host.facts is None:
        return None
    cards = host.facts.gpus
    return Offer(
        provider=ProviderName(PROVIDER), region=REGION, zone="", instance_type=host.name,
        gpu=gpus.normalise(cards[0].name) if cards else "", gpus=len(cards),
        gpu_memory_gib=gpus.sold_gb(min(card.memory_mib for card in cards)) if cards else 0,
        vcpus=host.facts.shape.cpus, memory_mib=host.facts.shape.memory_mib, usd_per_hour=host.usd_per_hour,
        arch="arm64" if host.facts.arch in {"aarch64", "arm64"} else "x86_64", price_source=PriceSource.SETTINGS,
        slot=host.slot, standing=not host.can_sleep,
    )  # fmt: skip


def instance_id(host: str, machine: str) -> str:
    """The id of one stay of a host, at the provider `static`."""
    return f"{host}/{machine}"


def order_of(host: Host) -> HostOrder:
    """Where the host should go. Its machine leaves Slurm before the host is evicted."""
    if host.machine:
        return HostOrder.NODE
    if host.evict:
        return HostOrder.EVICT
    return HostOrder.SLEEP if host.sleeping_since is not None else HostOrder.FREE


def unsuited(host: Host, pool: Pool) -> str:
    """Why the host cannot be a node of its pool, for people; "" when it can."""
    offer = offer_of(host)
    if offer is None:
        return "nobody has redeemed its invitation"
    whys = misses(replace(offer, slot=""), replace(pool, regions=()), Target(pool.name, 0))
    return "; ".join(f"{miss.text} ({miss.cure})" if miss.cure else miss.text for miss in whys)


def away(host: Host, now: datetime) -> str:
    """Why no machine can be had of the host now, for people; "" when one can."""
    if host.enrolled_at is None:
        return f"{host.name} is invited until {host.expires_at:%Y-%m-%d %H:%M} UTC"
    if host.evict:
        return f"{host.name} is being evicted"
    if not host.present(now):
        if host.can_sleep:
            return ""  # it is woken
        seen = f"since {host.seen_at:%Y-%m-%d %H:%M} UTC" if host.seen_at else "since meshd knows it"
        return f"{host.name} is away {seen}"
    if host.state is not HostState.FREE:
        return f"{host.name} is {host.state.value}" + (f": {host.problem}" if host.problem else "")
    return ""


def as_machines(view: TailnetView, hosts: Iterable[Host]) -> TailnetView:
    """The tailnet with the devices of hosts under the names of their machines. A host keeps the name of its device."""
    names = {host.device_id: host.machine for host in hosts if host.machine and host.device_id in view.peers}
    if not names:
        return view
    renamed = {id_: replace(view.peers[id_], hostname=name) for id_, name in names.items()}
    return replace(view, peers={**view.peers, **renamed})


@dataclass(frozen=True, slots=True)
class Bound:
    """The slots of a pool that belong to hosts.

    Attributes:
        slots: all of them.
        free: by slot, the offer of a host of which a machine can be had now.
        whys: by slot, why none can be had.
    """

    slots: frozenset[str] = frozenset()
    free: Mapping[str, Offer] = field(default_factory=dict)
    whys: Mapping[str, str] = field(default_factory=dict)

    @property
    def states(self) -> Mapping[str, str]:
        """By slot without a machine: why no machine can be had for it; "" where one can."""
        return {**dict.fromkeys(self.free, ""), **self.whys}

    def requests(
        self, pool: Pool, target: Target, missing: int, reason: str, money: Money, besides: Collection[str] = ()
    ) -> Iterator[RequestMachine]:
        """Machines of sleeping hosts for the missing units: the cheapest first, and none that is too large.

        Args:
            pool: the pool.
            target: its options hold for hosts too.
            missing: units.
            reason: why, for people.
            money: what the plan may still spend.
            besides: slots that are for jobs.
        """
        anywhere = replace(pool, regions=())
        for slot, offer in sorted(self.free.items(), key=lambda one: (one[1].usd_per_gpu_hour, one[0])):
            units = offer.gpus or 1
            suits = next(misses(replace(offer, slot=""), anywhere, target), None) is None
            if suits and slot not in besides and not offer.standing and units <= missing:
                missing -= units
                money.spend(pool.name, [slot], offer)
                yield RequestMachine(slot, reason, pool.name, offer)


NONE_BOUND = Bound()


def bound(desired: Desired, pool: Pool, machines: Sequence[Machine], given: PlanInput) -> Bound:
    """The slots of this pool's hosts, and whose machine can be had. `machines` are those that are not GONE."""
    mine = [h for h in desired.hosts if h.pool == pool.name and (h.enrolled_at is not None or h.open(given.now))]
    if not mine:
        return NONE_BOUND
    taken, there = taken_slots(machines, given), {m.offer.instance_type for m in machines if m.provider == PROVIDER}
    free: dict[str, Offer] = {}
    whys: dict[str, str] = {}
    for host in mine:
        offer = offer_of(host)
        why = away(host, given.now) or unsuited(host, pool) or given.no_ipv4
        why = why or (desired.freeze.words if desired.freeze is not None else "")
        if offer is not None and not why:
            cooldown = cooldown_of(offer, desired.cooldowns, given.now, pool.name)
            why = f"{cooldown.key.words} cools down: {cooldown.reason}" if cooldown is not None else ""
        if why:
            whys[host.slot] = why
        elif offer is not None and not host.machine and host.name not in there and host.slot not in taken:
            free[host.slot] = offer
    return Bound(frozenset(host.slot for host in mine), free, whys)


def standing(pool: Pool, found: Bound, money: Money) -> list[RequestMachine]:
    """The machines of the hosts that are there and never sleep."""
    steps = []
    for slot, offer in sorted(found.free.items()):
        if offer.standing:
            money.spend(pool.name, [slot], offer)
            steps.append(RequestMachine(slot, f"{offer.instance_type} is there", pool.name, offer))
    return steps
