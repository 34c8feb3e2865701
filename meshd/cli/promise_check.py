"""PURE: what `meshctl config check` says of pools that Slurm's queue drives: what nodes promise, what they cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from meshd.api.schema import CheckRow, OfferRow
from meshd.codes import FaultCode
from meshd.config import Settings
from meshd.config.pools import fixed_of, pool_of
from meshd.model.budget import ALL
from meshd.model.desired import Pool
from meshd.plaintext import counted
from meshd.plan.promise import ByCatalogue, by_catalogue, nearest_to, small, small_cure, suiting, words
from meshd.provider_api import Offer, ProviderCapabilities, ProviderName


def offer_of(row: OfferRow) -> Offer:
    """The offer in a row of `meshctl offers`."""
    return Offer(
        provider=ProviderName(row.provider), region=row.region, zone=row.zone, instance_type=row.instance_type,
        gpu=row.gpu, gpus=row.gpus, gpu_memory_gib=row.gpu_memory_gib, vcpus=row.vcpus, memory_mib=row.memory_mib,
        usd_per_hour=row.usd_per_hour, spot=row.spot, arch=row.arch,
    )  # fmt: skip


def promise_rows(
    settings: Settings, able: Mapping[str, ProviderCapabilities], offers: Sequence[Offer] | None
) -> Iterator[CheckRow]:
    """Rows for each pool that Slurm's queue drives.

    Args:
        settings: the settings.
        able: what the usable providers can do.
        offers: what can be rented, from meshd; None when it does not run.
    """
    for name, table in settings.pools.items():
        if not settings.from_queue(table):
            continue
        pool, about = pool_of(name, settings, able, able=able), f"pools.{name}"
        found = by_catalogue(offers, pool, fixed_of(table), settings.slurm.memory_fraction) if offers else None
        if offers is None:
            yield CheckRow(name=about, status="ok", text="what each node promises is shown here while meshd runs")
        elif found is None:
            text = f"nothing that is offered suits it, so each node promises only its least{_nearest(offers, pool)}"
            cure = f"`meshctl scale --pool {name} --gpus 1 --dry-run` shows why"
            yield CheckRow(name=about, status="warn", code=FaultCode.PROMISE_UNKNOWN, text=text, cure=cure)
        elif found.far_below:
            text, cure = small(name, found), small_cure(name, found)
            yield CheckRow(name=about, status="warn", code=FaultCode.PROMISE_SMALL, text=text, cure=cure)
        else:
            yield CheckRow(
                name=about, status="ok", text=f"each node promises {words(found.promise)}: {_because(found)}"
            )
        if not {ALL, name} & settings.budgets.keys() and table.max_usd_per_hour is None:
            dearest = max(suiting(offers or (), pool), key=lambda o: (o.usd_per_hour, o.key), default=None)
            machines = counted(table.max_nodes, "machine")
            if dearest is None:
                text = f"Slurm's queue may rent {machines}, and no budget limits what they cost"
            else:
                text = (
                    f"Slurm's queue may rent {machines}, at most {table.max_nodes * dearest.usd_per_hour:.2f} USD per "
                    f"hour ({dearest.key} costs {dearest.usd_per_hour:.2f}), and no budget limits that"
                )
            cure = f"set usd_per_day or usd_per_month in [budget], or max_usd_per_hour in [pools.{name}]"
            yield CheckRow(name=about, status="warn", code=FaultCode.NO_BUDGET, text=text, cure=cure)


def _nearest(offers: Sequence[Offer], pool: Pool) -> str:
    """Which offer comes nearest, and what is against it."""
    found = nearest_to(offers, pool)
    if found is None:
        return ""
    offer, against = found
    cures = " and ".join(dict.fromkeys(miss.cure for miss in against if miss.cure))
    why = "; ".join(miss.text for miss in against)
    return f". The nearest is {offer.key}: {why}" + (f" ({cures})" if cures else "")


def _because(found: ByCatalogue) -> str:
    """Which offers decide a promise."""
    if found.cpus_of is None and found.memory_of is None:
        return "so the settings say"
    if found.instance_types == 1 and found.cpus_of is not None and found.memory_of is not None:
        return f"{found.cpus_of.instance_type} is all that suits"
    parts = [f"{found.cpus_of.key} has the fewest CPUs"] if found.cpus_of else ["the settings say the CPUs"]
    if found.memory_of is None:
        parts.append("the settings say the memory")
    elif found.memory_of == found.cpus_of:
        parts = [f"{found.memory_of.key} is the smallest"]
    else:
        parts.append(f"{found.memory_of.key} has the least memory")
    return f"of {counted(found.offers, 'offer')} that suit, {' and '.join(parts)}"
