"""The nodes in a rotation of the munge key: what they report, and the steps ordered from them and from the head."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, assert_never

import structlog
from pydantic import SecretStr

from meshd.api.node_schema import PollIn, Verb, key_b64
from meshd.daemon.agents import AgentQueues
from meshd.daemon.munge_key.head import HeadSide
from meshd.daemon.munge_key.keys import MungeKeys
from meshd.daemon.observe.source import Readable
from meshd.model.machine import IN_SLURM, Machine
from meshd.model.observed import SlurmView, value_of
from meshd.munge.rotation import NodeView
from meshd.munge.rotation_steps import PutNode, RestartSlurmd, StageHead, StageNode, SwitchHead, SwitchNode
from meshd.runtime.clock import Clock
from meshd.store.journal import Journal

POLL_SLACK_S = 15.0
"""An agent that is late with its poll by more than this cannot be reached."""
AGAIN_S = 2.0
ORDER_TIMEOUT_S = 60.0

Work = StageHead | StageNode | SwitchHead | SwitchNode | PutNode | RestartSlurmd
"""The steps that the head's unit or an agent carries out."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AgentReport:
    """The last report of an agent, received `at`. For the other fields see NodeView."""

    at: datetime
    key: str
    staged: str
    proved: bool
    slurmd: bool
    problem: str


class MungeNodes:
    """All machines that have joined and not left.

    Args:
        slurm: the source of Slurm's nodes and jobs.
        poll_hold_s: the head holds a poll for this long at most.
    """

    def __init__(self, journal: Journal, slurm: Readable[SlurmView], clock: Clock, poll_hold_s: float) -> None:
        self._journal = journal
        self._slurm = slurm
        self._clock = clock
        self._silent_after = timedelta(seconds=poll_hold_s + POLL_SLACK_S)
        self._reports: dict[str, AgentReport] = {}

    def note(self, machine: str, report: PollIn) -> AgentReport:
        """Keep an agent's report."""
        beat = report.heartbeat
        noted = self._reports[machine] = AgentReport(
            self._clock.now(), beat.munge_key, beat.munge_key_staged, report.munge_ok, beat.slurmd_alive, report.problem
        )
        return noted

    def views(self, failures: Mapping[str, str], busy: Collection[str]) -> dict[str, NodeView]:
        """All nodes, by machine.

        Args:
            failures: by machine, why its last order failed.
            busy: the machines that have an order to switch and have not answered.
        """
        slurm, now = value_of(self._slurm.current), self._clock.now()
        return {
            str(m.name): self._view(m, slurm, now, failures.get(m.name, ""), busy=m.name in busy) for m in self.joined()
        }

    def joined(self) -> list[Machine]:
        """The machines' records."""
        return [
            m for m in self._journal.machines() if m.phase in IN_SLURM and m.facts is not None and not m.left_slurm
        ]  # fmt: skip

    def _view(self, machine: Machine, slurm: SlurmView | None, now: datetime, failure: str, *, busy: bool) -> NodeView:
        node = slurm.nodes.get(machine.slot) if slurm else None
        states = node.states if node is not None and node.node_addr == machine.tailnet_ip else frozenset()
        down = "DOWN" in states and slurm is not None and not slurm.jobs_on(machine.slot)
        offline = down or not machine.may_run_jobs
        report = self._reports.get(machine.name)
        if report is None:
            return NodeView(machine.name, machine.slot, reachable=False, offline=offline, problem=failure)
        return NodeView(
            machine=machine.name, slot=machine.slot, reachable=now - report.at <= self._silent_after, offline=offline,
            key=report.key, staged=report.staged, proved=report.proved, problem=failure or report.problem, busy=busy,
            slurmd=not machine.slurmd_started or (report.slurmd and "NOT_RESPONDING" not in states),
        )  # fmt: skip


class MungeSteps:
    """Runs each step once at a time. A step that is ordered again begins only after a pause, in which its effect shows.

    Args:
        head: the head's own munge.
        agents: the nodes' agents.
        keys: the keys of the rotation.
        away_s: how long munged is away in a switch.
        clock: time.
        ended: called after each step.
    """

    def __init__(
        self,
        head: HeadSide,
        agents: AgentQueues,
        keys: MungeKeys,
        away_s: float,
        clock: Clock,
        ended: Callable[[], None],
    ) -> None:
        self._head = head
        self._agents = agents
        self._keys = keys
        self._away_s = away_s
        self._clock = clock
        self._when_ended = ended
        self._at_work: dict[Work, asyncio.Future[None]] = {}
        self._not_before: dict[Work, datetime] = {}
        self.failures: dict[str, str] = {}
        """By machine, why its last order failed."""

    @property
    def switching(self) -> set[str]:
        """The machines that have an order to switch and have not answered."""
        return {step.machine for step in self._at_work if isinstance(step, SwitchNode)}

    def begin(self, step: Work) -> None:
        """Begin a step, unless it runs already or pauses. Raises MungeError when its key cannot be read."""
        not_before = self._not_before.get(step)
        if step in self._at_work or (not_before is not None and self._clock.now() < not_before):
            return
        task = asyncio.ensure_future(self._work(step))
        self._at_work[step] = task
        task.add_done_callback(lambda done: self._ended(step, done))

    def forget_pauses(self) -> None:
        """End all pauses: another stage has begun."""
        self._not_before.clear()

    def cancel(self) -> None:
        """Wait no longer for nodes. The head's unit is at work and will answer."""
        for step, task in list(self._at_work.items()):
            if not isinstance(step, StageHead | SwitchHead):
                task.cancel()

    def forget_on(self, machine: str) -> None:
        """Have a node remove the keys that are not in use. Nothing waits for that."""
        self._agents.of(machine).put("munge_key", {"action": "forget"})

    def _work(self, step: Work) -> Awaitable[None]:
        match step:
            case StageHead(name):
                return self._head.stage(self._keys.read(name))
            case SwitchHead(name, at):
                return self._head.switch(name, at, self._away_s)
            case StageNode(machine, name):
                return self._order(step, machine, {"action": "stage", "key_b64": self._b64(name)})
            case PutNode(machine, name):
                return self._order(step, machine, {"action": "put", "key_b64": self._b64(name)})
            case SwitchNode(machine, name, at):
                args = {"action": "switch", "fingerprint": name, "at_unix": at.timestamp(), "away_s": self._away_s}
                return self._order(step, machine, args)
            case RestartSlurmd(machine):
                return self._order(step, machine, {}, "restart_slurmd")
            case _:
                assert_never(step)

    def _order(self, step: Work, machine: str, args: dict[str, Any], verb: Verb = "munge_key") -> Awaitable[None]:
        """Put the order into the machine's queue at once, so that it is before later ones."""
        ordered = self._agents.order(machine, verb, args, ORDER_TIMEOUT_S)

        async def wait() -> None:
            why = await ordered
            if why:
                log.warning("munge_step_failed", step=type(step).__name__, machine=machine, reason=why)
                self.failures[machine] = why
                self._not_before[step] = self._clock.now() + timedelta(seconds=AGAIN_S)
            else:
                self.failures.pop(machine, None)

        return wait()

    def _ended(self, step: Work, task: asyncio.Future[None]) -> None:
        self._at_work.pop(step, None)
        if not task.cancelled() and task.exception() is not None:
            log.error("munge_step_broke", step=type(step).__name__, exc_info=task.exception())
        # Order it again only after the agent had time to report its keys.
        self._not_before.setdefault(step, self._clock.now() + timedelta(seconds=AGAIN_S))
        self._when_ended()

    def _b64(self, name: str) -> SecretStr:
        return key_b64(self._keys.read(name).get_secret_value())
