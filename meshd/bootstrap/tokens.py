"""PURE: join tokens and node tokens. Only their hashes are kept; times are arguments."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from datetime import datetime

from pydantic import SecretStr

from meshd.errors import JoinRefused

TOKEN_MAX_CHARS = 128


@dataclass(frozen=True, slots=True)
class JoinTicket:
    """What is kept of a join token.

    Attributes:
        machine: the one machine that it was made for.
        token_hash: sha256 of the token, hex.
        expires_at: from then on it opens nothing.
        bound_to: the tailnet's stable id of the device that used it, "" while it is unused.
    """

    machine: str
    token_hash: str = field(repr=False)
    expires_at: datetime
    bound_to: str = ""


def hash_token(token: SecretStr | str) -> str:
    """What is kept of a token: its sha256, hex. A random 256-bit token needs no salt."""
    text = token.get_secret_value() if isinstance(token, SecretStr) else token
    return hashlib.sha256(text.encode()).hexdigest()


def verify(token: SecretStr | str, token_hash: str) -> bool:
    """Whether the hash is this token's, in constant time."""
    return hmac.compare_digest(hash_token(token).encode(), token_hash.encode())


def check_join(ticket: JoinTicket, hostname: str, device_id: str, now: datetime) -> None:
    """Whether this device may join with this ticket at `now`.

    A token is used once: the first success binds it to the device. The same device may ask again, since the answer
    may have been lost on its way.

    Args:
        ticket: found by the token's hash.
        hostname: what the tailnet says that the calling device calls itself.
        device_id: the tailnet's stable id of the calling device.
        now: the time of day, UTC-aware.

    Raises:
        JoinRefused: with the reason.
    """
    if hostname != ticket.machine:
        raise JoinRefused(
            f"this join token was made for {ticket.machine}, and the caller is {hostname or 'without a name'}",
            "each machine has its own token and device: an image must not hold /var/lib/tailscale of another machine",
        )
    if ticket.bound_to:
        if ticket.bound_to != device_id:
            raise JoinRefused(
                f"the join token of {ticket.machine} was already used by another device of the tailnet",
                "rent the machine anew; look for a second device with its name if you did not expect this",
            )
        return
    if now >= ticket.expires_at:
        raise JoinRefused(
            f"the join token of {ticket.machine} expired at {ticket.expires_at:%Y-%m-%d %H:%M:%S} UTC",
            "it booted too slowly (timing.join_token_ttl_s): rent the machine anew",
        )
