"""A provider that is enabled and cannot be used: its credential, its settings or its program are faulty.

It is off, and nothing else is. Each call to it fails with the reason, so its machines are unknown, which is never taken
for gone: they are still shown, and given back once it works.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshd.errors import Fault, ProviderOff
from meshd.provider_api import Instance, LaunchRequest, Offer, ProviderCapabilities, ProviderName

RESTART = "`systemctl restart meshd`"


class OffProvider:
    """Stands in for a provider that could not be made.

    Args:
        name: the provider's, in the settings.
        faults: why it is off; at least one.
    """

    def __init__(self, name: str, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        self._name = name

    @property
    def name(self) -> ProviderName:
        """As in the settings."""
        return ProviderName(self._name)

    @property
    def capabilities(self) -> ProviderCapabilities:
        """Nothing is promised."""
        return ProviderCapabilities()

    @property
    def error(self) -> ProviderOff:
        """What each call ends with."""
        texts = "; ".join(f"{fault.text}" for fault in self.faults)
        cures = "; ".join(dict.fromkeys(fault.cure for fault in self.faults if fault.cure))
        cure = f"{cures}; then {RESTART}" if cures else f"mend it, then {RESTART}"
        return ProviderOff(f"{self._name} is off: {texts}", cure, provider="")

    async def offers(self) -> Sequence[Offer]:
        """Raises ProviderOff."""
        raise self.error

    async def launch(self, request: LaunchRequest) -> Instance:
        """Raises ProviderOff."""
        raise self.error

    async def get(self, instance: Instance) -> Instance:
        """Raises ProviderOff."""
        raise self.error

    async def list(self) -> Sequence[Instance]:
        """Raises ProviderOff."""
        raise self.error

    async def terminate(self, instance: Instance) -> None:
        """Raises ProviderOff."""
        raise self.error

    async def check(self) -> str:
        """Raises ProviderOff."""
        raise self.error

    async def aclose(self) -> None:
        """There is nothing to close."""
