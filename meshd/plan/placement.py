"""Which offers suit a pool's next machines, and why the others do not. PURE."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches

from meshd import gpus
from meshd.model.cooldown import Cooldown, CooldownCause, CooldownKey, scopes
from meshd.model.desired import PodPolicy, Pool, Promise, SpotPolicy, Target
from meshd.plaintext import counted
from meshd.plan.prices import refresh_words, too_old
from meshd.provider_api import Offer


@dataclass(frozen=True, slots=True)
class Miss:
    """One reason against an offer, and the setting or option that would allow it ("" for none)."""

    text: str
    cure: str


def misses(offer: Offer, pool: Pool, target: Target) -> Iterator[Miss]:
    """All reasons against an offer, the most important first; none for an offer that suits."""
    yield from _wrong_kind(offer, pool, target)
    yield from _too_small(offer, pool)
    yield from _elsewhere(offer, pool, target)
    yield from _not_for_sale(offer, pool, target)


def nearness(offer: Offer, against: Sequence[Miss], pool: Pool) -> tuple[int, int, float, str]:
    """A key to sort offers that do not suit: how much is against them, the memory that their GPUs lack, the price."""
    lacks_gb = max(pool.gpu_memory_min_gib - offer.gpu_memory_gib, 0)
    return len(against), lacks_gb, offer.usd_per_gpu_hour, offer.key


def nearest(offers: Iterable[Offer], pool: Pool, target: Target) -> tuple[Offer, tuple[Miss, ...]] | None:
    """The offer of the pool's GPU that comes nearest to what the pool takes, and what is against it; None for none."""
    kinds = ((offer, tuple(misses(offer, pool, target))) for offer in offers if gpus.matches(pool.gpu, offer.gpu))
    return min(kinds, key=lambda one: nearness(one[0], one[1], pool), default=None)


def _wrong_kind(offer: Offer, pool: Pool, target: Target) -> Iterator[Miss]:
    own = f"pools.{pool.name}"
    if fault := pod_fault(offer.provider, pool, target):
        yield Miss(fault, "--pods" if target.pods else f"{own}.pods")
    if not gpus.matches(pool.gpu, offer.gpu):
        yield Miss(f"has {offer.gpu or 'no GPU'}, not {pool.gpu or 'CPU only'}", f"{own}.gpu")
    elif target.gpu and not gpus.matches(target.gpu, offer.gpu):
        yield Miss(f"has {offer.gpu}, and {target.gpu} was asked for", "--gpu")
    least, most = node_gpus(pool, target)
    if not least <= offer.gpus <= most:
        allowed = f"{least}" if least == most else f"{least} to {most}"
        cure = f"{own}.gpus_per_node and gpus_per_node_max" if target.gpus_per_node is None else "--gpus-per-node"
        yield Miss(f"has {offer.gpus} GPUs, not {allowed}", cure)
    if offer.arch != pool.arch:
        yield Miss(f"is {offer.arch}, not {pool.arch}", f"{own}.arch")


def _too_small(offer: Offer, pool: Pool) -> Iterator[Miss]:
    own = f"pools.{pool.name}"
    if offer.gpu_memory_gib < pool.gpu_memory_min_gib:
        text = f"has {offer.gpu_memory_gib} GB for each GPU, less than {pool.gpu_memory_min_gib}"
        yield Miss(text, f"{own}.gpu_memory_min_gib")
    if offer.vcpus < pool.cpus_min:
        yield Miss(f"has {offer.vcpus} CPUs, fewer than {pool.cpus_min}", f"{own}.cpus_min")
    if offer.memory_mib < pool.memory_min_mib:
        yield Miss(f"has {offer.memory_mib} MiB, less than {pool.memory_min_mib}", f"{own}.memory_min_mib")
    if pool.promise is not None:
        yield from _breaks(offer, pool, pool.promise)


def _breaks(offer: Offer, pool: Pool, promise: Promise) -> Iterator[Miss]:
    """What of the pool's promise the offer does not hold. Less than the pool's own limits was reported already."""
    own, slot = f"pools.{pool.name}", "a node of the pool promises"
    if pool.cpus_min <= offer.vcpus < promise.cpus:
        yield Miss(f"has {offer.vcpus} CPUs, and {slot} {promise.cpus}", f"{own}.cpus_min")
    if pool.memory_min_mib <= offer.memory_mib < promise.memory_mib:
        yield Miss(f"has {offer.memory_mib} MiB, and {slot} {promise.memory_mib}", f"{own}.memory_min_mib")
    if offer.gpus < promise.gpus:
        yield Miss(f"has {offer.gpus} GPUs, and {slot} {promise.gpus}", f"{own}.gpus_per_node")


def _elsewhere(offer: Offer, pool: Pool, target: Target) -> Iterator[Miss]:
    own, where = f"pools.{pool.name}", offer.zone or offer.region
    if offer.slot:
        yield Miss(f"is for {offer.slot} alone", "")
    if offer.provider not in pool.providers:
        yield Miss("its provider is not among the pool's", f"{own}.providers")
    if target.provider and offer.provider != target.provider:
        yield Miss(f"only {target.provider} was asked for", "--provider")
    if pool.regions and not within(offer, pool.regions):
        yield Miss(f"is in {where}, not among the pool's regions", f"{own}.regions")
    if target.regions and not within(offer, target.regions):
        yield Miss(f"is in {where}, and {', '.join(target.regions)} was asked for", "--region")


def _not_for_sale(offer: Offer, pool: Pool, target: Target) -> Iterator[Miss]:
    spot, limit = spot_policy(pool, target), price_limit(pool, target)
    who, cure = ("it was asked for", "--spot") if target.spot else ("the pool", f"pools.{pool.name}.spot")
    if offer.spot and spot == "never":
        yield Miss("is spot, and none was asked for" if target.spot else f"is spot, and {who} never takes spot", cure)
    if not offer.spot and spot == "only":
        yield Miss(
            "is not spot, and only spot was asked for" if target.spot else f"is not spot, and {who} takes nothing else",
            cure,
        )
    if limit is not None and offer.usd_per_gpu_hour > limit:
        said = target.max_usd_per_gpu_hour == limit
        text = f"costs {offer.usd_per_gpu_hour:.2f} USD per GPU-hour, over the limit of {limit:.2f}"
        yield Miss(text, "--max-price" if said else f"pools.{pool.name}.max_usd_per_gpu_hour")
    if old := too_old(offer, pool, target):
        yield Miss(old, refresh_words(offer.provider))
    if offer.available is False:
        yield Miss("the provider shows no free capacity", "")


def node_gpus(pool: Pool, target: Target) -> tuple[int, int]:
    """The fewest and the most GPUs that one new machine may have."""
    if pool.cpu_only:
        return 0, 0
    if target.gpus_per_node is not None:
        return target.gpus_per_node, target.gpus_per_node
    return pool.gpus_per_node, pool.gpus_per_node_most


def unit_of(pool: Pool) -> str:
    """What counts in a pool: GPUs, or machines where they have none."""
    return "machine" if pool.cpu_only else "GPU"


def amount(units: int, pool: Pool) -> str:
    """A number of the pool's units, for people: "4 GPUs", "1 machine"."""
    return counted(units, unit_of(pool))


def within(offer: Offer, places: Iterable[str]) -> bool:
    """Whether the offer is in one of these regions or zones."""
    return any(place in (offer.region, offer.zone) for place in places)


def spot_policy(pool: Pool, target: Target) -> SpotPolicy:
    """The target's spot policy, or the pool's where the target has none."""
    return target.spot or pool.spot


def pod_policy(pool: Pool, target: Target) -> PodPolicy:
    """The target's policy for pods, or the pool's where the target has none."""
    return target.pods or pool.pods


def pod_fault(provider: str, pool: Pool, target: Target) -> str:
    """Why the machines of one of its providers will not do because they are pods, or are not; "" when they will."""
    policy, is_pod = pod_policy(pool, target), provider in pool.pod_providers
    if is_pod and policy == "never":
        return f"is a pod, and {'none was asked for' if target.pods else 'the pool never takes pods'}"
    if not is_pod and policy == "only":
        return f"is no pod, and {'only pods were asked for' if target.pods else 'the pool takes only pods'}"
    return ""


def price_limit(pool: Pool, target: Target) -> float | None:
    """The lower of the pool's and the target's limit, in USD per GPU-hour; None for no limit."""
    limits = [x for x in (pool.max_usd_per_gpu_hour, target.max_usd_per_gpu_hour) if x is not None]
    return min(limits, default=None)


def total_limit(pool: Pool, target: Target) -> float | None:
    """The lower of the pool's and the target's limit for all machines, in USD per hour; None for no limit."""
    limits = [x for x in (pool.max_usd_per_hour, target.max_usd_per_hour) if x is not None]
    return min(limits, default=None)


def overshoot_most(pool: Pool, target: Target) -> int | None:
    """The most GPUs to rent beyond the target; None: as many as is cheapest."""
    return pool.overshoot_max_gpus if target.overshoot_max_gpus is None else target.overshoot_max_gpus


def cooldown_of(
    offer: Offer, cooldowns: Mapping[CooldownKey, Cooldown], now: datetime, pool: str = ""
) -> Cooldown | None:
    """The cooldown in force that keeps the offer from being rented; None for none.

    A pause of its provider does not count: orders go to such a provider, and wait there.

    Args:
        offer: the offer.
        cooldowns: those in force.
        now: UTC.
        pool: the pool that would rent it; "" ignores cooldowns of places, which are of one pool each.
    """
    return next(_cooling(offer, cooldowns, now, pool), None) if cooldowns else None


def usable_from(offer: Offer, cooldowns: Mapping[CooldownKey, Cooldown], now: datetime, pool: str) -> datetime:
    """When the last of the offer's cooldowns ends; `now` when none is in force."""
    return max((one.until for one in _cooling(offer, cooldowns, now, pool)), default=now)


def _cooling(offer: Offer, cooldowns: Mapping[CooldownKey, Cooldown], now: datetime, pool: str) -> Iterator[Cooldown]:
    keys = scopes(pool, offer)[:-1] if pool else scopes("", offer)[:1]
    found = (cooldowns.get(key) for key in (*keys, CooldownKey.of_provider(offer.provider)))
    return (one for one in found if one is not None and one.until > now and one.cause is not CooldownCause.PAUSE)


def usable(
    offers: Iterable[Offer], pool: Pool, target: Target, cooldowns: Mapping[CooldownKey, Cooldown], now: datetime
) -> list[Offer]:
    """The offers that suit and do not cool down, in no order."""
    return [
        offer
        for offer in offers
        if next(misses(offer, pool, target), None) is None and cooldown_of(offer, cooldowns, now, pool.name) is None
    ]


def ranked(
    offers: Iterable[Offer], pool: Pool, target: Target, cooldowns: Mapping[CooldownKey, Cooldown], now: datetime
) -> list[Offer]:
    """The usable offers, best first: spot if it is preferred, then the price of a GPU, the provider order, the name."""
    preference = {name: index for index, name in enumerate(pool.providers)}
    prefer_spot = spot_policy(pool, target) == "prefer"
    return sorted(
        usable(offers, pool, target, cooldowns, now),
        key=lambda o: (prefer_spot and not o.spot, o.usd_per_gpu_hour, preference[o.provider], o.key),
    )


def why_none(
    offers: Iterable[Offer], pool: Pool, target: Target, cooldowns: Mapping[CooldownKey, Cooldown], now: datetime
) -> str:
    """Why no offer is usable, in one line: the closest ones first, each with what would allow it."""
    offers = list(offers)
    if not offers:
        return "no provider offers anything at all right now"
    if spot_policy(pool, target) == "only" and pool.with_spot is not None and not pool.with_spot:
        names = ", ".join(pool.providers)
        return f"only spot will do, and {names} offers none (providers.NAME.spot = true, where the cloud has spot)"
    if target.regions and not any(within(offer, target.regions) for offer in offers):
        return f"nobody offers anything in {', '.join(target.regions)} now{_near(target.regions[0], offers)}"
    found = [(tuple(misses(offer, pool, target)), offer) for offer in offers]
    cooling = sorted(
        {
            f"{cooldown.key.words} cools down until {cooldown.until:%H:%M:%S} UTC: {cooldown.reason}"
            for against, offer in found
            if not against and (cooldown := cooldown_of(offer, cooldowns, now, pool.name)) is not None
        }
    )
    if cooling:
        more = f"; and {len(cooling) - 3} more" if len(cooling) > 3 else ""
        return "; ".join(cooling[:3]) + more
    same_gpu = [(against, offer) for against, offer in found if gpus.matches(target.gpu or pool.gpu, offer.gpu)]
    if not same_gpu:
        if pool.cpu_only:
            return "nobody offers machines without GPUs: name such types in a provider's table (docs/providers.md)"
        models = sorted({f"{o.gpus}x {o.gpu}" for o in offers if o.gpu}) or ["no GPU at all"]
        least, most = node_gpus(pool, target)
        count = f"{least}x " if least == most else f"{least} to {most}x "
        return f"nobody offers {count}{target.gpu or pool.gpu}; there is {', '.join(models[:8])}"
    closest = sorted(same_gpu, key=lambda one: (len(one[0]), one[1].usd_per_gpu_hour, one[1].key))
    return "; ".join(f"{offer.key} {_against(against)}" for against, offer in closest[:3])


def _near(place: str, offers: Iterable[Offer]) -> str:
    """A hint at regions and zones with a similar name, for a mistyped one."""
    near = get_close_matches(place, sorted({o.region for o in offers} | {o.zone for o in offers if o.zone}), n=3)
    return f"; near that name: {', '.join(near)} (--region)" if near else " (--region)"


def _against(against: Iterable[Miss]) -> str:
    return ", and ".join(f"{miss.text} ({miss.cure})" if miss.cure else miss.text for miss in against)
