"""When a rotation begins by itself, and the problems of a key that ends soon."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from meshd.api.schema import ProblemView
from meshd.codes import ProblemCode
from meshd.daemon.active_rotation import ActiveRotations
from meshd.daemon.auth_key.ports import KeyPorts
from meshd.daemon.observe.source import Readable
from meshd.daemon.reporting import problem
from meshd.model.observed import Fresh
from meshd.model.words import ending
from meshd.runtime.clock import Clock
from meshd.tailnet.admin import AuthKey
from meshd.tailnet.keystore import KeptKey
from meshd.tailnet.rotation import AuthKeyRotation, AuthKeyStage, KeyOrigin

URGENT: Final = timedelta(days=3)
AGAIN_AFTER: Final = timedelta(hours=1)
"""After a rotation that was taken back, the next one that begins by itself."""
HOLD_LONG_S: Final = 86400.0
"""A rotation that holds for longer than this is a problem that somebody must look at."""


@dataclass(frozen=True, slots=True)
class Due:
    """A rotation that is to begin by itself.

    Attributes:
        reason: why, for people.
        new: the key of the file.
    """

    source: KeyOrigin
    reason: str
    new: KeptKey | None = None


class RotationTriggers:
    """Looks whether a rotation is due.

    Args:
        ports: have the key in use, the user's file, and the API.
        key_record: the source of the API's record of the key in use; for its end, where the store does not know it.
        ahead: how long before its end a key is replaced.
        clock: time.
    """

    def __init__(self, ports: KeyPorts, key_record: Readable[AuthKey | None], ahead: timedelta, clock: Clock) -> None:
        self._store = ports.store
        self._file = ports.file
        self._minter = ports.minter
        self._mints = ports.mints
        self._key_record = key_record
        self._ahead = ahead
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
        end = self._end(in_use)
        if end is not None and end - self._ahead <= self._clock.now():
            return f"the key ends on {end:%Y-%m-%d}"
        return ""

    def _end(self, in_use: KeptKey) -> datetime | None:
        """When the key in use ends; None when that is not known."""
        record = self._key_record.current
        known = record.value.expires if isinstance(record, Fresh) and record.value is not None else None
        return in_use.expires or known

    def problems(
        self, last: AuthKeyRotation | None, stuck: str, put_off: Due | None, active: ActiveRotations
    ) -> Iterable[ProblemView]:
        """What is wrong with the key and its rotation.

        Args:
            last: the newest rotation.
            stuck: why the controller cannot go on; "" when it can.
            put_off: a rotation that is due and waits for the end of another one.
            active: tells which one that is.
        """
        now, in_use = self._clock.now(), self._store.in_use()
        if stuck:
            text = f"the rotation of the auth key stands still: {stuck}"
            yield problem(ProblemCode.AUTH_KEY_ROTATION_STUCK, "error", text, "check the disk")
        if self._file.problem and not self._mints:
            cure = "the key in use stays in use while it works"
            yield problem(ProblemCode.AUTH_KEY_FILE_UNREADABLE, "warning", self._file.problem, cure)
        if last is not None:
            yield from _of_rotation(last, now, in_use)
        if put_off is not None and (other := active.current()) is not None:
            text = f"the auth key shall be rotated ({put_off.reason}), and waits: {other.text}"
            cure = f"it begins by itself after that; `{other.command} --status` tells more"
            yield problem(ProblemCode.AUTH_KEY_ROTATION_WAITS, "info", text, cure)
        end = self._end(in_use) if in_use else None
        idle = last is None or last.ended
        if in_use is not None and end is not None and end - self._ahead <= now and idle:
            yield self._ending(in_use, end, now)

    def _ending(self, in_use: KeptKey, end: datetime, now: datetime) -> ProblemView:
        name = f"the auth key {in_use.id}" if in_use.id else "the auth key"
        if self._minter is not None:
            cure = "`meshctl rotate-key` makes a new one and gives it to all nodes"
        else:
            cure = f"put a new reusable key into {self._file.name}: meshd gives it to all nodes (docs/tailnet.md)"
        then = "then no machine can join" if end > now else "no machine can join with it"
        text = f"{name} {ending(end, now)}: {then}"
        return problem(ProblemCode.AUTH_KEY_ENDS, "error" if end - URGENT <= now else "warning", text, cure)


def _of_rotation(rotation: AuthKeyRotation, now: datetime, in_use: KeptKey | None) -> Iterable[ProblemView]:
    name = "the rotation of the auth key"
    refused = rotation.stage is AuthKeyStage.ABORTED and rotation.taken_back and not rotation.aborted_by
    if refused and rotation.source is KeyOrigin.FILE:
        text = f"the new auth key of the file is not used: {rotation.taken_back}"
        cure = "put another one there, or `meshctl rotate-key` to try it again; the old key stays in use while it works"
        yield problem(ProblemCode.AUTH_KEY_FILE_REFUSED, "error", text, cure, since=rotation.ended_at)
    elif refused or (rotation.stage is AuthKeyStage.ABORTED and rotation.aborted_by == "meshd"):
        text = f"{name} was taken back: {rotation.taken_back}"
        cure = "`meshctl rotate-key` tries again"
        yield problem(ProblemCode.AUTH_KEY_ROTATION_TAKEN_BACK, "error", text, cure, since=rotation.ended_at)
    if rotation.ended:
        return
    held_s = (now - rotation.stage_since).total_seconds()
    if rotation.failure:
        cure = "meshd tries again; `meshctl rotate-key --abort` takes it back"
        text = f"{name} ({rotation.stage.value}): {rotation.failure}"
        yield problem(ProblemCode.AUTH_KEY_ROTATION_FAILS, "warning", text, cure)
    if rotation.stage is AuthKeyStage.HOLD and held_s > HOLD_LONG_S:
        text = f"{name} waits for nodes for {held_s / 3600:.0f} h, and the old key is valid until then"
        cure = "`meshctl rotate-key --status` shows them; `--waive NODE` or `--abort`"
        yield problem(ProblemCode.AUTH_KEY_ROTATION_HELD, "error", text, cure)
    elif in_use is not None:
        text = f"{name} is under way: {rotation.stage.value}"
        yield problem(ProblemCode.AUTH_KEY_ROTATION_ACTIVE, "info", text, "see `meshctl rotate-key --status`")
