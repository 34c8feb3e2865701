"""Offers as text: the catalogue, and the alternatives that a plan did not take."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich.console import RenderableType
from rich.text import Text

from meshd import gpus
from meshd.api.schema import AlternativeRow, OfferRow, OffersQuery, OffersView, SourceView
from meshd.cli.options import option_of
from meshd.cli.render import age, text, usd
from meshd.cli.sheet import Sheet
from meshd.cli.wording import WORDS_MAX, short
from meshd.model.words import counted

_HEADERS = (
    "USD/GPU/H", "USD/H", "GPUS", "VRAM", "CPUS", "MEMORY", "PROVIDER", "WHERE", "TYPE", "KIND", "FREE", "PRICED",
    "NOTE",
)  # fmt: skip
_SPARE = ("MEMORY", "CPUS", "PRICED", "VRAM", "USD/H", "FREE", "KIND")
_MODELS_MAX = 12
STALE_HELP = "stale prices may be wrong: `meshctl prices show` tells how old they are and what renews them"
_LATE_S = 60.0
"""A reading older than this was not made for a refresh that was just asked for."""


def offers(view: OffersView, query: OffersQuery, *, full: bool = False) -> list[RenderableType]:
    """The catalogue, then what is not in it and why; `query` is what was asked for; with `full` in all its words."""
    parts: list[RenderableType] = []
    if view.offers:
        parts += [Sheet(_HEADERS, [_row(row, view.at, full=full) for row in view.offers], spare=_SPARE), ""]
        parts.append(text(_count(view)))
        if any(row.price_stale for row in view.offers):
            parts.append(text(STALE_HELP, "yellow"))
    else:
        parts += [text(line) for line in _nothing(view, query)]
    parts += [text(_unread(source, view.at), "yellow") for source in view.sources if not source.ok]
    if query.refresh:
        late = [source for source in view.sources if source.at and (view.at - source.at).total_seconds() > _LATE_S]
        parts += [text(_late(source, view.at), "yellow") for source in late]
    return parts


def _row(row: OfferRow, now: datetime, *, full: bool) -> tuple[Text | str, ...]:
    note = row.refused
    if row.blocked_until is not None:
        left = age((row.blocked_until - now).total_seconds())
        reason = row.blocked_reason if full else short(row.blocked_reason, WORDS_MAX)
        note = f"cooling down for {left}: {reason}"
    return (
        f"{row.usd_per_gpu_hour:.2f}" if row.gpus else "-",
        f"{row.usd_per_hour:.2f}",
        f"{row.gpus} {row.gpu}".strip() if row.gpus else "-",
        f"{row.gpu_memory_gib} GiB" if row.gpus else "-",
        f"{row.vcpus}",
        f"{row.memory_mib / 1024:.0f} GiB",
        row.provider,
        _where(row),
        f"{row.instance_type} (arm64)" if row.arch == "arm64" else row.instance_type,
        "spot" if row.spot else "on demand",
        free(row),
        _priced(row),
        text(note, "yellow"),
    )


def _where(row: OfferRow) -> str:
    """The zone; the region, where the row stands for several."""
    return f"{row.region} ({len(row.zones)} zones)" if row.zones else row.zone or row.region


def _priced(row: OfferRow) -> Text | str:
    """The age of the price; a person's own has none."""
    if row.price_age_s is None:
        return "settings" if row.price_source == "settings" else "-"
    return text(f"{age(row.price_age_s)} stale", "yellow") if row.price_stale else age(row.price_age_s)


def free(row: OfferRow) -> str:
    """What the cloud says of free capacity: yes, no or `?`, with its own word."""
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


def _nothing(view: OffersView, query: OffersQuery) -> list[str]:
    """Why the catalogue is empty, and what would fill it."""
    if not view.total:
        return ["no offers: no enabled provider has been read yet, or none rents anything"]
    if view.matching:
        words = f"{counted(view.matching, 'offer')} would do, but none can be rented now: {_reasons(view)}"
        return [f"{words} (--all shows them)"]
    lines = [f"none of the {view.total} offers is like that"]
    if query.gpu and not any(gpus.matches(query.gpu, model) for model in view.gpus):
        more = ", ..." if len(view.gpus) > _MODELS_MAX else ""
        lines.append(f"  nobody offers the GPU {query.gpu}; there is {', '.join(view.gpus[:_MODELS_MAX])}{more}")
    if query.gpus_per_node == 0:
        lines.append("  types without GPUs are offered where a provider's table names them (docs/providers.md)")
    for near in view.near:
        option = option_of(near.field)
        each = f"{usd(near.offer.usd_per_gpu_hour)} per GPU-hour" if near.offer.gpus else usd(near.offer.usd_per_hour)
        lines.append(f"  without {option}: {counted(near.count, 'offer')}, the cheapest {near.offer.offer} at {each}")
    return lines


def _unread(source: SourceView, now: datetime) -> str:
    for_s = f" for {age((now - source.since).total_seconds())}" if source.since else ""
    return f"{_provider(source)} could not be read{for_s}: {source.reason}"


def _late(source: SourceView, now: datetime) -> str:
    ago = age((now - source.at).total_seconds()) if source.at else "long"
    return f"{_provider(source)} did not answer in time: what it said {ago} ago is shown"


def _provider(source: SourceView) -> str:
    return source.name.removeprefix("offers:")


def alternatives(rows: Sequence[AlternativeRow], *, full: bool = False) -> Sheet:
    """Offers that were not taken, and why; with `full` in all the words of the clouds."""
    chosen = [row.usd_per_gpu_hour for row in rows if row.chosen]
    return Sheet(
        ("OFFER", "GPUS", "USD/H", "USD/GPU/H", "WHY NOT" if chosen else "NOTE"),
        [
            (
                row.offer,
                f"{row.gpus} {row.gpu}".strip() if row.gpus else "-",
                f"{row.usd_per_hour:.2f}",
                f"{row.usd_per_gpu_hour:.2f}" if row.gpus else "-",
                (row.note if full else short(row.note, WORDS_MAX)) or _would_do(row, chosen),
            )
            for row in rows
            if not row.chosen
        ],
        spare=("USD/H", "GPUS") if any(row.gpus for row in rows) else ("GPUS", "USD/GPU/H"),
    )


def _would_do(row: AlternativeRow, chosen: Sequence[float]) -> str:
    """Nothing speaks against it but what is taken instead."""
    stale = ", by a stale price" if row.price_stale else ""
    if not chosen:
        return f"would do{stale}"
    dearer = row.usd_per_gpu_hour - min(chosen)
    each = "GPU-hour" if row.gpus else "hour"
    return (f"{usd(dearer)} dearer per {each}" if dearer >= 0.005 else "would do as well") + stale
