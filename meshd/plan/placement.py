"""Which offer to take for a pool's next machine. PURE."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from meshd.model.desired import Block, Pool, Target
from meshd.provider_api import Offer


def gpu_matches(wanted: str, offered: str) -> bool:
    """Whether an offered GPU model is the one asked for: "h100" takes "h100-sxm", "h100-sxm" only itself."""
    return offered == wanted or (bool(wanted) and offered.startswith(f"{wanted}-"))


def suits(offer: Offer, pool: Pool, target: Target) -> str:
    """Why the offer cannot serve the pool; "" when it can."""
    limit = price_limit(pool, target)
    checks = (
        (not gpu_matches(pool.gpu, offer.gpu), f"has {offer.gpu or 'no GPU'}, not {pool.gpu or 'CPU only'}"),
        (offer.gpus != pool.gpus_per_node, f"has {offer.gpus} GPUs, not {pool.gpus_per_node}"),
        (offer.provider not in pool.providers, "its provider is not among the pool's"),
        (bool(target.provider) and offer.provider != target.provider, f"only {target.provider} was asked for"),
        (offer.vcpus < pool.cpus_min, f"has {offer.vcpus} CPUs, fewer than {pool.cpus_min}"),
        (offer.memory_mib < pool.memory_min_mib, f"has {offer.memory_mib} MiB, less than {pool.memory_min_mib}"),
        (offer.spot and pool.spot == "never", "is spot, and the pool never takes spot"),
        (not offer.spot and pool.spot == "only", "is not spot, and the pool takes nothing else"),
        (
            limit is not None and offer.usd_per_gpu_hour > limit,
            f"costs {offer.usd_per_gpu_hour:.2f} USD per GPU-hour, over the limit of {limit or 0:.2f}",
        ),
        (offer.available is False, "the provider shows no free capacity"),
    )
    return next((why for failed, why in checks if failed), "")


def price_limit(pool: Pool, target: Target) -> float | None:
    """The lower of the pool's and the target's limit, in USD per GPU-hour; None for no limit."""
    limits = [x for x in (pool.max_usd_per_gpu_hour, target.max_usd_per_gpu_hour) if x is not None]
    return min(limits, default=None)


def ranked(
    offers: Iterable[Offer], pool: Pool, target: Target, blocks: Mapping[str, Block], now: datetime
) -> list[Offer]:
    """The offers that will do, best first: spot first if preferred, then price, preference, name."""
    preference = {name: index for index, name in enumerate(pool.providers)}

    def free(offer: Offer) -> bool:
        keys = (f"offer:{offer.key}", f"provider:{offer.provider}")
        return not any(key in blocks and blocks[key].until > now for key in keys)

    good = [offer for offer in offers if not suits(offer, pool, target) and free(offer)]
    return sorted(
        good,
        key=lambda o: (
            pool.spot == "prefer" and not o.spot,
            o.usd_per_gpu_hour,
            preference[o.provider],
            o.key,
        ),
    )


def why_none(offers: Iterable[Offer], pool: Pool, target: Target, blocks: Mapping[str, Block], now: datetime) -> str:
    """In one line, why no offer will do: the closest misses first."""
    offers = list(offers)
    if not offers:
        return "no provider offers anything at all right now"
    blocked = sorted(
        {
            f"{offer.key} is left alone until {blocks[key].until:%H:%M:%S} UTC: {blocks[key].reason}"
            for offer in offers
            if not suits(offer, pool, target)
            for key in (f"offer:{offer.key}", f"provider:{offer.provider}")
            if key in blocks and blocks[key].until > now
        }
    )
    if blocked:
        return "; ".join(blocked[:3])
    same_gpu = [o for o in offers if gpu_matches(pool.gpu, o.gpu) and o.gpus == pool.gpus_per_node]
    if not same_gpu:
        models = sorted({f"{o.gpus}x {o.gpu}" for o in offers if o.gpu})
        return f"nobody offers {pool.gpus_per_node}x {pool.gpu or 'CPU only'}; there is {', '.join(models[:8])}"
    misses = sorted(same_gpu, key=lambda o: o.usd_per_gpu_hour)
    return "; ".join(f"{o.key} {suits(o, pool, target)}" for o in misses[:3])
