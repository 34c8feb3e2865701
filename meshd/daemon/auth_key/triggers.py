"""When meshd begins a rotation of the auth key without being asked."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from meshd.daemon.auth_key.ports import KeyPorts
from meshd.daemon.observe.source import Readable
from meshd.model.observed import Fresh
from meshd.runtime.clock import Clock
from meshd.tailnet.admin import AuthKey
from meshd.tailnet.keystore import KeptKey
from meshd.tailnet.rotation import AuthKeyRotation, AuthKeyStage, KeyOrigin

AGAIN_AFTER: Final = timedelta(hours=1)
"""The pause after a rotation that was taken back."""


@dataclass(frozen=True, slots=True)
class Due:
    """A rotation that should begin.

    Attributes:
        source: where the new key comes from.
        reason: why it is due, for people.
        new: the key, when it comes from the file.
    """

    source: KeyOrigin
    reason: str
    new: KeptKey | None = None


class RotationTriggers:
    """Finds out whether a rotation is due.

    Args:
        ports: have the key in use, the user's file, and the API.
        key_record: the source of the API's record of the key in use; for its end, where the store does not know it.
        ahead: how long before its end a key is replaced, or its end announced.
        clock: time.
    """

    def __init__(self, ports: KeyPorts, key_record: Readable[AuthKey | None], ahead: timedelta, clock: Clock) -> None:
        self._store = ports.store
        self._file = ports.file
        self._minter = ports.minter
        self._mints = ports.mints
        self._key_record = key_record
        self.ahead = ahead
        self._clock = clock

    def due(self, last: AuthKeyRotation | None) -> Due | None:
        """The rotation that should begin now, if no other one is active. Raises TailnetError.

        Args:
            last: the newest rotation, which has ended.
        """
        in_use = self._store.in_use()
        if in_use is None:
            return None
        found = None if self._mints else self._new_in_file(last)
        if found is not None:
            return Due(KeyOrigin.FILE, f"a new key was put into {self._file.name}", found)
        aborted_at = last.ended_at if last is not None and last.stage is AuthKeyStage.ABORTED else None
        if aborted_at is not None and self._clock.now() < aborted_at + AGAIN_AFTER:
            return None
        reason = self._why_mint(in_use)
        return Due(KeyOrigin.MINTED, reason) if reason else None

    def _new_in_file(self, last: AuthKeyRotation | None) -> KeptKey | None:
        """A key in the file that no rotation has tried yet."""
        in_use, found = self._store.in_use(), self._file.find()
        if found is None or in_use is None or found.sha256 in {in_use.sha256, in_use.file_sha256}:
            return None
        tried = last is not None and last.new is not None and last.new.sha256 == found.sha256
        return None if tried else found

    def _why_mint(self, in_use: KeptKey) -> str:
        if self._minter is None or not (self._mints or in_use.minted):
            return ""
        if self._mints and not in_use.minted:
            return "mint_auth_key is set"
        if self._mints and set(in_use.tags) != set(self._minter.tags):
            return f"[tailnet] tags is now {', '.join(self._minter.tags)}"
        end = self.end_of(in_use)
        if end is not None and end - self.ahead <= self._clock.now():
            return f"the key ends on {end:%Y-%m-%d}"
        return ""

    def end_of(self, in_use: KeptKey) -> datetime | None:
        """When the key in use ends; None when that is not known."""
        record = self._key_record.current
        known = record.value.expires if isinstance(record, Fresh) and record.value is not None else None
        return in_use.expires or known
