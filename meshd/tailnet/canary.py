"""Proof of an auth key: a throw-away device joins with it, from the head, and is gone again.

Its tailscaled has no TUN device, its state in memory and a socket of its own, so it needs no right and touches nothing
of the head's own tailscaled. State in memory makes the device ephemeral: it goes away even when its tailscaled is
killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
from pydantic import SecretStr

from meshd.errors import CommandError, CommandNotFound, CommandTimeout, MeshdError, TailnetError, TailnetRefused
from meshd.runtime.clock import Clock
from meshd.runtime.run import Runner
from meshd.tailnet.localapi import LocalApi
from meshd.tailnet.status import RUNNING, TailnetTable

START_S: Final = 15.0
LOGIN_S: Final = 30
ONLINE_S: Final = 20.0
LOOK_EVERY_S: Final = 0.05
REFUSALS: Final = ("invalid key", "auth key", "authkey", "pre auth key", "not valid", "does not exist", "tags")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Proof:
    """What the device got."""

    tags: tuple[str, ...]
    address: str


class Canary:
    """Joins the tailnet for a moment.

    Args:
        run: the one way to run programs.
        clock: for waiting.
        login_server: the machines' control server; "" for Tailscale's own.
    """

    def __init__(self, run: Runner, clock: Clock, login_server: str) -> None:
        self._run = run
        self._clock = clock
        self._login_server = login_server

    async def prove(self, key: SecretStr, hostname: str) -> Proof:
        """Join with the key, see that control takes the device, and leave.

        Raises:
            TailnetRefused: control refuses the key, or wants a person to approve the device.
            TailnetError: the outcome is not known: control cannot be reached, or tailscaled does not run.
        """
        with tempfile.TemporaryDirectory(prefix="meshd-canary-") as name:
            folder = Path(name)
            async with self._tailscaled(folder) as api:
                try:
                    return await self._join(folder, api, key, hostname)
                finally:
                    await self._leave(folder)

    async def _join(self, folder: Path, api: LocalApi, key: SecretStr, hostname: str) -> Proof:
        file = folder / "key"
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w") as out:
            out.write(key.get_secret_value())
        words = [
            "up", f"--auth-key=file:{file}", f"--hostname={hostname}", "--accept-dns=false", f"--timeout={LOGIN_S}s",
        ]  # fmt: skip
        if self._login_server:
            words.append(f"--login-server={self._login_server}")
        said = await self._tailscale(folder, *words)
        deadline_s = self._clock.monotonic_s() + ONLINE_S
        while True:
            table = await api.status()
            if table.healthy and table.self_tailnet_ip:
                return Proof(table.self_tags, table.self_tailnet_ip)
            _raise_refusal(table, said)
            if self._clock.monotonic_s() > deadline_s:
                words_of = "; ".join((*table.health, said)) or "no reason given"
                raise TailnetError(f"a device with the new key does not come online within {ONLINE_S:g} s: {words_of}")
            await self._clock.sleep(LOOK_EVERY_S)

    @contextlib.asynccontextmanager
    async def _tailscaled(self, folder: Path) -> AsyncIterator[LocalApi]:
        argv = [
            "tailscaled", "--tun=userspace-networking", "--state=mem:", f"--statedir={folder}",
            f"--socket={folder / 'sock'}", "--port=0",
        ]  # fmt: skip
        lifetime_s = START_S + LOGIN_S + ONLINE_S + 30.0
        daemon = asyncio.create_task(
            self._run(argv, timeout_s=lifetime_s, env={"TS_NO_LOGS_NO_SUPPORT": "1", "HOME": str(folder)})
        )
        api = LocalApi(folder / "sock")
        try:
            await self._answers(api, daemon)
            yield api
        finally:
            await api.aclose()
            daemon.cancel()
            with contextlib.suppress(asyncio.CancelledError, MeshdError):
                await daemon

    async def _answers(self, api: LocalApi, daemon: asyncio.Task[object]) -> None:
        deadline_s = self._clock.monotonic_s() + START_S
        while True:
            if daemon.done():
                raise _start_failure(daemon.exception())
            try:
                await api.status()
                return
            except TailnetError as error:
                if self._clock.monotonic_s() > deadline_s:
                    raise TailnetError(f"a second tailscaled on the head does not start: {error}") from error
            await self._clock.sleep(LOOK_EVERY_S)

    async def _tailscale(self, folder: Path, *words: str) -> str:
        """Run the tailscale program against this tailscaled; what it said, whatever it thought of it."""
        try:
            result = await self._run(
                ["tailscale", f"--socket={folder / 'sock'}", *words], timeout_s=LOGIN_S + 10.0, check=False
            )
        except CommandNotFound as error:
            raise TailnetError("tailscale is not installed on the head: https://tailscale.com/download") from error
        except (CommandTimeout, CommandError) as error:
            raise TailnetError(f"the head's second tailscaled: {error}") from error
        return " ".join((result.stderr or result.stdout).split())[-300:] if result.returncode else ""

    async def _leave(self, folder: Path) -> None:
        """Log out, which deletes the device at once. Where that fails, control deletes it a while later."""
        try:
            await self._tailscale(folder, "logout")
        except TailnetError as error:
            log.warning("canary_not_logged_out", reason=str(error))


def _start_failure(error: BaseException | None) -> TailnetError:
    if isinstance(error, CommandNotFound):
        return TailnetError("tailscaled is not on the head's PATH: it is needed to prove a new auth key")
    return TailnetError(f"a second tailscaled on the head ended at once: {error or 'no message'}")


def _raise_refusal(table: TailnetTable, said: str) -> None:
    if table.backend == "NeedsMachineAuth":
        raise TailnetRefused("the device waits for an approval: the key must be pre-approved (pre-authorized)")
    words = "; ".join((*table.login_errors, said))
    if table.backend != RUNNING and any(word in words.lower() for word in REFUSALS):
        raise TailnetRefused(f"control refuses the key: {words}")
