"""What node agents report: the newest heartbeat of each machine, and the end of slurmd's log. In memory alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType

from meshd.api.node_schema import FaultIn, HeartbeatIn, PathsIn, SectionIn
from meshd.codes import EventKind
from meshd.daemon.agents import Asks
from meshd.daemon.controller import Controller
from meshd.model.machine import Machine, Phase
from meshd.model.node_settings import NodeFault, ReportedSection
from meshd.model.observed import AgentReport, GpuLoad
from meshd.model.path import MeasuredPath, PeerPaths
from meshd.obs.log import redact
from meshd.plan.plan_input import LONG_AGO
from meshd.runtime.clock import Clock

REBOOTS_APART = timedelta(minutes=1)
"""The least time between two such events of a machine: an agent may report anything."""


class NodeReports:
    """Keeps the newest report of each machine, whose size the node API bounds.

    Args:
        tell: called with a machine and an event's kind and text when a report shows that something has happened.
    """

    def __init__(self, tell: Callable[[str, EventKind, str], None] = lambda *_: None) -> None:
        self._tell = tell
        self._reports: dict[str, AgentReport] = {}
        self._rebooted: dict[str, datetime] = {}
        self.current: Mapping[str, AgentReport] = MappingProxyType(self._reports)
        """By machine. It changes while heartbeats come in."""

    def heard(
        self,
        machine: Machine,
        heartbeat: HeartbeatIn,
        at: datetime,
        sections: Mapping[str, SectionIn] | None = None,
        faults: Collection[FaultIn] = (),
        spot_notices: tuple[str, ...] = (),
    ) -> None:
        """Take in a heartbeat, and what the agent says of its node settings and its cloud's notices."""
        last = self._reports.get(machine.name)
        fault = _gpu_fault(machine, heartbeat)
        head_path = _head_path(heartbeat.paths, at)
        relayed = head_path is not None and not head_path.direct
        other_boot = last is not None and "" != last.boot_id != heartbeat.boot_id != ""
        if other_boot and at - self._rebooted.get(machine.name, LONG_AGO) >= REBOOTS_APART:
            self._rebooted[machine.name] = at
            self._tell(
                machine.name, EventKind.REBOOT, f"the machine was rebooted, and is up for {heartbeat.uptime_s:.0f} s"
            )
        if last is not None or machine.phase is Phase.CONFIGURING:  # otherwise an earlier life of meshd has told it
            known = {(one.code, one.detail) for one in last.faults} if last is not None else set()
            for one in faults:
                if one.section == "accounts" and (one.code, redact(one.detail)) not in known:
                    self._tell(machine.name, EventKind.ACCOUNTS, one.detail)
        self._reports[machine.name] = AgentReport(
            at=at,
            agent_version=heartbeat.agent_version,
            boot_id=heartbeat.boot_id,
            uptime_s=heartbeat.uptime_s,
            load1=heartbeat.load1,
            slurmd_dead_since=_since(not heartbeat.slurmd_alive, last.slurmd_dead_since if last else None, at),
            munge_dead_since=_since(not heartbeat.munged_alive, last.munge_dead_since if last else None, at),
            jobs=heartbeat.jobs,
            gpus=tuple(GpuLoad(g.index, g.utilization_percent, g.memory_used_mib) for g in heartbeat.gpus),
            gpu_fault=fault,
            gpu_fault_since=_since(bool(fault), last.gpu_fault_since if last else None, at),
            head_path=head_path,
            relayed_since=_since(relayed, last.relayed_since if last else None, at),
            peer_paths=_peer_paths(heartbeat.paths),
            sections=_sections(sections, last, at),
            faults=_faults(faults, last, at),
            spot_notices=spot_notices,
        )

    def forget(self) -> None:
        """Forget all: the clock was set, and their times are not its own. Each agent calls again soon."""
        self._reports.clear()
        self._rebooted.clear()

    def keep(self, alive: Collection[str]) -> None:
        """Forget the machines that are no more."""
        for name in self._reports.keys() - set(alive):
            del self._reports[name]
            self._rebooted.pop(name, None)


def _sections(
    said: Mapping[str, SectionIn] | None, last: AgentReport | None, at: datetime
) -> Mapping[str, ReportedSection] | None:
    """What the agent says of its sections, each with since when it says so."""
    if said is None:
        return None
    before, found = (last.sections if last else None) or {}, {}
    for name, one in said.items():
        old = before.get(name)
        since = old.since if old is not None and (old.digest, old.state) == (one.digest, one.state) else at
        found[name] = ReportedSection(one.digest, one.state, since, redact(one.detail), one.final)
    return found


def _faults(said: Collection[FaultIn], last: AgentReport | None, at: datetime) -> tuple[NodeFault, ...]:
    since = {(one.section, one.code): one.since for one in (last.faults if last else ())}
    return tuple(
        NodeFault(one.section, one.code, redact(one.detail), since.get((one.section, one.code), at)) for one in said
    )


def _gpu_fault(machine: Machine, heartbeat: HeartbeatIn) -> str:
    """What is wrong with its GPUs; "" when nothing is, or the machine was rented without any."""
    if not machine.gpus:
        return ""
    if heartbeat.gpu_fault:
        return heartbeat.gpu_fault
    promised = len(machine.facts.gpus) if machine.facts else 0
    if 0 < len(heartbeat.gpus) < promised:
        return f"nvidia-smi shows {len(heartbeat.gpus)} of {promised} GPUs"
    return ""


def _head_path(paths: PathsIn, at: datetime) -> MeasuredPath | None:
    head = paths.head
    if head is None:
        return None
    return MeasuredPath(head.kind, head.relay, head.rtt_s, at - timedelta(seconds=head.age_s))


def _peer_paths(paths: PathsIn) -> PeerPaths | None:
    peers = paths.peers
    if peers is None:
        return None
    return PeerPaths(peers.direct, peers.relayed, peers.silent, peers.rtt_s, peers.not_direct)


def _since(wrong: bool, before: datetime | None, at: datetime) -> datetime | None:
    return (before or at) if wrong else None


LINES = 20
LINE_CHARS_MAX = 300
KEPT_MACHINES_MAX = 500
ASK_TIMEOUT_S = 30.0
NOW_TIMEOUT_S = 3.0
"""Somebody waits for the answer."""


@dataclass(frozen=True, slots=True)
class LogTail:
    """The end of a log, oldest line first."""

    at: datetime
    lines: tuple[str, ...]


class NodeLogs(Controller):
    """Asks for logs and keeps the newest one of each machine, bounded in lines and characters."""

    name = "node_logs"

    def __init__(self, agents: Asks, clock: Clock) -> None:
        super().__init__(clock)
        self._agents = agents
        self._tails: dict[str, LogTail] = {}
        self._wanted: dict[str, None] = {}

    def want(self, machine: str) -> None:
        """Have this machine's log fetched soon. When too many are wanted already, it is not."""
        if len(self._wanted) < KEPT_MACHINES_MAX:
            self._wanted[machine] = None
            self.wake()

    async def reconcile(self) -> None:
        """Fetch the logs that are wanted, one after the other."""
        while self._wanted:
            machine = next(iter(self._wanted))
            del self._wanted[machine]
            await self.fetch(machine, ASK_TIMEOUT_S)

    async def fetch(self, machine: str, timeout_s: float = NOW_TIMEOUT_S) -> LogTail | None:
        """The log now; the kept one when its agent does not answer in time, None where there is none."""
        args = {"lines": LINES, "parts": ["slurmd"]}
        result = await self._agents.ask(machine, "collect_logs", args, timeout_s)
        logs = result.data.get("logs") if result is not None and result.ok else None
        if isinstance(logs, dict):
            tail = LogTail(self._clock.now(), _tail(logs))
            if machine in self._tails or len(self._tails) < KEPT_MACHINES_MAX:
                self._tails[machine] = tail
            return tail
        return self._tails.get(machine)

    def keep(self, alive: Collection[str]) -> None:
        """Forget the machines that are no more."""
        for name in self._tails.keys() - set(alive):
            del self._tails[name]


def _tail(logs: dict[object, object]) -> tuple[str, ...]:
    """The last lines of slurmd's log. An older agent sends all logs, and the unit's journal and the file apart."""
    texts = [text for name, text in logs.items() if isinstance(text, str) and "slurmd" in str(name)]
    text = redact(max(texts, key=len, default=""))
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return tuple("".join(c if c.isprintable() else "?" for c in line)[:LINE_CHARS_MAX] for line in lines[-LINES:])
