"""What can be said of EC2 without asking it: types and prices of the tables."""

from __future__ import annotations

from meshd.provider_api import Brochure, Offer, ProviderCapabilities, ProviderContext
from providers._brochure import shapes, to_offer
from providers._prices import PriceTables, by_settings, shipped
from providers._settings import parse
from providers.aws.errors import AWS
from providers.aws.settings import AwsSettings

USER_DATA_MAX_B = 16384
GANG_MAX = 500
"""EC2 accepts more. Its limit on new instances is a bucket of 1,000 for each region, which other callers use too."""
BILLING_INCREMENT_S = 1.0
BILLING_MINIMUM_S = 60.0
"""Linux, on demand and spot: one-second increments, 60 s at least (aws.amazon.com/about-aws/whats-new/2017/10/
announcing-amazon-ec2-per-second-billing)."""


def capabilities(settings: AwsSettings) -> ProviderCapabilities:
    """What EC2 can do."""
    return ProviderCapabilities(
        spot=settings.spot,
        idempotent_launch=True,
        user_data_max_b=USER_DATA_MAX_B,
        ends_itself=True,
        user_data_private=False,
        gang_max=GANG_MAX,
        billing_increment_s=BILLING_INCREMENT_S,
        billing_minimum_s=BILLING_MINIMUM_S,
    )


def brochure(context: ProviderContext) -> Brochure:
    """On demand only: EC2 tells spot prices itself. Raises ConfigError."""
    settings = parse(AwsSettings, context.settings, "[providers.aws]")
    tables = PriceTables(shipped("providers.aws"), context.fetched_prices)
    offers: list[Offer] = []
    for shape in shapes("providers.aws", settings.instance_types):
        for region in settings.regions:
            own = settings.prices.get(shape.name)
            price = by_settings(own) if own is not None else tables.find(region, shape.name)
            if price is not None:
                offers.append(to_offer(AWS, region, shape, price))
    return Brochure(capabilities(settings), tuple(offers), "on demand only: EC2 tells spot prices itself")
