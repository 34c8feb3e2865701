"""Who may look at the page: whom the tailnet names as the owner of an address. Unknown means refused."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from meshd.api.faults import Denied
from meshd.errors import TailnetError
from meshd.runtime.clock import Clock
from meshd.tailnet.status import Identity

log = structlog.get_logger(__name__)

KNOWN_S: Final = 15.0
"""An answer of tailscaled counts for so long: who is taken out of the tailnet's policy is refused soon after."""
KNOWN_MAX: Final = 1000


class Tailscaled(Protocol):
    """Who has an address."""

    async def identity(self, address: str) -> Identity:
        """Raises TailnetError."""
        ...


@dataclass(frozen=True, slots=True)
class _Known:
    identity: Identity
    until_s: float


def refusal(identity: Identity, allow: Sequence[str], *, is_node: bool) -> str:
    """Why somebody may not look; "" when they may.

    Args:
        identity: who it is.
        allow: as `web.allow` has it.
        is_node: the device is a machine of the cluster, on which users' jobs run.
    """
    if is_node:
        return f"{identity.hostname} is a node of the cluster: jobs of many users run on it"
    # What is named like a capability is one: no login, group or tag has a slash.
    capabilities = [name for name in identity.capabilities if "/" in name]
    names = [name for name in (identity.login, *identity.groups, *identity.tags) if "/" not in name]
    words = {word.lower() for word in (*names, *capabilities) if word}
    domain = identity.login.lower().rpartition("@")[2] if "@" in identity.login else ""
    allowed = {word.lower() for word in allow}
    if words & allowed or (domain and f"*@{domain}" in allowed):
        return ""
    who = identity.login or f"a device with {', '.join(identity.tags) or 'neither an owner nor tags'}"
    return f"you are {who} on the tailnet, whom web.allow in the settings does not name"


class Visitors:
    """Asks tailscaled who somebody is, and remembers it for a moment.

    Args:
        tailscaled: the head's.
        allow: who may look, as the settings say now.
        is_node: whether a device is a machine of the cluster.
        clock: time.
    """

    def __init__(
        self,
        tailscaled: Tailscaled,
        allow: Callable[[], Sequence[str]],
        is_node: Callable[[Identity], bool],
        clock: Clock,
    ) -> None:
        self._tailscaled = tailscaled
        self._allow = allow
        self._is_node = is_node
        self._clock = clock
        self._known: OrderedDict[str, _Known] = OrderedDict()

    async def admit(self, address: str) -> Identity:
        """Who is at an address, where they may look.

        Raises:
            Denied: they may not, or nobody knows who they are.
        """
        identity = await self._who(address)
        # Judged at each request: the settings and the machines may have changed since.
        if why := refusal(identity, self._allow(), is_node=self._is_node(identity)):
            cure = "ask an administrator of the cluster; `meshctl top` on the head shows the same"
            raise Denied(why, cure)
        return identity

    async def _who(self, address: str) -> Identity:
        now_s = self._clock.monotonic_s()
        known = self._known.get(address)
        if known is not None and now_s < known.until_s:
            return known.identity
        self._known.pop(address, None)
        try:
            identity = await self._tailscaled.identity(address)
        except TailnetError as error:
            log.info("web_visitor_unknown", address=address, reason=str(error))
            cure = "open this page from a device of the tailnet; if yours is one, try again in a minute"
            raise Denied("the tailnet does not say who you are", cure) from error
        # An address that tailscaled did not ask for is no proof.
        if address not in identity.addresses:
            raise Denied("the tailnet names another device for your address", "open this page from the tailnet")
        self._known[address] = _Known(identity, now_s + KNOWN_S)
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
        return identity
