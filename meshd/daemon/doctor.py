"""The checks of `meshctl doctor` that only the daemon can make. Each has its own deadline; none raises."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol

import structlog

from meshd.api.schema import CheckRow
from meshd.daemon.keycheck import current_key
from meshd.errors import AuthFailed, MeshdError
from meshd.model.machine import Machine
from meshd.model.observed import Fresh, Snapshot
from meshd.munge.client import MungeClient
from meshd.provider_api import Provider
from meshd.tailnet.admin import KeyApi
from meshd.tailnet.keys import AuthKeySource

CHECK_TIMEOUT_S = 20.0
log = structlog.get_logger(__name__)


class ReadyCheck(Protocol):
    """A check that another part of the daemon makes."""

    async def __call__(self) -> CheckRow:
        """One row."""
        ...


class Doctor:
    """Runs all checks side by side."""

    def __init__(
        self,
        *,
        snapshot: Callable[[], Snapshot | None],
        providers: Mapping[str, Provider],
        munge: MungeClient,
        keys: AuthKeySource,
        admin: KeyApi | None,
        gone: Callable[[], Iterable[Machine]],
        files: ReadyCheck,
        munge_key: ReadyCheck,
        config_problem: Callable[[], str],
    ) -> None:
        self._snapshot = snapshot
        self._providers = providers
        self._munge = munge
        self._keys = keys
        self._admin = admin
        self._gone = gone
        self._files = files
        self._munge_key = munge_key
        self._config_problem = config_problem

    async def __call__(self) -> list[CheckRow]:
        """All rows, in a fixed order."""
        checks: list[tuple[str, Callable[[], Awaitable[CheckRow]]]] = [
            ("settings", self._settings),
            ("munge", self._munge_round_trip),
            ("munge key", self._munge_key),
            ("slurm", self._slurm),
            ("slurm files", self._files),
            ("tailnet", self._tailnet),
            ("auth key", self._auth_key),
            ("tailnet devices", self._devices),
            *((f"provider {name}", self._provider(provider)) for name, provider in sorted(self._providers.items())),
        ]
        rows = await asyncio.gather(*(_row(name, check) for name, check in checks), return_exceptions=True)
        return [_row_of(name, row) for (name, _), row in zip(checks, rows, strict=True)]

    async def _settings(self) -> CheckRow:
        problem = self._config_problem()
        if problem:
            return _warn("settings", problem, "`meshctl config check` shows every fault; then `systemctl reload meshd`")
        return _ok("settings", "are in force")

    async def _munge_round_trip(self) -> CheckRow:
        await self._munge.exchange(await self._munge.encode())
        return _ok("munge", "encodes and decodes")

    async def _slurm(self) -> CheckRow:
        snapshot = self._snapshot()
        if snapshot is None or not isinstance(snapshot.slurm, Fresh):
            reason = "not read yet" if snapshot is None else getattr(snapshot.slurm, "reason", "")
            return _fail("slurm", f"cannot be read: {reason}", "check `scontrol ping` and `systemctl status slurmctld`")
        view = snapshot.slurm.value
        return _ok("slurm", f"{view.version} answers, {len(view.nodes)} nodes")

    async def _tailnet(self) -> CheckRow:
        snapshot = self._snapshot()
        if snapshot is None or not isinstance(snapshot.tailnet, Fresh):
            return _fail("tailnet", "tailscaled cannot be read", "check `systemctl status tailscaled`")
        view = snapshot.tailnet.value
        if not view.healthy:
            return _fail("tailnet", "; ".join(view.problems) or "the head is not online", "run `tailscale status`")
        relayed = sorted(p.hostname for p in view.peers.values() if p.path.startswith("relay"))
        if relayed:
            text = f"{len(relayed)} machines are reached over a relay, which is slow: {', '.join(relayed[:5])}"
            cure = "let UDP out at both ends, and 41641 in at one of them; `tailscale netcheck` tells more"
            return _warn("tailnet", text, cure)
        return _ok("tailnet", f"the head is {view.self_ipv4}, {len(view.peers)} peers")

    async def _auth_key(self) -> CheckRow:
        await self._keys.current()
        if self._admin is None:
            return _ok("auth key", "is there; without an API credential its expiry cannot be seen")
        found = await current_key(self._keys, self._admin)
        if found is None:
            return _warn("auth key", "the tailnet's API does not know it", "put a new reusable key in place")
        if not found.valid:
            return _fail("auth key", f"{found.id} is expired or revoked", "put a new reusable key in place")
        return _ok("auth key", f"{found.id} is valid until {found.expires:%Y-%m-%d}" if found.expires else "is valid")

    async def _devices(self) -> CheckRow:
        snapshot = self._snapshot()
        if snapshot is None or not isinstance(snapshot.tailnet, Fresh):
            return _warn("tailnet devices", "not known", "see the check of the tailnet")
        names = {p.hostname for p in snapshot.tailnet.value.peers.values()}
        stale = sorted(m.name for m in self._gone() if m.name in names)
        if not stale:
            return _ok("tailnet devices", "none is left of machines that are gone")
        cure = "meshd deletes them by itself" if self._admin else (
            "delete them in the admin console, or give meshd an API credential (docs/tailnet.md)"
        )  # fmt: skip
        return _warn("tailnet devices", f"{len(stale)} left of machines that are gone: {', '.join(stale[:10])}", cure)

    def _provider(self, provider: Provider) -> Callable[[], Awaitable[CheckRow]]:
        async def check() -> CheckRow:
            name = f"provider {provider.name}"
            try:
                return _ok(name, await provider.check())
            except AuthFailed as error:
                return _fail(name, str(error), f"docs/providers.md has what {provider.name} must let meshd do")

        return check


def _row_of(name: str, row: CheckRow | BaseException) -> CheckRow:
    """A fault of our own in one check keeps no other from being seen."""
    if isinstance(row, CheckRow):
        return row
    log.error("check_broke", check=name, exc_info=row)
    return _fail(name, f"a fault inside meshd: {type(row).__name__}", "see `journalctl -u meshd`")


async def _row(name: str, check: Callable[[], Awaitable[CheckRow]]) -> CheckRow:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            return await check()
    except MeshdError as error:
        return _fail(name, str(error), f"see docs/troubleshooting.md, {name}")
    except TimeoutError:
        return _fail(name, f"no answer within {CHECK_TIMEOUT_S:g} s", f"see docs/troubleshooting.md, {name}")


def _ok(name: str, text: str) -> CheckRow:
    return CheckRow(name=name, status="ok", text=text)


def _warn(name: str, text: str, cure: str) -> CheckRow:
    return CheckRow(name=name, status="warn", text=text, cure=cure)


def _fail(name: str, text: str, cure: str) -> CheckRow:
    return CheckRow(name=name, status="fail", text=text, cure=cure)
