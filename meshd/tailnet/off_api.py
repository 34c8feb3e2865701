"""The control server's API when its credential cannot be used: every call fails with the reason, and meshd runs on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from meshd.errors import TailnetRefused
from meshd.tailnet.admin import AuthKey, Device


class OffApi:
    """A KeyApi whose calls all fail with the reason. The settings that need it stay in force.

    So a machine that needs a key of its own does not get a shared one instead: it is not rented until this is mended.

    Args:
        reason: what is wrong, and where.
        cure: what to do about it.
    """

    def __init__(self, reason: str, cure: str) -> None:
        self.reason = reason
        self.cure = cure

    def _refuse(self) -> NoReturn:
        raise TailnetRefused(f"the credential for the tailnet's API cannot be used: {self.reason} ({self.cure})")

    async def mint_key(
        self, *, tags: Sequence[str], lifetime_s: int, description: str, reusable: bool = True,
        ephemeral: bool = False, preauthorized: bool = True,
    ) -> AuthKey:  # fmt: skip
        """Raises TailnetRefused, as all do."""
        self._refuse()

    async def get_key(self, key_id: str) -> AuthKey | None:
        """See mint_key."""
        self._refuse()

    async def keys_with(self, description: str) -> tuple[AuthKey, ...]:
        """See mint_key."""
        self._refuse()

    async def living_keys(self) -> tuple[AuthKey, ...]:
        """See mint_key."""
        self._refuse()

    async def revoke_key(self, key_id: str) -> None:
        """See mint_key."""
        self._refuse()

    async def list_devices(self) -> tuple[Device, ...]:
        """See mint_key."""
        self._refuse()

    async def delete_device(self, device_id: str) -> None:
        """See mint_key."""
        self._refuse()

    async def disable_key_expiry(self, device_id: str) -> None:
        """See mint_key."""
        self._refuse()

    async def set_address(self, device_id: str, tailnet_ip: str) -> None:
        """See mint_key."""
        self._refuse()

    async def aclose(self) -> None:
        """There is nothing to close."""
