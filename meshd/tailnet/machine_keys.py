"""PURE: auth keys for one machine and one use: who gets one, and when what was minted is ended.

Facts: a machine's user data can be read by others on most clouds (in the cloud's API, or by every process on the
machine through its metadata service), so a key that joins many devices does not belong there. A key for one use is dead
once it was used; what has to be ended is one that was not. A key's record is written before it is minted, and is kept
until nothing that was minted for it can open anything any more, so a crash at any point leaks none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from meshd.model.machine import IN_SLURM, Phase
from meshd.runtime.backoff import backoff_s
from meshd.tailnet.fields import KEY_DESCRIPTION_MAX

LAUNCH: Final = "launch"
"""The purpose of the key in a machine's user data. Any other is an attempt to log in anew, or a spare's."""

MARGIN_S: Final = 600.0
"""A key lives this much longer than its machine may take to join."""
LOGIN_LIFETIME_S: Final = 900.0
"""Of a key for a new login: far longer than that takes, with what clocks may differ."""
SETTLE_S: Final = 120.0
"""So long after a mint call whose answer was lost it may still have its effect."""
CLOCKS_S: Final = 300.0
"""So much later than by our clock a key is surely over by the control server's."""
EXPOSED_CURE: Final = (
    "give meshd an API credential: then each machine gets a key of its own for one use "
    '(docs/tailnet.md, A key for each machine); or set [tailnet] key_mode = "reusable" if all of them may have it'
)
RETRY_FIRST_S: Final = 5.0
RETRY_MAX_S: Final = 600.0


class KeyMode(StrEnum):
    """What machines join with."""

    REUSABLE = "reusable"
    """All with one key, which nodes keep."""
    PER_MACHINE = "per_machine"
    """Each with a key of its own for one use, which none keeps, and a spare afterwards."""


@dataclass(frozen=True, slots=True)
class KeyModes:
    """The mode of each enabled provider.

    Attributes:
        by_provider: by the provider's name.
        exposed: providers whose user data others can read, and whose machines get the reusable key since nothing can
            mint and nobody has said that it shall be so.
    """

    by_provider: Mapping[str, KeyMode]
    exposed: tuple[str, ...] = ()

    def own_key(self, provider: str) -> bool:
        """Whether its new machines get keys of their own."""
        return self.by_provider.get(provider) is KeyMode.PER_MACHINE

    @property
    def shared_key_wanted(self) -> bool:
        """Some new machines need the reusable key."""
        return not self.by_provider or KeyMode.REUSABLE in self.by_provider.values()


def modes_of(wanted: KeyMode | None, user_data_private: Mapping[str, bool], *, can_mint: bool) -> KeyModes:
    """The modes.

    Args:
        wanted: by the settings; None when they leave it to meshd.
        user_data_private: of each enabled provider (`ProviderCapabilities.user_data_private`).
        can_mint: there is a credential that mints keys.
    """
    if wanted is not None:
        return KeyModes(dict.fromkeys(user_data_private, wanted))
    exposed = [name for name, private in user_data_private.items() if not private]
    modes = dict.fromkeys(user_data_private, KeyMode.REUSABLE)
    if can_mint:
        return KeyModes({**modes, **dict.fromkeys(exposed, KeyMode.PER_MACHINE)})
    return KeyModes(modes, tuple(sorted(exposed)))


@dataclass(frozen=True, slots=True)
class MachineKey:
    """A key that may still open something, as the journal keeps it. Times are UTC.

    Attributes:
        machine: the one that it is for.
        purpose: LAUNCH, the attempt to log in anew, or a spare's.
        asked_at: when it was asked for last; whether it was made is not known while `id` is "".
        expires: all that was minted for it is over by itself then.
        id: the control server's.
        lost: it was asked for before, and the answer was lost: what was made then is found by the description.
        attempts: how often its end was tried in vain.
        failure: why the last try failed; "" while all is well.
        retry_at: no try before then.
        sha256: of its secret; "" when it was not minted, or by a meshd that did not write it down.
        device: of a spare: the tailnet device that its machine had when it was asked for.
        given: of a spare: when it and earlier ones of its machine were asked for, within a day.
        misused: of a spare: it was used, and its machine has the same device as before.
    """

    machine: str
    purpose: str
    asked_at: datetime
    expires: datetime
    id: str = ""
    lost: bool = False
    attempts: int = 0
    failure: str = ""
    retry_at: datetime | None = None
    sha256: str = ""
    device: str = ""
    given: tuple[datetime, ...] = ()
    misused: bool = False

    @property
    def name(self) -> str:
        """Under which its secret is kept."""
        return f"{self.machine}.{self.purpose}"

    @property
    def description(self) -> str:
        """By which it is found at the control server; the machine's name ends in what makes it unique for ever."""
        head = f"meshd {self.purpose} "
        return head + self.machine[-(KEY_DESCRIPTION_MAX - len(head)) :].lstrip("-")

    @property
    def unclear(self) -> bool:
        """A key may have been made whose id is not known."""
        return self.lost or not self.id


def ask(
    machine: str,
    purpose: str,
    now: datetime,
    lifetime_s: float,
    before: MachineKey | None = None,
    *,
    device: str = "",
    given: tuple[datetime, ...] = (),
) -> MachineKey:
    """The record to be journaled before a key is minted.

    Args:
        machine: that it is for.
        purpose: LAUNCH, the attempt to log in anew, or a spare's.
        now: UTC.
        lifetime_s: of the key.
        before: the record of an earlier call whose key is not at hand any more.
        device: of a spare: its machine's.
        given: of a spare: when earlier ones of its machine were asked for, within a day.
    """
    expires = now + timedelta(seconds=lifetime_s)
    if before is not None:
        expires = max(expires, before.expires)
    return MachineKey(machine, purpose, now, expires, lost=before is not None, device=device, given=given)


def minted(key: MachineKey, key_id: str, expires: datetime | None, sha256: str = "") -> MachineKey:
    """The record once it was made and its secret is kept."""
    return replace(key, id=key_id, expires=max(key.expires, expires) if expires else key.expires, sha256=sha256)


def given_up(phase: Phase | None) -> str:
    """Why no key is needed in a phase whatever it is for; "" when one may be. None: the journal has no such machine."""
    if phase is None or phase is Phase.GONE:
        return "its machine is gone"
    return "its machine is given up" if phase in {Phase.TERMINATING, Phase.LOST} else ""


def why_end(key: MachineKey, phase: Phase | None, *, logging_in: bool) -> str:
    """Why a key that is no spare shall be ended now; "" while it is needed.

    Args:
        key: its record.
        phase: of its machine; None when the journal has no such machine.
        logging_in: its machine is told to log in anew with it just now.
    """
    if why := given_up(phase):
        return why
    if key.purpose != LAUNCH:
        return "" if logging_in else "the login has come to its end"
    return "its machine has joined" if phase in IN_SLURM else ""


def secret_needed(key: MachineKey, phase: Phase | None, *, logging_in: bool) -> bool:
    """The secret may be asked for once more: a create call may have to be repeated with the same user data."""
    return logging_in if key.purpose != LAUNCH else phase in {Phase.REQUESTED, Phase.LAUNCHING}


def over(key: MachineKey, now: datetime) -> bool:
    """It has ended by itself, and whatever else was minted for it."""
    return now >= key.expires + timedelta(seconds=CLOCKS_S)


def settled(key: MachineKey, now: datetime) -> bool:
    """A call whose answer was lost can have no more effect: what is not found now does not exist."""
    return not key.unclear or now >= key.asked_at + timedelta(seconds=SETTLE_S)


def due(key: MachineKey, now: datetime) -> bool:
    """Its end may be tried now."""
    return key.retry_at is None or now >= key.retry_at


def look_again(key: MachineKey) -> MachineKey:
    """The record after a first search for what a lost call made."""
    return replace(key, failure="", retry_at=key.asked_at + timedelta(seconds=SETTLE_S))


def not_ended(key: MachineKey, why: str, now: datetime) -> MachineKey:
    """The record after a try to end it that failed."""
    attempts = key.attempts + 1
    pause_s = backoff_s(attempts, RETRY_FIRST_S, RETRY_MAX_S)
    return replace(key, attempts=attempts, failure=why, retry_at=now + timedelta(seconds=pause_s))
