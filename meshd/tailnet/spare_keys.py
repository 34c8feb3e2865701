"""PURE: the spare auth key of a machine that joined with a key of its own: who gets one, when it is replaced, and when
it is revoked.

A machine uses up its first key when it joins. Without another one it could not come back after its device was deleted.
The spare is a key for one use too. It goes over the tailnet into a file that only root can read, and is in no user
data. A thief could join one more device with it, with the machine's own tags. The machine uses the spare when control
no longer knows its device, and then gets the next one.

A machine has two spares at most: the one that it holds, and the one that replaces it. The first is revoked only when
the machine holds the second.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from meshd.model.machine import Machine, Phase
from meshd.tailnet.machine_keys import MachineKey, given_up

PURPOSES: Final = ("spare-1", "spare-2")
LIFETIME_S: Final = 30 * 86400.0
EXCHANGE_AHEAD: Final = timedelta(days=10)
"""How long before its end a spare is replaced: the API may be away for as long."""

PER_DAY: Final = 24
"""The most spares that a machine gets within a day. A machine that works needs one a month."""
DAY: Final = timedelta(days=1)

HOLDS_ONE: Final = frozenset({Phase.READY, Phase.DRAINING})
"""Before that a machine has no job to lose, and should not wait for a key on its way to READY."""


@dataclass(frozen=True, slots=True)
class Want:
    """What to do for a machine that needs a spare.

    Attributes:
        purpose: of the key.
        why: the reason, for people.
        mint: mint a key; False: hand over the one that is kept.
        gone: the machine says that it no longer holds the spare that it was given, and its device is the same.
    """

    purpose: str
    why: str
    mint: bool = True
    gone: bool = False


def is_spare(key: MachineKey) -> bool:
    """The key is a spare."""
    return key.purpose in PURPOSES


def may_hold(machine: Machine) -> bool:
    """The machine needs a spare, and can be given one as far as the journal knows."""
    return (
        machine.own_key
        and machine.phase in HOLDS_ONE
        and not machine.left_slurm
        and bool(machine.tailnet_id)
        and machine.device_gone_since is None
    )


def newest(keys: Collection[MachineKey]) -> MachineKey | None:
    """The spare of the last order."""
    return max(keys, key=lambda key: key.asked_at, default=None)


def held(machine: Machine, keys: Collection[MachineKey]) -> MachineKey | None:
    """The spare that the machine says it holds; None for none, or for one that the journal does not have."""
    return next((key for key in keys if key.sha256 and key.sha256 == machine.spare_key), None)


def want(
    machine: Machine, keys: Collection[MachineKey], now: datetime, *, since: datetime | None, at_hand: bool
) -> Want | None:
    """What to do for a machine that may hold a spare; None when it holds the right one.

    Args:
        machine: its record.
        keys: its spares in the journal.
        now: UTC.
        since: replace spares that were ordered before then: the keys were rotated.
        at_hand: the secret of the newest spare is kept, so it can be handed over.
    """
    last = newest(keys)
    if last is None:
        return Want(PURPOSES[0], "it has none")
    has = held(machine, keys)
    free = next(one for one in PURPOSES if one != (has or last).purpose) if has or last.id else last.purpose
    if last.device != machine.tailnet_id:
        return Want(free, "it has another device now: the spare was used")
    if since is not None and last.asked_at < since:
        return Want(free, "the keys are rotated")
    if last.expires - EXCHANGE_AHEAD <= now:
        return Want(free, f"the one that it holds ends on {last.expires:%Y-%m-%d}")
    if not last.id:
        return Want(last.purpose, "no clear answer came when one was minted", mint=not at_hand)
    if last is has:
        return None
    return (
        Want(last.purpose, "it is minted", mint=False)
        if at_hand
        else Want(free, "the node no longer holds it", gone=True)
    )


def given_lately(keys: Collection[MachineKey], now: datetime) -> tuple[datetime, ...]:
    """The times of the orders of a machine's spares within the last day, oldest first."""
    times = {at for key in keys for at in (*key.given, *((key.asked_at,) if key.id else ()))}
    return tuple(sorted(at for at in times if now - at < DAY))


def stopped(machine: Machine, keys: Collection[MachineKey], now: datetime, *, since: datetime | None) -> str:
    """Why a machine gets no further spare for now; "" when it may. A rotation of the keys ends that.

    Args:
        machine: its record.
        keys: its spares in the journal.
        now: UTC.
        since: see `want`.
    """
    last = newest(keys)
    if last is None or (since is not None and last.asked_at < since):
        return ""
    if last.misused and last.device == machine.tailnet_id:
        return "its spare auth key was used, and its device is the same: another device may have joined with it"
    if len(given_lately(keys, now)) >= PER_DAY:
        return f"it was given {PER_DAY} spare auth keys within a day"
    return ""


def why_end(key: MachineKey, machine: Machine | None, keys: Collection[MachineKey]) -> str:
    """Why to revoke a spare now; "" while it is needed.

    Args:
        key: its record.
        machine: its machine; None when the journal does not have it.
        keys: all spares of the machine.
    """
    if machine is None:
        return given_up(None)
    if why := given_up(machine.phase):
        return why
    if not machine.own_key:
        return "its machine keeps the key that is shared"
    has = held(machine, keys)
    return "another one took its place" if has and has is not key and has.asked_at >= key.asked_at else ""


def secret_needed(key: MachineKey, machine: Machine | None, keys: Collection[MachineKey]) -> bool:
    """The machine does not hold it yet."""
    if machine is None or given_up(machine.phase):
        return False
    return key is newest(keys) and (not key.sha256 or machine.spare_key != key.sha256)


def held_since(machine: Machine, keys: Collection[MachineKey]) -> datetime | None:
    """When the spare that a machine holds was ordered; None when it holds none.

    A spare that the journal does not have, because the journal was lost, counts as old as the machine.
    """
    if not machine.spare_key:
        return None
    has = held(machine, keys)
    return has.asked_at if has else machine.created_at
