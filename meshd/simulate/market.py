"""What can be rented, without asking anybody: from a saved answer of `meshctl offers`, or from the adapters' tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from meshd.api.schema import OfferRow, OffersView
from meshd.cli.promise_check import offer_of
from meshd.config import Settings
from meshd.errors import ConfigError, Fault
from meshd.model.host import PROVIDER
from meshd.plaintext import counted
from meshd.plugins import brochure_of, installed
from meshd.price_list import PriceList, parse
from meshd.provider_api import Offer, PriceSource, ProviderCapabilities, ProviderContext
from meshd.simulate.run import Market

OFFERS_MAX_B = 64 * 1024 * 1024
SAVE = "meshctl offers --all -n 100000 -o json"


def market_of(settings: Settings, saved: Path | None) -> Market:
    """What the enabled providers rent.

    Args:
        settings: the settings.
        saved: an answer of `meshctl offers -o json`; None: by the adapters' tables.

    Raises:
        ConfigError: it cannot be read, or a provider's table is wrong.
    """
    adapters, priced = installed(), list[str]()
    able: dict[str, ProviderCapabilities] = {}
    offers: dict[str, tuple[Offer, ...]] = {}
    given = _saved(saved) if saved is not None else None
    for name, table in settings.providers.items():
        if not table.enabled or name == PROVIDER:
            continue
        fetched = partial(_fetched, settings, name)
        context = ProviderContext(settings.cluster.name, table.own(), lambda: datetime.now(UTC), fetched)
        brochure = brochure_of(name, adapters, context)
        if isinstance(brochure, tuple):
            raise ConfigError(f"[providers.{name}]", brochure)
        able[name] = brochure.capabilities if brochure is not None else ProviderCapabilities()
        if given is not None:
            offers[name] = tuple(offer for offer in given[1] if offer.provider == name)
        else:
            offers[name] = brochure.offers if brochure is not None else ()
        note = brochure.note if brochure is not None and given is None else ""
        priced.append(_words(name, offers[name], given[0] if given is not None else None, note))
    return Market(able, offers, tuple(priced))


def _words(name: str, offers: Iterable[Offer], at: datetime | None, note: str) -> str:
    found = list(offers)
    if not found:
        cure = f"give a saved answer with --offers (`{SAVE}`)"
        return f"{name}: no prices are known here, so nothing is rented from it: {note or cure}"
    if at is not None:
        return f"{name}: {counted(len(found), 'offer')} of {at:%Y-%m-%d}, as saved"
    text = f"{name}: {counted(len(found), 'offer')}"
    for source, words in _SOURCES.items():
        dates = [offer.price_as_of for offer in found if offer.price_source is source and offer.price_as_of]
        if dates:
            text += f", {words} of {min(dates):%Y-%m-%d}"
    return f"{text} ({note})" if note else text


_SOURCES = {PriceSource.REFRESHED: "fetched prices", PriceSource.SHIPPED: "shipped prices", PriceSource.API: "prices"}


def _fetched(settings: Settings, provider: str) -> PriceList | None:
    """What meshd has fetched on this head; None where there is nothing, or this user may not read it."""
    try:
        return parse((settings.cluster.state_dir / "prices" / f"{provider}.json").read_bytes())
    except (OSError, ValueError):
        return None


def _saved(path: Path) -> tuple[datetime, list[Offer]]:
    try:
        if path.stat().st_size > OFFERS_MAX_B:
            raise ConfigError(str(path), [Fault(f"is larger than {OFFERS_MAX_B >> 20} MiB", "")])
        view = OffersView.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(str(path), [Fault(f"cannot be read: {error.strerror}", "")]) from None
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        fault = Fault(f"is no answer of meshctl offers: {where} {first['msg']}", f"`{SAVE}`")
        raise ConfigError(str(path), [fault]) from None
    return view.at, [_offer(row, view.at, zone) for row in view.offers for zone in (row.zones or [row.zone])]


def _offer(row: OfferRow, at: datetime, zone: str) -> Offer:
    as_of = None if row.price_age_s is None else at - timedelta(seconds=row.price_age_s)
    return replace(offer_of(row), zone=zone, available=row.available, price_as_of=as_of)
