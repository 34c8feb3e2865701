"""PURE: join tokens and node tokens. Only their hashes are kept; times are arguments."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from datetime import datetime

from pydantic import SecretStr

from meshd.codes import JoinCode
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
        closed: the machine's agent has used its node token, so the join token opens nothing any more.
    """

    machine: str
    token_hash: str = field(repr=False)
    expires_at: datetime
    bound_to: str = ""
    closed: bool = False


@dataclass(frozen=True, slots=True)
class NodeCaller:
    """Whose node token a caller has.

    Attributes:
        machine: the machine that it was given to.
        device_id: the tailnet's stable id of the device that the machine joined with; "" when the journal lost it.
        known: the journal has the machine's facts. If not (it was found again), its agent rejoins and tells them.
        generation: of the token; the machine's present one or the next.
    """

    machine: str
    device_id: str
    known: bool = True
    generation: int = 0


def hash_token(token: SecretStr | str) -> str:
    """What is kept of a token: its sha256, hex. A random 256-bit token needs no salt."""
    text = token.get_secret_value() if isinstance(token, SecretStr) else token
    return hashlib.sha256(text.encode()).hexdigest()


def verify(token: SecretStr | str, token_hash: str) -> bool:
    """Whether the hash is this token's, in constant time."""
    return hmac.compare_digest(hash_token(token).encode(), token_hash.encode())


def check_hostname(machine: str, hostname: str) -> None:
    """Whether a device is the one that the machine logged in with, by its name: a machine's name is used once.

    Raises:
        JoinRefused: it bears another name.
    """
    if hostname != machine:
        raise JoinRefused(
            f"this token was made for {machine}, and the caller is {hostname or 'without a name'}",
            "each machine has its own token and device: an image must not hold /var/lib/tailscale of another machine",
            code=JoinCode.OTHER_MACHINE,
        )


def check_join(ticket: JoinTicket, hostname: str, device_id: str, now: datetime) -> None:
    """Whether this device may join with this ticket at `now`.

    The first success binds the token to the device. The same device may ask again, since the answer may be lost on its
    way, but only until the token expires, and only until the agent has used the node token that it got: from then on
    whoever reads the join token in the machine's user data has nothing.

    Args:
        ticket: found by the token's hash.
        hostname: what the tailnet says that the calling device calls itself.
        device_id: the tailnet's stable id of the calling device.
        now: the time of day, UTC-aware.

    Raises:
        JoinRefused: with the reason.
    """
    check_hostname(ticket.machine, hostname)
    if ticket.closed:
        raise JoinRefused(
            f"the join token of {ticket.machine} is used up: its agent has a node token",
            f"the agent rejoins with its node token; if that is lost: meshctl remove {ticket.machine}",
            code=JoinCode.TOKEN_CLOSED,
        )
    if ticket.bound_to and ticket.bound_to != device_id:
        raise JoinRefused(
            f"the join token of {ticket.machine} was already used by another device of the tailnet",
            "rent the machine anew; look for a second device with its name if you did not expect this",
            code=JoinCode.OTHER_DEVICE,
        )
    if now >= ticket.expires_at:
        raise JoinRefused(
            f"the join token of {ticket.machine} expired at {ticket.expires_at:%Y-%m-%d %H:%M:%S} UTC",
            "it booted too slowly (timing.join_token_ttl_s): rent the machine anew",
            code=JoinCode.TOKEN_EXPIRED,
        )
