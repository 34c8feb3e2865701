"""What can be said of Lambda without asking it: no prices, since its API always has them."""

from __future__ import annotations

from meshd.provider_api import Brochure, ProviderCapabilities, ProviderContext
from providers._settings import parse
from providers.lambda_cloud.settings import LambdaSettings

USER_DATA_MAX_B = 1_000_000
BILLING_INCREMENT_S = 60.0
"""On-demand instances are billed in one-minute increments (docs.lambda.ai/public-cloud/billing)."""


def capabilities(settings: LambdaSettings) -> ProviderCapabilities:
    """What Lambda can do."""
    return ProviderCapabilities(
        user_data_max_b=USER_DATA_MAX_B,
        launch_spacing_s=settings.launch_spacing_s,
        user_data_private=False,
        billing_increment_s=BILLING_INCREMENT_S,
    )


def brochure(context: ProviderContext) -> Brochure:
    """Raises ConfigError."""
    return Brochure(capabilities(parse(LambdaSettings, context.settings, "[providers.lambda]")))
