"""What a provider's capabilities mean: in words for people, and what meshd refuses because of them. PURE."""

from __future__ import annotations

from meshd.provider_api import MachineKind, ProviderCapabilities

NO_TUN = "its machines have no TUN device, so they cannot be nodes"
"""Why nothing is rented from a provider whose `capabilities.tun` is False."""


def no_tun_cure(provider: str) -> str:
    """How to use a provider without TUN devices, or how to switch it off."""
    if provider == "runpod":
        return "providers.runpod.pods_have_tun, only for hosts that give pods a TUN device"
    return f"providers.{provider}.enabled = false"


def description(capabilities: ProviderCapabilities) -> str:
    """The provider's machines and limits, for people: "containers without TUN device and systemd; no tags"."""
    what = "containers" if capabilities.machine_kind is MachineKind.CONTAINER else "virtual machines"
    without = [
        name for name, there in (("TUN device", capabilities.tun), ("systemd", capabilities.systemd)) if not there
    ]
    parts = [f"{what} without {' and '.join(without)}" if without else what]
    if capabilities.spot:
        parts.append("on demand and spot")
    if not capabilities.tags:
        parts.append(
            "no tags: meshd knows machines by their names, so no other cluster of the account may have this name"
        )
    return "; ".join(parts)


def user_data_refusal(text: str, provider: str, capabilities: ProviderCapabilities) -> str:
    """Why this user data cannot be sent; "" when it can."""
    size_b = len(text.encode())
    if size_b <= capabilities.user_data_max_b:
        return ""
    return f"the machine's user data has {size_b} bytes, and {provider} takes at most {capabilities.user_data_max_b}"
