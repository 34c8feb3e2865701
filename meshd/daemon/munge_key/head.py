"""The head's own munge in a rotation: requests to the root unit, and its last answer."""

from __future__ import annotations

import base64
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import structlog
from pydantic import SecretBytes

from meshd.daemon.root_unit import NoAnswer, RootUnit
from meshd.errors import MungeError, SlurmError
from meshd.munge.client import MungeClient
from meshd.munge.headkey import ANSWER, REQUEST
from meshd.munge.key import fingerprint
from meshd.munge.rotation import HeadView
from meshd.runtime.clock import Clock
from meshd.slurm.client import SlurmClient

ANSWER_TIMEOUT_S = 15.0
LOOK_S = 0.02

log = structlog.get_logger(__name__)


class HeadSide(Protocol):
    """The head's own munge, as the rotation uses it. For each method see HeadMunge."""

    view: HeadView
    away: tuple[float, float] | None

    async def stage(self, key: SecretBytes) -> None:
        """Store a key beside the present one."""
        ...

    async def switch(self, name: str, at: datetime, away_s: float) -> None:
        """Switch to a key at a moment; munged is away for `away_s` seconds."""
        ...

    async def look(self) -> None:
        """Find out whether munge and slurmctld work."""
        ...

    async def round_trip(self) -> None:
        """Encode a credential and decode it. Raises MungeError when munged cannot."""
        ...

    async def auth_type(self) -> str:
        """Slurm's AuthType. Raises SlurmError."""
        ...

    async def made_at(self) -> datetime:
        """When the key in place was made. Raises MungeError."""
        ...

    def forget(self) -> None:
        """Forget the results of an earlier rotation."""
        ...


class HeadMunge:
    """Exchanges files with meshd-munge.service.

    Args:
        directory: meshd's runtime directory, for the request.
        munge: the head's munged.
        slurm: the head's slurmctld.
        clock: time.
        answer: the file of the answer.
    """

    def __init__(
        self,
        directory: Path,
        munge: MungeClient,
        slurm: SlurmClient,
        clock: Clock,
        answer: Path = ANSWER,
    ) -> None:
        self._unit = RootUnit(directory / REQUEST, answer, clock, LOOK_S)
        self._munge = munge
        self._slurm = slurm
        self._clock = clock
        self.view = HeadView()
        self.away: tuple[float, float] | None = None
        """When munged was away in the last switch: seconds since the epoch."""
        # A request of an earlier run of meshd that the unit has not taken yet.
        with suppress(OSError):
            (directory / REQUEST).unlink()

    async def stage(self, key: SecretBytes) -> None:
        """Have a key stored beside the present one. The result is in `view`."""
        body = {"action": "stage", "key_b64": base64.b64encode(key.get_secret_value()).decode()}
        await self._ask({**body, "fingerprint": fingerprint(key)}, None, ANSWER_TIMEOUT_S)

    async def switch(self, name: str, at: datetime, away_s: float) -> None:
        """Have munged stop at a moment and start `away_s` later, with the staged or previous key of this name."""
        ahead_s = max((at - self._clock.now()).total_seconds(), 0.0)
        body = {"action": "switch", "fingerprint": name, "at_unix": at.timestamp(), "away_s": away_s}
        await self._ask(body, at, ahead_s + ANSWER_TIMEOUT_S)

    async def round_trip(self) -> None:
        """Encode a credential and decode it. Raises MungeError when munged cannot."""
        await self._munge.exchange(await self._munge.encode())

    async def look(self) -> None:
        """Find out whether munge and slurmctld work. The result is in `view`."""
        try:
            await self.round_trip()
            works = await self._slurm.ping()
        except (MungeError, SlurmError) as error:
            log.warning("head_munge_does_not_work", reason=str(error))
            works = False
        self.view = replace(self.view, works=works)

    async def auth_type(self) -> str:
        """Slurm's AuthType. Raises SlurmError."""
        return await self._slurm.auth_type()

    async def made_at(self) -> datetime:
        """When the key in place was made.

        Raises:
            MungeError: the unit does not serve, or there is no key.
        """
        if self.view.busy:
            raise MungeError("the munge key is being changed just now")
        answered = await self._exchange({"action": "look"}, ANSWER_TIMEOUT_S)
        if not answered.get("made_unix"):
            raise MungeError(f"the head has no munge key: {answered.get('detail') or 'run `meshctl init`'}")
        return datetime.fromtimestamp(float(answered["made_unix"]), UTC)

    def forget(self) -> None:
        """Forget the results of an earlier rotation."""
        self.view, self.away = HeadView(busy=self.view.busy), None

    async def _ask(self, body: dict[str, Any], moment: datetime | None, timeout_s: float) -> None:
        if self.view.busy:
            return
        self.view = replace(self.view, busy=True, failure="", moment=moment)
        try:
            answered = await self._exchange(body, timeout_s)
        except MungeError as error:
            log.error("head_munge_not_served", reason=str(error))
            self.view = replace(self.view, failure=str(error), moment=moment, key="", staged="")
        else:
            failure = "" if answered["ok"] else str(answered["detail"]) or "it did not say why"
            self.view = replace(
                self.view, key=str(answered["key"]), staged=str(answered["staged"]), failure=failure, moment=moment
            )
            if "stopped_unix" in answered:
                self.away = float(answered["stopped_unix"]), float(answered["started_unix"])
        finally:
            self.view = replace(self.view, busy=False)

    async def _exchange(self, body: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        try:
            return await self._unit.ask(body, timeout_s)
        except OSError as error:
            raise MungeError(f"the head's unit cannot be asked: {error.filename}: {error.strerror}") from error
        except NoAnswer as error:
            if error.taken:
                text = "meshd-munge.service took the request and did not answer: journalctl -u meshd-munge"
                raise MungeError(text) from error
            raise MungeError("meshd-munge.path does not serve: systemctl enable --now meshd-munge.path") from error
