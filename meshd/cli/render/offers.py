"""What `offers` shows, and the offers that a plan did not take."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich.console import RenderableType
from rich.text import Text

from meshd import gpus
from meshd.api.schema import AlternativeRow, OfferRow, OffersQuery, OffersView, SourceView
from meshd.api.shorten import MESSAGE_MAX, shorten
from meshd.cli.params.options import option_for_field
from meshd.cli.render.table import Table
from meshd.cli.render.terminal import clean_text
from meshd.plaintext import age, counted, usd

_HEADERS = (
    "USD/GPU/H", "USD/H", "GPUS", "VRAM", "CPUS", "MEMORY", "PROVIDER", "WHERE", "TYPE", "KIND", "FREE", "PRICED",
    "NOTE",
)  # fmt: skip
_OPTIONAL = ("MEMORY", "CPUS", "PRICED", "VRAM", "USD/H", "FREE", "KIND")
_MODELS_MAX = 12
STALE_HELP = "stale prices may be wrong: `meshctl prices show` shows how old they are and how to renew them"
_LATE_S = 60.0
"""A source that answered longer ago did not answer to this `--refresh`."""


def offers(view: OffersView, query: OffersQuery, *, verbose: bool = False) -> list[RenderableType]:
    """The offers that match `query`, then what is missing and why; with `verbose` the clouds' messages in full."""
    parts: list[RenderableType] = []
    if view.offers:
        parts += [Table(_HEADERS, [_row(row, view.at, verbose=verbose) for row in view.offers], optional=_OPTIONAL), ""]
        parts.append(clean_text(_count(view)))
        parts += [
            clean_text(f"pods: {limits}") for limits in dict.fromkeys(row.limits for row in view.offers) if limits
        ]
        if any(row.price_stale for row in view.offers):
            parts.append(clean_text(STALE_HELP, "yellow"))
    else:
        parts += [clean_text(line) for line in _no_match(view, query)]
    parts += [clean_text(_unread(source, view.at), "yellow") for source in view.sources if not source.ok]
    if query.refresh:
        late = [source for source in view.sources if source.at and (view.at - source.at).total_seconds() > _LATE_S]
        parts += [clean_text(_late(source, view.at), "yellow") for source in late]
    return parts


def _row(row: OfferRow, now: datetime, *, verbose: bool) -> tuple[Text | str, ...]:
    note = row.refused
    if row.blocked_until is not None:
        left = age((row.blocked_until - now).total_seconds())
        reason = row.blocked_reason if verbose else shorten(row.blocked_reason, MESSAGE_MAX)
        note = f"cooling down for {left}: {reason}"
    return (
        f"{row.usd_per_gpu_hour:.2f}" if row.gpus else "-",
        f"{row.usd_per_hour:.2f}",
        f"{row.gpus} {row.gpu}".strip() if row.gpus else "-",
        f"{row.gpu_memory_gib} GB" if row.gpus else "-",
        f"{row.vcpus}",
        f"{row.memory_mib / 1024:.0f} GiB",
        row.provider,
        _where(row),
        f"{row.instance_type} (arm64)" if row.arch == "arm64" else row.instance_type,
        f"{'spot' if row.spot else 'on demand'}{' pod' if row.pod else ''}",
        _free(row),
        _priced(row),
        clean_text(note, "yellow"),
    )


def _where(row: OfferRow) -> str:
    """The zone; if the row is for several zones, the region."""
    return f"{row.region} ({len(row.zones)} zones)" if row.zones else row.zone or row.region


def _priced(row: OfferRow) -> Text | str:
    """The age of the price. A price from the settings has none."""
    if row.price_age_s is None:
        return "settings" if row.price_source == "settings" else "-"
    return clean_text(f"{age(row.price_age_s)} stale", "yellow") if row.price_stale else age(row.price_age_s)


def _free(row: OfferRow) -> str:
    """Whether the cloud has free capacity: yes, no or `?`, with the cloud's own word."""
    word = {True: "yes", False: "no", None: "?"}[row.available]
    return f"{word} ({row.capacity_hint})" if row.capacity_hint else word


def _count(view: OffersView) -> str:
    left_out = sum(view.left_out.values())
    shown = sum(len(row.zones) or 1 for row in view.offers)
    more = view.matching - left_out - shown
    words = f"{shown} of {view.matching} offers" if more or left_out else counted(shown, "offer")
    if more:
        words += f"; {more} dearer ones are not shown (--limit)"
    if left_out:
        words += f"; {left_out} cannot be rented now: {_reasons(view)} (--all)"
    return words


def _reasons(view: OffersView) -> str:
    return ", ".join(f"{count} {why}" for why, count in view.left_out.items())


def _no_match(view: OffersView, query: OffersQuery) -> list[str]:
    """Why no offer matches, and which option to leave out."""
    if not view.total:
        return ["no offers: no enabled provider has answered yet, or none has offers"]
    if view.matching:
        reasons = _reasons(view)
        return [f"matching offers: {view.matching}, but none can be rented now: {reasons} (--all shows them)"]
    lines = [f"none of the {view.total} offers matches"]
    if query.gpu and not any(gpus.matches(query.gpu, model) for model in view.gpus):
        more = ", ..." if len(view.gpus) > _MODELS_MAX else ""
        lines.append(f"  no cloud offers the GPU {query.gpu}; on offer: {', '.join(view.gpus[:_MODELS_MAX])}{more}")
    if query.gpus_per_node == 0:
        lines.append("  machines without GPUs: name their types in the provider's table (docs/providers.md)")
    for near in view.near:
        option = option_for_field(near.field)
        each = f"{usd(near.offer.usd_per_gpu_hour)} per GPU-hour" if near.offer.gpus else usd(near.offer.usd_per_hour)
        which = "the cheapest" if near.field != "gpu_memory_min_gib" else f"the most is {near.offer.gpu_memory_gib} GB:"
        lines.append(f"  without {option}: {counted(near.count, 'offer')}, {which} {near.offer.offer} at {each}")
    return lines


def _unread(source: SourceView, now: datetime) -> str:
    for_s = f" for {age((now - source.since).total_seconds())}" if source.since else ""
    return f"{_provider(source)} could not be read{for_s}: {source.reason}"


def _late(source: SourceView, now: datetime) -> str:
    old = age((now - source.at).total_seconds()) if source.at else "-"
    return f"{_provider(source)} did not answer in time: its offers are {old} old"


def _provider(source: SourceView) -> str:
    return source.name.removeprefix("offers:")


def alternatives(rows: Sequence[AlternativeRow], *, verbose: bool = False) -> Table:
    """The offers that were not taken, and why; with `verbose` the clouds' messages in full."""
    chosen = [row.usd_per_gpu_hour for row in rows if row.chosen]
    return Table(
        ("OFFER", "GPUS", "USD/H", "USD/GPU/H", "WHY NOT" if chosen else "NOTE"),
        [
            (
                row.offer,
                f"{row.gpus} {row.gpu}".strip() if row.gpus else "-",
                f"{row.usd_per_hour:.2f}",
                f"{row.usd_per_gpu_hour:.2f}" if row.gpus else "-",
                (row.note if verbose else shorten(row.note, MESSAGE_MAX)) or _match_note(row, chosen),
            )
            for row in rows
            if not row.chosen
        ],
        optional=("USD/H", "GPUS") if any(row.gpus for row in rows) else ("GPUS", "USD/GPU/H"),
    )


def _match_note(row: AlternativeRow, chosen: Sequence[float]) -> str:
    """What to say of an offer that no rule excludes."""
    stale = ", by a stale price" if row.price_stale else ""
    if not chosen:
        return f"matches{stale}"
    dearer = row.usd_per_gpu_hour - min(chosen)
    each = "GPU-hour" if row.gpus else "hour"
    return (f"{usd(dearer)} dearer per {each}" if dearer >= 0.005 else "equally good") + stale
