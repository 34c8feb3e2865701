"""Which offers a query means. PURE."""

from __future__ import annotations

from meshd import gpus
from meshd.provider_api import Offer, OfferQuery


def matches(offer: Offer, query: OfferQuery) -> bool:
    """Whether an offer is of interest: "h100" also means "h100-sxm" and "h100-pcie"; empty fields mean anything."""
    if query.gpu and not gpus.matches(query.gpu, offer.gpu):
        return False
    if query.gpus is not None and offer.gpus != query.gpus:
        return False
    return query.spot is None or offer.spot is query.spot
