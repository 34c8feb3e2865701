"""The logs of machines: read from their agents or clouds, and the last ones of each kept on the head."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

import structlog

from meshd.daemon.agents import Asks
from meshd.errors import ProviderError
from meshd.model.machine import Machine, Phase
from meshd.provider_api import Console, Instance, InstanceId, InstanceState, Provider, ProviderName
from meshd.redaction import redact
from meshd.runtime.clock import Clock
from meshd.store.kept_logs import KeptLogs

log = structlog.get_logger(__name__)

CONSOLE: Final = "console"
PARTS: Final = (CONSOLE, "boot", "stage1", "setup", "agent", "slurmd", "munged", "tailscaled", "meshnetd")
"""In the order in which a machine comes to write them. An agent may have others: they follow."""
LAST_LINES: Final = 400
LAST_S: Final = 2.0
"""The longest time for which the end of a machine waits for its last logs."""
READ_S: Final = 8.0
"""Somebody waits for the answer."""
KEPT_LATELY: Final = timedelta(minutes=2)
HEARD_LATELY: Final = timedelta(seconds=60)


class LogSource(StrEnum):
    """Where a log comes from."""

    AGENT = "agent"
    CLOUD = "cloud"
    KEPT = "kept"
    """It was kept on the head before."""


@dataclass(frozen=True, slots=True)
class MachineLog:
    """The end of one part of a machine's logs."""

    part: str
    source: LogSource
    at: datetime
    text: str


@dataclass(frozen=True, slots=True)
class Found:
    """Logs of a machine, and why others are missing."""

    logs: tuple[MachineLog, ...] = ()
    notes: tuple[str, ...] = ()


class MachineLogs:
    """Reads and keeps logs. All texts are without secrets that the head knows, and without control characters.

    Args:
        agents: asks node agents.
        providers: asks clouds for a machine's console.
        kept: keeps the last logs of each machine.
        clock: time.
        keep_out_of_texts: called with a machine's name: have its secrets blanked in the texts that follow.
    """

    def __init__(
        self,
        agents: Asks,
        providers: Mapping[str, Provider],
        kept: KeptLogs,
        clock: Clock,
        keep_out_of_texts: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._agents = agents
        self._providers = providers
        self._kept = kept
        self._clock = clock
        self._keep_out_of_texts = keep_out_of_texts

    async def read(self, machine: Machine, lines: int, parts: Collection[str] = ()) -> Found:
        """The last lines of a machine's logs now, or as they were kept.

        Args:
            machine: alive or GONE.
            lines: of each log.
            parts: which ones; empty: all.
        """
        notes: list[str] = []
        fresh = await self._now(machine, lines, parts, READ_S, notes)
        kept = {
            part: MachineLog(part, LogSource.KEPT, one.at, one.text)
            for part, one in (await asyncio.to_thread(self._kept.get, machine.name)).items()
        }
        found = {**kept, **{one.part: one for one in fresh}}
        order = [*PARTS, *sorted(found.keys() - set(PARTS))]
        wanted = [found[part] for part in order if part in found and (not parts or part in parts)]
        return Found(
            tuple(MachineLog(one.part, one.source, one.at, _last_lines(one.text, lines)) for one in wanted),
            tuple(notes),
        )

    async def keep_last(self, machine: Machine) -> None:
        """Keep the logs of a machine that is about to be ended, if they come within LAST_S. It raises nothing."""
        now = self._clock.now()
        kept = await asyncio.to_thread(self._kept.get, machine.name)
        if any(now - one.at < KEPT_LATELY for one in kept.values()):
            return
        notes: list[str] = []
        found = await self._now(machine, LAST_LINES, (), LAST_S, notes)
        try:
            await asyncio.to_thread(self._kept.put, machine.name, now, {one.part: one.text for one in found})
        except OSError as error:
            log.warning("logs_not_kept", machine=machine.name, reason=str(error))
        log.info("logs_kept", machine=machine.name, parts=[one.part for one in found], missing=notes)

    async def _now(
        self, machine: Machine, lines: int, parts: Collection[str], timeout_s: float, notes: list[str]
    ) -> list[MachineLog]:
        """From its agent when that speaks; else its console, which may also be asked for."""
        if machine.phase in {Phase.REQUESTED, Phase.GONE}:
            return []
        self._keep_out_of_texts(machine.name)
        heard = machine.heartbeat_at
        speaks = machine.facts is not None and heard is not None and self._clock.now() - heard <= HEARD_LATELY
        if machine.facts is not None and not speaks:
            notes.append("its agent is silent")
        found: list[MachineLog] = []
        if speaks and set(parts) != {CONSOLE}:
            found += await self._of_agent(machine, lines, parts, timeout_s, notes)
        if CONSOLE in parts or not (speaks or parts):
            found += await self._of_cloud(machine, timeout_s, notes)
        return found

    async def _of_agent(
        self, machine: Machine, lines: int, parts: Collection[str], timeout_s: float, notes: list[str]
    ) -> list[MachineLog]:
        args = {"lines": lines, "parts": sorted(set(parts) - {CONSOLE})}
        result = await self._agents.ask(machine.name, "collect_logs", args, timeout_s)
        if result is None or not result.ok:
            notes.append(f"its agent did not answer: {result.detail}" if result else "its agent did not answer in time")
            return []
        at = self._clock.now()
        texts = result.data.get("logs", {})
        return [MachineLog(part, LogSource.AGENT, at, redact(text)) for part, text in texts.items() if text.strip()]

    async def _of_cloud(self, machine: Machine, timeout_s: float, notes: list[str]) -> list[MachineLog]:
        provider = self._providers.get(machine.provider)
        if not isinstance(provider, Console):
            notes.append(f"{machine.provider} has no console that meshd can read")
            return []
        if not machine.instance_id:
            return []
        instance = Instance(
            provider=ProviderName(machine.provider), id=InstanceId(machine.instance_id), token=machine.name,
            state=InstanceState.UNKNOWN, region=machine.region,
        )  # fmt: skip
        try:
            async with asyncio.timeout(timeout_s):
                text = await provider.console(instance)
        except (ProviderError, TimeoutError) as error:
            notes.append(f"{machine.provider} does not show its console: {str(error) or 'no answer in time'}")
            return []
        if not text.strip():
            notes.append(f"{machine.provider} has nothing of its console yet")
            return []
        return [MachineLog(CONSOLE, LogSource.CLOUD, self._clock.now(), redact(text))]


def _last_lines(text: str, lines: int) -> str:
    return "\n".join(text.splitlines()[-lines:])
