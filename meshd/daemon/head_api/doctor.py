"""The checks of `meshctl doctor` that only the daemon can make. Each has its own deadline; none raises."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Protocol

import structlog

from meshd.api.schema import CheckRow
from meshd.daemon.auth_key.checks import DeviceChecks
from meshd.daemon.head_api.check_rows import fail, ok, warn
from meshd.daemon.nodes import metadata_service as metadata_watch
from meshd.daemon.providers import host_trust
from meshd.errors import AuthFailed, MeshdError, ProviderOff, RateLimited, Transient, Uncertain
from meshd.model.machine import Machine
from meshd.model.observed import Fresh, Snapshot
from meshd.model.words import counted
from meshd.munge.client import MungeClient
from meshd.plan import capabilities
from meshd.plan.devices import NO_IPV4_CURE, head_without_ipv4, machines_without_ipv4
from meshd.provider_api import Provider

CHECK_TIMEOUT_S = 20.0
LOOK_TIMEOUT_S = 8.0
"""Slurm and the tailnet are read anew for a check; who does not answer within this is shown with the age of its last
word."""
SLURM_CURE = "check `scontrol ping` and `systemctl status slurmctld`"
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
        devices: DeviceChecks,
        files: ReadyCheck,
        munge_key: ReadyCheck,
        names: ReadyCheck,
        config_problem: Callable[[], str],
        machines: Callable[[], Iterable[Machine]] = tuple,
        gpu_devices: ReadyCheck | None = None,
        look: Callable[[], Awaitable[object]] | None = None,
        slurm_answers: Callable[[], Awaitable[bool | None]] | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Keep what is asked.

        Args:
            snapshot: the newest word of every source.
            providers: guarded.
            munge: the head's.
            devices: checks of the tailnet's keys and devices.
            files: checks Slurm's files.
            munge_key: checks the nodes' munge keys.
            names: checks the nodes' names on the head.
            config_problem: why the settings in the file are not in force.
            machines: those that are not GONE.
            gpu_devices: checks that jobs get their own GPUs alone.
            look: reads Slurm and the tailnet anew; None: what was read last is shown.
            slurm_answers: pings slurmctld; None from it: that cannot be told.
            now: UTC.
        """
        self._look = look
        self._slurm_answers = slurm_answers
        self._now = now
        self._began = now()
        self._gpu_devices = gpu_devices
        self._machines = machines
        self._snapshot = snapshot
        self._providers = providers
        self._munge = munge
        self._devices = devices
        self._files = files
        self._munge_key = munge_key
        self._names = names
        self._config_problem = config_problem

    async def __call__(self) -> list[CheckRow]:
        """All rows, in a fixed order."""
        checks: list[tuple[str, Callable[[], Awaitable[CheckRow]]]] = [
            ("settings", self._settings),
            ("munge", self._munge_round_trip),
            ("munge key", self._munge_key),
            ("slurm", self._slurm),
            ("slurm files", self._files),
            ("node names", self._names),
            *([("gpu devices", self._gpu_devices)] if self._gpu_devices else []),
            ("metadata service", self._metadata_service),
            ("trust in hosts", self._trust_in_hosts),
            ("tailnet", self._tailnet),
            *self._devices.all(),
            *((f"provider {name}", self._provider(provider)) for name, provider in sorted(self._providers.items())),
        ]
        self._began = self._now()
        looked = asyncio.ensure_future(self._look_anew())
        after = {"slurm", "tailnet", *(name for name, _ in self._devices.all())}
        rows = await asyncio.gather(
            *(self._dated(name, check, looked if name in after else None) for name, check in checks),
            return_exceptions=True,
        )
        return [_row_of(name, row) for (name, _), row in zip(checks, rows, strict=True)]

    async def _look_anew(self) -> None:
        if self._look is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_TIMEOUT_S):
                await self._look()

    async def _dated(
        self, name: str, check: Callable[[], Awaitable[CheckRow]], looked: asyncio.Future[None] | None
    ) -> CheckRow:
        """The row, with the time of its answer. A slurmctld that is down need not be waited for."""
        if name == "slurm" and self._slurm_answers is not None and await self._slurm_answers() is False:
            row = fail(name, "slurmctld does not answer (scontrol ping)", SLURM_CURE)
        else:
            if looked is not None:
                await asyncio.wait({looked})
            row = await _row(name, check)
        return row if row.at is not None else row.model_copy(update={"at": self._now()})

    def _of(self, row: CheckRow, at: datetime) -> CheckRow:
        """A row from what was read at that time: an old word proves little, if it was to be read anew."""
        if self._look is not None and at < self._began and row.status == "ok":
            old_s = (self._now() - at).total_seconds()
            text = f"no answer within {LOOK_TIMEOUT_S:g} s; {old_s:.0f} s ago: {row.text}"
            row = warn(row.name, text, f"see docs/troubleshooting.md, {row.name}")
        return row.model_copy(update={"at": at})

    async def _settings(self) -> CheckRow:
        problem = self._config_problem()
        if problem:
            return warn("settings", problem, "`meshctl config check` shows every fault; then `systemctl reload meshd`")
        return ok("settings", "are in force")

    async def _metadata_service(self) -> CheckRow:
        return metadata_watch.check(self._machines())

    async def _trust_in_hosts(self) -> CheckRow:
        return host_trust.check(self._providers)

    async def _munge_round_trip(self) -> CheckRow:
        await self._munge.exchange(await self._munge.encode())
        return ok("munge", "encodes and decodes")

    async def _slurm(self) -> CheckRow:
        snapshot = self._snapshot()
        seen = snapshot.slurm if snapshot is not None else None
        if not isinstance(seen, Fresh):
            reason = seen.reason if seen is not None else "not read yet"
            return fail("slurm", f"cannot be read: {reason}", SLURM_CURE)
        view = seen.value
        return self._of(ok("slurm", f"{view.version} answers, {counted(len(view.nodes), 'node')}"), seen.at)

    async def _tailnet(self) -> CheckRow:
        snapshot = self._snapshot()
        seen = snapshot.tailnet if snapshot is not None else None
        if not isinstance(seen, Fresh):
            reason = seen.reason if seen is not None else "not read yet"
            return fail("tailnet", f"cannot be read: {reason}", "check `systemctl status tailscaled`")
        view = seen.value
        if not view.healthy:
            return fail("tailnet", "; ".join(view.problems) or "the head is not online", "run `tailscale status`")
        if without := head_without_ipv4(view):
            return fail("tailnet", without, NO_IPV4_CURE)
        if lacking := machines_without_ipv4(view, frozenset(m.name for m in self._machines())):
            which = f"{counted(len(lacking), 'machine')}: {', '.join(lacking[:5])}"
            text = f"no IPv4 address, which Slurm's files need: {which}"
            return fail("tailnet", text, NO_IPV4_CURE)
        relayed = sorted(p.hostname for p in view.peers.values() if p.path.startswith("relay"))
        if relayed:
            text = f"reached over a relay, which is slow: {counted(len(relayed), 'machine')}: {', '.join(relayed[:5])}"
            cure = "let UDP out at both ends, and 41641 in at one of them; `tailscale netcheck` tells more"
            return warn("tailnet", text, cure)
        return self._of(
            ok("tailnet", f"the head is {view.self_tailnet_ip}, {counted(len(view.peers), 'peer')}"), seen.at
        )

    def _provider(self, provider: Provider) -> Callable[[], Awaitable[CheckRow]]:
        async def check() -> CheckRow:
            name = f"provider {provider.name}"
            try:
                can = provider.capabilities
                text = f"{await provider.check()}; {capabilities.words(can)}"
                if not can.tun:
                    why = f"{text}; {capabilities.NO_TUN}, and none is rented"
                    return warn(name, why, capabilities.no_tun_cure(provider.name))
                return ok(name, text)
            except ProviderOff as error:
                return fail(name, error.text, error.cure)
            except AuthFailed as error:
                where = f"/etc/meshd/credentials/{provider.name}"
                cure = f"a permission: docs/providers.md lists all; a credential: put another into {where}, then "
                return fail(name, str(error), f"{cure}`systemctl restart meshd`")
            except (Transient, Uncertain, RateLimited) as error:
                return fail(name, str(error), f"see {provider.name}'s status page; meshd goes on asking by itself")

        return check


def _row_of(name: str, row: CheckRow | BaseException) -> CheckRow:
    """A fault of our own in one check keeps no other from being seen."""
    if isinstance(row, CheckRow):
        return row
    log.error("check_broke", check=name, exc_info=row)
    return fail(name, f"a fault inside meshd: {type(row).__name__}", "see `journalctl -u meshd`")


async def _row(name: str, check: Callable[[], Awaitable[CheckRow]]) -> CheckRow:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            return await check()
    except MeshdError as error:
        return fail(name, str(error), f"see docs/troubleshooting.md, {name}")
    except TimeoutError:
        return fail(name, f"no answer within {CHECK_TIMEOUT_S:g} s", f"see docs/troubleshooting.md, {name}")
