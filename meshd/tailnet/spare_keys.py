"""PURE: the spare auth key of a machine that joined with a key of its own: who gets one, when it is exchanged, and when
it is ended.

A machine's first key is used up by its joining. Without another one it could not come back when somebody deletes its
device. The spare is a key for one use too. It goes over the tailnet into a file that only root reads, and is in no user
data. Its worth to a thief is one more device with the machine's own tags. The machine uses it when control does not
know its device any more, and is given the next one.

There are two of a machine at most: the one that it holds, and the one that takes its place. The first is ended only
when the machine holds the second.
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
"""So long before its end it is exchanged: the API may be away for as long."""

PER_DAY: Final = 24
"""So many spares a machine gets within a day. One a month is what a machine that is well needs."""
DAY: Final = timedelta(days=1)

HOLDS_ONE: Final = frozenset({Phase.READY, Phase.DRAINING})
"""Before that a machine has no job to lose, and its way to READY is not to wait for a key."""


@dataclass(frozen=True, slots=True)
class Want:
    """A machine is to be given a spare.

    Attributes:
        purpose: of its key.
        why: for people.
        anew: a key is to be minted; else the one that is there is to be handed over.
        gone: the machine says that it holds the one no more that it was given, and its device is the same.
    """

    purpose: str
    why: str
    anew: bool = True
    gone: bool = False


def is_spare(key: MachineKey) -> bool:
    """The key is a spare."""
    return key.purpose in PURPOSES


def may_hold(machine: Machine) -> bool:
    """The machine shall have a spare, and can be given one as far as the journal knows."""
    return (
        machine.own_key
        and machine.phase in HOLDS_ONE
        and not machine.left_slurm
        and bool(machine.tailnet_id)
        and machine.device_gone_since is None
    )


def newest(keys: Collection[MachineKey]) -> MachineKey | None:
    """The spare that was asked for last."""
    return max(keys, key=lambda key: key.asked_at, default=None)


def held(machine: Machine, keys: Collection[MachineKey]) -> MachineKey | None:
    """The spare that the machine says it holds; None when it holds none, or one that is not in the journal."""
    return next((key for key in keys if key.sha256 and key.sha256 == machine.spare_key), None)


def want(
    machine: Machine, keys: Collection[MachineKey], now: datetime, *, since: datetime | None, at_hand: bool
) -> Want | None:
    """What is to be done for a machine that may hold a spare; None when it has the right one.

    Args:
        machine: its record.
        keys: its spares in the journal.
        now: UTC.
        since: one that was asked for before then is to be exchanged: the keys were rotated.
        at_hand: the newest spare's secret is kept, so it can be handed over.
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
        return Want(last.purpose, "no clear answer came when one was minted", anew=not at_hand)
    if last is has:
        return None
    return (
        Want(last.purpose, "it is minted", anew=False)
        if at_hand
        else Want(free, "it does not hold it any more", gone=True)
    )


def given_lately(keys: Collection[MachineKey], now: datetime) -> tuple[datetime, ...]:
    """When the spares of a machine that were minted within the last day were asked for, oldest first."""
    times = {at for key in keys for at in (*key.given, *((key.asked_at,) if key.id else ()))}
    return tuple(sorted(at for at in times if now - at < DAY))


def stopped(machine: Machine, keys: Collection[MachineKey], now: datetime, *, since: datetime | None) -> str:
    """Why a machine is given no further spare for now; "" when it may be. A rotation of the keys lifts all of it.

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
    """Why a spare shall be ended now; "" while it is needed.

    Args:
        key: its record.
        machine: that it is for; None when the journal has no such machine.
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
    """Its secret is still to be handed over."""
    if machine is None or given_up(machine.phase):
        return False
    return key is newest(keys) and (not key.sha256 or machine.spare_key != key.sha256)


def held_since(machine: Machine, keys: Collection[MachineKey]) -> datetime | None:
    """When the spare that a machine holds was asked for; None when it holds none.

    One that the journal does not know, since it was lost, is as old as the machine.
    """
    if not machine.spare_key:
        return None
    has = held(machine, keys)
    return has.asked_at if has else machine.created_at
