"""PURE: join tokens and node tokens. meshd keeps only their hashes; times are arguments."""

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
    """The record of a join token.

    Attributes:
        machine: the only machine that may use it.
        token_hash: sha256 of the token, hex.
        expires_at: from then on it is invalid.
        bound_to: the tailnet's stable id of the device that used it; "" while it is unused.
        closed: the machine's agent has used its node token, so the join token is no longer valid.
        gang: the gang whose machines all have this token; `machine` is "" until it is known which of them calls.
    """

    machine: str
    token_hash: str = field(repr=False)
    expires_at: datetime
    bound_to: str = ""
    closed: bool = False
    gang: str = ""


@dataclass(frozen=True, slots=True)
class NodeCaller:
    """The machine that a caller's node token belongs to.

    Attributes:
        machine: the machine's name.
        device_id: the tailnet's stable id of the device that the machine joined with; "" when the journal lost it.
        known: whether the journal has the machine's facts. If not, its agent rejoins and sends them.
        generation: of the token: the machine's present one or the next.
    """

    machine: str
    device_id: str
    known: bool = True
    generation: int = 0


def hash_token(token: SecretStr | str) -> str:
    """The sha256 of a token, hex. A random 256-bit token needs no salt."""
    text = token.get_secret_value() if isinstance(token, SecretStr) else token
    return hashlib.sha256(text.encode()).hexdigest()


def verify(token: SecretStr | str, token_hash: str) -> bool:
    """Whether the hash is this token's, in constant time."""
    return hmac.compare_digest(hash_token(token).encode(), token_hash.encode())


def check_hostname(machine: str, hostname: str) -> None:
    """Check by its name that a device belongs to the machine: meshd uses each machine name once.

    Raises:
        JoinRefused: the device has another name.
    """
    if hostname != machine:
        raise JoinRefused(
            f"this token was made for {machine}, and the caller is {hostname or 'without a name'}",
            "each machine has its own token and device: an image must not hold /var/lib/tailscale of another machine",
            code=JoinCode.OTHER_MACHINE,
        )


def check_instance(machine: str, known_id: str, said_id: str) -> None:
    """Check that a machine of a gang is the instance that its cloud shows under the machine's name.

    All machines of a gang have one join token. So each says which instance it is, and the cloud's answer or listing
    says which instance has that name.

    Args:
        machine: the name of the calling device.
        known_id: the cloud's id of that machine; "" while it is not known.
        said_id: what the caller says.

    Raises:
        JoinRefused: it may be another machine; nothing follows from that for the real one.
    """
    if not known_id:
        raise JoinRefused(
            "the cloud has not confirmed this machine yet",
            "trying again is enough",
            fatal=False,
            code=JoinCode.NOT_CONFIRMED,
        )
    if not hmac.compare_digest(known_id.encode(), said_id.encode()):
        raise JoinRefused(
            f"{machine} is the instance {known_id}, and the caller is {said_id or 'none'}",
            "look for another device with its name; the machine itself may still join",
            fatal=False,
            code=JoinCode.OTHER_INSTANCE,
        )


def check_join(ticket: JoinTicket, hostname: str, device_id: str, now: datetime) -> None:
    """Check that this device may join with this ticket at `now`.

    The first success binds the token to the device. The same device may ask again, since the answer may get lost, until
    the token expires or the agent has used its node token. After that the join token in the machine's user data is
    worthless.

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
            "rent the machine again; look for a second device with its name if you did not expect this",
            code=JoinCode.OTHER_DEVICE,
        )
    if now >= ticket.expires_at:
        raise JoinRefused(
            f"the join token of {ticket.machine} expired at {ticket.expires_at:%Y-%m-%d %H:%M:%S} UTC",
            "it booted too slowly (timing.join_token_ttl_s): rent the machine again",
            code=JoinCode.TOKEN_EXPIRED,
        )
