"""What can be said of Compute Engine without asking it: types and prices of the tables."""

from __future__ import annotations

from meshd.provider_api import Brochure, Offer, ProviderCapabilities, ProviderContext
from providers._brochure import shapes, to_offer
from providers._prices import PriceTables, shipped
from providers._settings import parse
from providers.gce.errors import GCE
from providers.gce.offers import price_of
from providers.gce.settings import GceSettings

USER_DATA_MAX_B = 256 * 1024
BILLING_INCREMENT_S = 1.0
BILLING_MINIMUM_S = 60.0
"""All VMs, also preemptible ones: by the second, one minute at least (cloud.google.com/compute/vm-instance-pricing)."""
GANG_MAX = 1000


def capabilities(settings: GceSettings) -> ProviderCapabilities:
    """What Compute Engine can do."""
    return ProviderCapabilities(
        spot=settings.spot,
        idempotent_launch=True,
        user_data_max_b=USER_DATA_MAX_B,
        ends_itself=False,
        user_data_private=False,
        gang_max=GANG_MAX,
        global_images=True,
        billing_increment_s=BILLING_INCREMENT_S,
        billing_minimum_s=BILLING_MINIMUM_S,
    )


def brochure(context: ProviderContext) -> Brochure:
    """Types without attached GPUs. Raises ConfigError."""
    settings = parse(GceSettings, context.settings, "[providers.gce]")
    tables = PriceTables(shipped("providers.gce"), context.fetched_prices)
    regions = sorted({*settings.regions, *(zone.rpartition("-")[0] for zone in settings.zones)})
    offers: list[Offer] = []
    for shape in shapes("providers.gce", settings.instance_types):
        for region in regions:
            for spot in (False, True) if settings.spot else (False,):
                price = price_of(shape.name, region, settings, tables, spot=spot)
                if price is not None:
                    offers.append(to_offer(GCE, region, shape, price, spot=spot))
    return Brochure(capabilities(settings), tuple(offers), "without GPUs that are attached to N1 machines")
