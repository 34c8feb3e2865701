"""How old prices are, and what follows under a limit in USD. PURE."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from meshd.codes import WarningCode
from meshd.model.desired import Desired, Pool, Target
from meshd.model.machine import Machine, Phase
from meshd.model.plan import RequestMachine, Step, Warn
from meshd.provider_api import Offer, PriceSource

DAY_S = 86400.0


def price_age_s(offer: Offer, now: datetime) -> float | None:
    """The age of the offer's price; None for one without a date, 0 for one from the future."""
    return None if offer.price_as_of is None else max((now - offer.price_as_of).total_seconds(), 0.0)


def is_stale(offer: Offer, now: datetime, stale_after_s: float) -> bool:
    """Whether the price is older than `stale_after_s` seconds. The user's own price has no date and never is."""
    age_s = price_age_s(offer, now)
    return age_s is not None and age_s > stale_after_s


def has_budget(pool: Pool, target: Target | None) -> bool:
    """Whether somebody has set a limit in USD on what the pool rents."""
    limits = [pool.max_usd_per_gpu_hour, pool.max_usd_per_hour]
    limits += [target.max_usd_per_gpu_hour, target.max_usd_per_hour] if target is not None else []
    return pool.budgeted or any(limit is not None for limit in limits)


def too_old(offer: Offer, pool: Pool, target: Target | None) -> str:
    """Why the offer's price is too old to be compared with the pool's limit; "" when it is not."""
    if pool.prices_since is None or offer.price_as_of is None or not has_budget(pool, target):
        return ""
    return f"has a price of {_date(offer)}, too old for a limit in USD" if offer.price_as_of < pool.prices_since else ""


def price_words(offer: Offer) -> str:
    """The machine's price and its source, for the journal."""
    usd = f"{offer.usd_per_hour:.4g} USD/h"
    if offer.price_source is PriceSource.SETTINGS:
        return f"{usd} by the settings"
    return f"{usd}, a price of {_date(offer)}" if offer.price_as_of is not None else usd


def refresh_words(provider: str) -> str:
    """What helps against old prices of a provider."""
    return f"`meshctl prices refresh {provider}`, or set providers.{provider}.prices"


def stale_warnings(desired: Desired, steps: Iterable[Step], now: datetime) -> Iterator[Warn]:
    """For each pool with a limit in USD: a warning about stale prices of offers that the plan rents."""
    limit_s = desired.policy.price_stale_after_s
    for pool in desired.pools.values():
        if not has_budget(pool, desired.targets.get(pool.name)):
            continue
        offers = [step.offer for step in steps if isinstance(step, RequestMachine) and step.pool == pool.name]
        for provider, date in sorted(_dates(offer for offer in offers if is_stale(offer, now, limit_s))):
            yield Warn(
                pool.name,
                f"the limit is held against prices of {provider} of {date}, which may have risen since",
                WarningCode.PRICES_STALE,
                refresh_words(provider),
                holds_back=False,
            )


def rented_by_stale(machines: Iterable[Machine], desired: Desired) -> Mapping[str, dict[tuple[str, str], list[str]]]:
    """The machines of pools with a budget whose prices were old already when they were rented.

    Returns:
        Machines' names by (provider, date of the price), by pool.
    """
    found: dict[str, dict[tuple[str, str], list[str]]] = {}
    for machine in machines:
        pool = desired.pools.get(machine.pool)
        if pool is None or machine.phase is Phase.GONE or not has_budget(pool, desired.targets.get(pool.name)):
            continue
        if is_stale(machine.offer, machine.created_at, desired.policy.price_stale_after_s):
            key = (machine.provider, _date(machine.offer))
            found.setdefault(pool.name, {}).setdefault(key, []).append(machine.name)
    return found


def _dates(offers: Iterable[Offer]) -> set[tuple[str, str]]:
    return {(offer.provider, _date(offer)) for offer in offers}


def _date(offer: Offer) -> str:
    return f"{offer.price_as_of:%Y-%m-%d}" if offer.price_as_of is not None else "an unknown day"
