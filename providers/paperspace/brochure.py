"""What can be said of Paperspace without asking it: the shipped table."""

from __future__ import annotations

from fnmatch import fnmatchcase

from meshd.provider_api import Brochure, ProviderCapabilities, ProviderContext
from providers._settings import parse
from providers.paperspace.offers import offer_of, shipped
from providers.paperspace.settings import PaperspaceSettings

USER_DATA_MAX_B = 16384  # the vendor documents no limit of a startup script; stage 1 is half of this
BILLING_INCREMENT_S = 1.0
"""Hourly machines are billed by the second (paperspace.com/pricing), from start to deletion."""


def capabilities() -> ProviderCapabilities:
    """What Paperspace can do."""
    return ProviderCapabilities(
        tags=False,
        user_data_max_b=USER_DATA_MAX_B,
        user_data_private=False,
        billing_increment_s=BILLING_INCREMENT_S,
    )


def brochure(context: ProviderContext) -> Brochure:
    """All types that the settings name, whatever templates there are. Raises ConfigError."""
    settings, table = parse(PaperspaceSettings, context.settings, "[providers.paperspace]"), shipped()
    wanted = [
        kind
        for kind in table.types.values()
        if any(fnmatchcase(kind.label.lower(), pattern.lower()) for pattern in settings.machine_types)
    ]
    offers = [
        offer_of(kind, region, table, settings)
        for kind in wanted
        for region in settings.regions
        if region in kind.regions
    ]
    return Brochure(capabilities(), tuple(offers))
