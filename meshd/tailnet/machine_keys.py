"""PURE: auth keys for one machine and one use: who gets one, and when it is revoked.

The machines of a gang have one script, so they have one key, which joins several devices. It lives as short as one for
a single machine, and is revoked once all machines of the gang have joined or are given up.

Facts: on most clouds others can read a machine's user data: in the cloud's API, or as any process on the machine
through its metadata service. So a key that joins many devices does not belong there. A key for one use is dead once it
was used; one that was not used must be revoked. The record of a key is written before the key is minted, and is kept
until no key that was minted for it can be used any more. So a crash at any point leaks none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from meshd.model.machine import IN_SLURM, Phase
from meshd.runtime.backoff import backoff_s
from meshd.tailnet.fields import KEY_DESCRIPTION_MAX

LAUNCH: Final = "launch"
"""The purpose of the key in a machine's user data. Any other purpose is a login, or a spare's."""

GANG: Final = "gang"
"""The purpose of the key in the user data of a gang; `MachineKey.machine` is then `gang_key_owner`."""

INVITATION: Final = "invitation"
"""The purpose of the key in an invitation; `MachineKey.machine` is then `invitation_key_owner`."""

MARGIN_S: Final = 600.0
"""A key lives this much longer than its machine may take to join."""
JOINING: Final = frozenset({LAUNCH, GANG})
LOGIN_LIFETIME_S: Final = 900.0
"""The lifetime of a key for a login: much longer than a login takes, also when the clocks differ."""
SETTLE_S: Final = 120.0
"""A mint call whose answer was lost may still have its effect for this long."""
CLOCKS_S: Final = 300.0
"""By how much the control server's clock may differ from ours."""
EXPOSED_CURE: Final = (
    "give meshd an API credential: then each machine gets a key of its own for one use "
    '(docs/tailnet.md, A key for each machine); or set [tailnet] key_mode = "reusable" if all of them may have it'
)
RETRY_FIRST_S: Final = 5.0
RETRY_MAX_S: Final = 600.0


class KeyMode(StrEnum):
    """The kinds of key that machines join with."""

    REUSABLE = "reusable"
    """All machines join with one key, and keep it."""
    PER_MACHINE = "per_machine"
    """Each machine joins with a key of its own for one use, does not keep it, and gets a spare afterwards."""


@dataclass(frozen=True, slots=True)
class KeyModes:
    """The mode of each enabled provider.

    Attributes:
        by_provider: by the provider's name.
        exposed: providers whose user data others can read, and whose machines get the reusable key, because meshd
            cannot mint and the settings do not say.
    """

    by_provider: Mapping[str, KeyMode]
    exposed: tuple[str, ...] = ()

    def own_key(self, provider: str) -> bool:
        """Whether its new machines get keys of their own."""
        return self.by_provider.get(provider) is KeyMode.PER_MACHINE

    @property
    def shared_key_wanted(self) -> bool:
        """Some new machines join with the reusable key."""
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
    """A key that may still be used, as the journal keeps it. Times are UTC.

    Attributes:
        machine: its machine; for a gang's key `gang_key_owner`.
        purpose: LAUNCH, GANG, the name of an attempt to log in again, or a spare's.
        asked_at: the time of the last mint call. While `id` is "" its outcome is not known.
        expires: by then every key that was minted for it has expired.
        id: the control server's.
        lost: there was an earlier mint call whose answer was lost: its key is found by the description.
        attempts: how many tries to revoke it have failed.
        failure: why the last try failed; "" when none did.
        retry_at: no try before then.
        sha256: of its secret; "" before it was minted, or when an older meshd minted it.
        device: of a spare: the tailnet device of its machine at the time of the mint call.
        given: of a spare: the times of the mint calls for its machine within a day, its own too.
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
        """The name under which its secret is kept."""
        return f"{self.machine}.{self.purpose}"

    @property
    def description(self) -> str:
        """Its description at the control server. The end of the machine's name, which stays, is unique."""
        head = f"meshd {self.purpose} "
        return head + self.machine[-(KEY_DESCRIPTION_MAX - len(head)) :].lstrip("-")

    @property
    def unclear(self) -> bool:
        """There may be a key whose id is not known."""
        return self.lost or not self.id


def gang_key_owner(gang: str) -> str:
    """What stands for a gang in the record of its key: unique, and short enough for a key's description."""
    return f"{gang.partition(':')[0][-24:].lstrip('-')}-{hashlib.sha256(gang.encode()).hexdigest()[:12]}"


def invitation_key_owner(host: str, number: int) -> str:
    """What stands for an invitation in the record of its key, as `gang_key_owner`."""
    return f"{host[-20:].lstrip('-')}-{hashlib.sha256(f'{host} {number}'.encode()).hexdigest()[:12]}"


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
    """The record for the journal before a key is minted.

    Args:
        machine: its machine.
        purpose: LAUNCH, the name of an attempt to log in again, or a spare's.
        now: UTC.
        lifetime_s: of the key.
        before: the record of an earlier call, whose key is not kept any more.
        device: of a spare: its machine's.
        given: of a spare: the times of the earlier mint calls for its machine within a day.
    """
    expires = now + timedelta(seconds=lifetime_s)
    if before is not None:
        expires = max(expires, before.expires)
    return MachineKey(machine, purpose, now, expires, lost=before is not None, device=device, given=given)


def minted(key: MachineKey, key_id: str, expires: datetime | None, sha256: str = "") -> MachineKey:
    """The record after the key was minted and its secret is kept."""
    return replace(key, id=key_id, expires=max(key.expires, expires) if expires else key.expires, sha256=sha256)


def given_up(phase: Phase | None) -> str:
    """Why a machine in this phase needs no key at all; "" when it may. None: the journal does not have the machine."""
    if phase is None or phase is Phase.GONE:
        return "its machine is gone"
    return "its machine is given up" if phase in {Phase.TERMINATING, Phase.LOST} else ""


def why_end(key: MachineKey, phase: Phase | None, *, logging_in: bool) -> str:
    """Why to revoke a key that is no spare now; "" while it is needed.

    Args:
        key: its record.
        phase: of its machine; None when the journal has no such machine.
        logging_in: its machine is logging in again with it now.
    """
    if why := given_up(phase):
        return why
    if key.purpose not in JOINING:
        return "" if logging_in else "the login has come to its end"
    return "its machine has joined" if phase in IN_SLURM else ""


def secret_needed(key: MachineKey, phase: Phase | None, *, logging_in: bool) -> bool:
    """The secret may be needed again: a create call may have to be repeated with the same user data."""
    return logging_in if key.purpose not in JOINING else phase in {Phase.REQUESTED, Phase.LAUNCHING}


def over(key: MachineKey, now: datetime) -> bool:
    """It has expired, and so has every key that was minted for it."""
    return now >= key.expires + timedelta(seconds=CLOCKS_S)


def settled(key: MachineKey, now: datetime) -> bool:
    """A mint call whose answer was lost has had its effect: a key that is not found now does not exist."""
    return not key.unclear or now >= key.asked_at + timedelta(seconds=SETTLE_S)


def due(key: MachineKey, now: datetime) -> bool:
    """It may be revoked now."""
    return key.retry_at is None or now >= key.retry_at


def look_again(key: MachineKey) -> MachineKey:
    """The record after a first search for the key of a lost call."""
    return replace(key, failure="", retry_at=key.asked_at + timedelta(seconds=SETTLE_S))


def not_ended(key: MachineKey, why: str, now: datetime) -> MachineKey:
    """The record after it could not be revoked."""
    attempts = key.attempts + 1
    pause_s = backoff_s(attempts, RETRY_FIRST_S, RETRY_MAX_S)
    return replace(key, attempts=attempts, failure=why, retry_at=now + timedelta(seconds=pause_s))
