"""When a rotation begins by itself, and what people are told of a key that comes to its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import structlog

from meshd.api.schema import ProblemView
from meshd.codes import ProblemCode
from meshd.daemon.active_rotation import ActiveRotations
from meshd.daemon.auth_key.controller import AuthKeyController
from meshd.daemon.reporting import problem
from meshd.errors import TailnetError
from meshd.model.words import ending
from meshd.runtime.clock import Clock
from meshd.tailnet.keys import KeyFile, Minter
from meshd.tailnet.keystore import KeptKey, KeyStore
from meshd.tailnet.rotation import AuthKeyRotation, AuthKeyStage, KeyOrigin

URGENT: Final = timedelta(days=3)
AGAIN_AFTER: Final = timedelta(hours=1)
"""After a rotation that was taken back, the next one that begins by itself."""
HOLD_LONG_S: Final = 86400.0
"""A rotation that holds for longer than this is a problem that somebody must look at."""

log = structlog.get_logger(__name__)


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
        store: keeps the key in use.
        file: the user's key.
        minter: mints keys; None without an API credential.
        mints: meshd is told to mint the keys: the file is not looked at.
        ahead: how long before its end a key is replaced.
        expires: the end of the key in use as the API tells it, when the store does not know it.
        engine: begins rotations.
        active: tells whether a rotation, of either key, is active: the next one waits for its end.
        clock: time.
    """

    def __init__(
        self,
        store: KeyStore,
        file: KeyFile,
        minter: Minter | None,
        *,
        mints: bool,
        ahead: timedelta,
        expires: Callable[[], datetime | None],
        engine: Callable[[], AuthKeyController],
        active: ActiveRotations,
        clock: Clock,
    ) -> None:
        self._store = store
        self._file = file
        self._minter = minter
        self._mints = mints
        self._ahead = ahead
        self._expires = expires
        self._engine = engine
        self._active = active
        self._clock = clock
        self._file_problem = ""
        self._put_off = ""

    def __call__(self) -> None:
        """Begin a rotation when one is due and none is under way. Raises TailnetError or StoreError."""
        due, other = self._due(), self._active.current()
        put_off = due.reason if due is not None and other is not None else ""
        if put_off and put_off != self._put_off:
            log.info("rotation_put_off", reason=put_off, active_rotation=other.text if other else "")
        self._put_off = put_off
        if due is not None and other is None:
            self._engine().start(due.source, by="meshd", reason=due.reason, new=due.new)

    def _due(self) -> Due | None:
        last, in_use = self._engine().last, self._store.in_use()
        if in_use is None:
            return None
        found = None if self._mints else self.new_in_file(last)
        if found is not None:
            return Due(KeyOrigin.FILE, f"a new key was put into {self._file.name}", found)
        aborted_at = last.ended_at if last is not None and last.stage is AuthKeyStage.ABORTED else None
        if aborted_at is not None and self._clock.now() < aborted_at + AGAIN_AFTER:
            return None
        reason = self._why_mint(in_use)
        return Due(KeyOrigin.MINTED, reason) if reason else None

    def in_file(self) -> KeptKey | None:
        """The key of the file; None when there is none or it cannot be read, which `problems` tells."""
        try:
            found = self._file.read()
        except TailnetError as error:
            if self._file_problem != str(error):
                log.warning("auth_key_file_not_read", reason=str(error))
            self._file_problem = str(error)
            return None
        self._file_problem = ""
        return found

    def new_in_file(self, last: AuthKeyRotation | None) -> KeptKey | None:
        """A key in the file that was not looked at yet."""
        in_use, found = self._store.in_use(), self.in_file()
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
        end = in_use.expires or self._expires()
        if end is not None and end - self._ahead <= self._clock.now():
            return f"the key ends on {end:%Y-%m-%d}"
        return ""

    def problems(self) -> Iterable[ProblemView]:
        """What is not as it should be with keys and their rotation."""
        engine, now, in_use = self._engine(), self._clock.now(), self._store.in_use()
        if engine.problem:
            yield problem(
                ProblemCode.AUTH_KEY_ROTATION_STUCK,
                "error",
                f"the rotation of the auth key stands still: {engine.problem}",
                "check the disk",
            )
        if self._file_problem and not self._mints:
            yield problem(
                ProblemCode.AUTH_KEY_FILE_UNREADABLE,
                "warning",
                self._file_problem,
                "the key in use stays in use while it works",
            )
        last = engine.last
        if last is not None:
            yield from _of_rotation(last, now, in_use)
        if self._put_off and (other := self._active.current()) is not None:
            text = f"the auth key shall be rotated ({self._put_off}), and waits: {other.text}"
            yield problem(
                ProblemCode.AUTH_KEY_ROTATION_WAITS,
                "info",
                text,
                f"it begins by itself after that; `{other.command} --status` tells more",
            )
        end = (in_use.expires or self._expires()) if in_use else None
        if in_use is not None and end is not None and end - self._ahead <= now and engine.active is None:
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
