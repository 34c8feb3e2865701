"""What can be said of RunPod without asking it: no prices, since its API always has them."""

from __future__ import annotations

from meshd.provider_api import Brochure, MachineKind, ProviderCapabilities, ProviderContext
from providers._settings import parse
from providers.runpod.settings import RunpodSettings

USER_DATA_MAX_B = 16 * 1024
"""RunPod documents no limit. In base64 this is far below the 128 KiB that Linux allows for one argument."""
BILLING_INCREMENT_S = 1.0
"""Pods are billed by the second (docs.runpod.io/pods/pricing); the credit is charged every minute."""


def capabilities(settings: RunpodSettings) -> ProviderCapabilities:
    """What RunPod can do."""
    return ProviderCapabilities(
        machine_kind=MachineKind.CONTAINER,
        tun=False,
        systemd=False,
        spot=settings.spot,
        user_data_max_b=USER_DATA_MAX_B,
        user_data_private=False,
        foreign_hosts="community" in settings.clouds,
        billing_increment_s=BILLING_INCREMENT_S,
    )


def brochure(context: ProviderContext) -> Brochure:
    """Raises ConfigError."""
    return Brochure(capabilities(parse(RunpodSettings, context.settings, "[providers.runpod]")))
