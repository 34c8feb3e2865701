"""Carries out the rotation of the munge key.

Each pass looks at head and nodes, decides (`meshd.munge.rotation_steps`), writes the decision into the journal, and
then begins its steps (`nodes`).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import structlog

from meshd.api.node_schema import PollIn, ResultIn
from meshd.api.schema import CheckRow, ProblemView
from meshd.codes import CheckName, ProblemCode
from meshd.daemon.agents import AgentQueues
from meshd.daemon.controller import Controller
from meshd.daemon.munge_key import checks
from meshd.daemon.munge_key.head import HeadSide
from meshd.daemon.munge_key.keys import MungeKeys
from meshd.daemon.munge_key.nodes import MungeNodes, MungeSteps
from meshd.daemon.observe.source import Readable
from meshd.daemon.reporting import Check, ok
from meshd.errors import MungeError
from meshd.model.observed import SlurmView
from meshd.munge.rotation import AT_ONE_MOMENT, MungeFleet, MungeRotation, MungeStage, begin
from meshd.munge.rotation_steps import MakeKeys, SwitchTimings, abort, decide
from meshd.runtime.clock import Clock
from meshd.store.munge_rotations import MungeRotations

LOOK_S = 0.5
TURNS_MAX = 12
AWAY_SLACK_S = 60.0
"""How far a node's clock may be off. A node whose clock is further off cannot use munge."""

log = structlog.get_logger(__name__)


class MungeKeyController(Controller):
    """See the module.

    Args:
        rotations: the journal's records.
        keys: the key in force, and the keys of a rotation.
        head: the head's own munge.
        agents: the node agents.
        nodes: what the node agents report.
        slurm: the source of Slurm's nodes and jobs.
        clock: time.
        timings: deadlines.
    """

    name = "munge key"

    def __init__(
        self,
        rotations: MungeRotations,
        keys: MungeKeys,
        head: HeadSide,
        agents: AgentQueues,
        nodes: MungeNodes,
        slurm: Readable[SlurmView],
        clock: Clock,
        timings: SwitchTimings,
    ) -> None:
        super().__init__(clock)
        self._log = rotations
        self.keys = keys
        self.head = head
        self._nodes = nodes
        self._slurm = slurm
        self.timings = timings
        self._away: dict[str, tuple[float, float]] = {}
        self._steps = MungeSteps(head, agents, keys, self.timings.away_s, clock, self.wake)
        self._settled = asyncio.Event()
        self._at_end: list[Callable[[], None]] = []
        self.problem = ""
        self._note_settled()

    def on_end(self, listener: Callable[[], None]) -> None:
        """Call `listener()` whenever a rotation has ended."""
        self._at_end.append(listener)

    # -- what people ask for --------------------------------------------------------------------------------------

    @property
    def last(self) -> MungeRotation | None:
        """The newest rotation; None when there never was one."""
        return self._log.last()

    @property
    def active(self) -> MungeRotation | None:
        """The newest rotation, if it has not ended."""
        return self.last if self.last is not None and not self.last.ended else None

    async def switched(self, timeout_s: float) -> bool:
        """Wait until head and nodes have switched, if they are at it; False when that takes longer than `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._settled.wait()
        except TimeoutError:
            return False
        return True

    def note_report(self, machine: str, report: PollIn) -> None:
        """Take an agent's report. An agent that comes back with an old key is sent the new one before anything else.

        Args:
            machine: the agent's.
            report: with only those results that end a command.
        """
        noted = self._nodes.note(machine, report)
        for result in report.results:
            self._note_away(machine, result)
        if self.active:
            self.wake()
        elif self.keys.replaced(noted.key):
            self.turn()

    def begin(self, by: str, waived: tuple[str, ...]) -> MungeRotation:
        """Begin a rotation. The caller has seen that none is active.

        Raises:
            MungeError: the present key cannot be read.
            StoreError: the journal cannot be written.
        """
        now = self._clock.now()
        old = self.keys.begin()
        self._steps.failures.clear()
        self._away = {}
        self.head.forget()
        self._write(begin(secrets.token_hex(4), old, now, by, waived), f"the munge key is being rotated, said {by}")
        self.wake()
        return self.current

    def abort(self, by: str) -> MungeRotation:
        """Take the active rotation back. Raises IllegalMove when it has ended, StoreError."""
        self._write(abort(self.current, self._clock.now(), self.timings, by), f"all keep the old munge key, said {by}")
        self._steps.cancel()
        self.wake()
        return self.current

    def waive(self, machines: tuple[str, ...], by: str) -> MungeRotation:
        """No longer wait for these machines. Raises StoreError."""
        waived = tuple(sorted({*self.current.waived, *machines}))
        self._write(replace(self.current, waived=waived), f"not waited for, said {by}: {', '.join(machines)}")
        self.wake()
        return self.current

    @property
    def current(self) -> MungeRotation:
        """The newest rotation. Raises MungeError when there never was one."""
        if self.last is None:
            raise MungeError("the munge key was never rotated")
        return self.last

    def fleet(self) -> MungeFleet:
        """Head, nodes and key files as they are known now."""
        nodes = self._nodes.views(self._steps.failures, self._steps.switching)
        return MungeFleet(self.head.view, nodes, self.keys.kept())

    def problems(self) -> Iterable[ProblemView]:
        """See Controller."""
        return checks.problems(self.last, self.problem)

    def checks(self) -> Iterable[Check]:
        """The head's munged, and the key. See Controller."""
        yield Check(CheckName.MUNGE, partial(checks.check_munge, self.head), failed=ProblemCode.MUNGE_BROKEN)
        yield Check(CheckName.MUNGE_KEY, self._check_key)

    async def _check_key(self) -> CheckRow:
        if self.active:
            return ok(CheckName.MUNGE_KEY, f"is being rotated: {self.current.stage.value}")
        return await checks.check_key(self.head, self.keys.name(), self.fleet().nodes.values(), self._clock.now())

    # -- the loop -------------------------------------------------------------------------------------------------

    async def reconcile(self) -> float | None:
        """Go on with an active rotation. See Controller."""
        if self.active and self.current.stage in {MungeStage.VERIFY, MungeStage.CHECK}:
            await asyncio.gather(self.head.look(), self._slurm.read_once())
        if self.active:
            self.turn()
        return LOOK_S if self.active else None

    async def aclose(self) -> None:
        """Wait no longer for nodes."""
        self._steps.cancel()

    def turn(self) -> None:
        """Decide until nothing changes any more. The journal has each decision before its steps begin.

        Raises:
            StoreError: the journal cannot be written; then no step begins.
        """
        for _ in range(TURNS_MAX):
            before = self.current
            try:
                decision = decide(before, self.fleet(), self._clock.now(), self.timings)
                if decision.rotation != before:
                    self._write(decision.rotation, _event_text(before, decision.rotation))
                for step in decision.steps:
                    if isinstance(step, MakeKeys):
                        self._write(replace(self.current, new=self.keys.make(self.current.old)), "")
                    else:
                        self._steps.begin(step)
                self.problem = ""
            except MungeError as error:
                if self.problem != str(error):
                    log.error("munge_rotation_stopped", reason=str(error))
                self.problem = str(error)
                return
            if self.current == before:
                return

    # -- inside ---------------------------------------------------------------------------------------------------

    def _write(self, rotation: MungeRotation, text: str) -> None:
        before = self.last
        if rotation.ended:
            rotation = self._with_figures(rotation)
        self._log.put(rotation, text, self._clock.now())
        self._note_settled()
        if text:
            log.info("munge_rotation", stage=rotation.stage.value, text=text)
        if before is not None and before.stage is not rotation.stage:
            self._steps.forget_pauses()
            if rotation.stage is MungeStage.RETURN:
                self._steps.cancel()
            elif rotation.ended:
                self._end(rotation)

    def _note_settled(self) -> None:
        if self.last is not None and self.last.stage in AT_ONE_MOMENT:
            self._settled.clear()
        else:
            self._settled.set()

    def _end(self, rotation: MungeRotation) -> None:
        self._steps.cancel()
        self.keys.keep_only(rotation.target)
        for machine in self._nodes.joined():
            self._steps.forget_on(machine.name)
        for listener in self._at_end:
            listener()

    def _note_away(self, machine: str, result: ResultIn) -> None:
        """Note when munged was away on a machine. Times outside of this rotation are not about it."""
        stopped, started = result.data.get("stopped_unix"), result.data.get("started_unix")
        rotation = self.last
        if rotation is None or not isinstance(stopped, int | float) or not isinstance(started, int | float):
            return
        earliest, latest = rotation.started_at.timestamp() - AWAY_SLACK_S, self._clock.now().timestamp() + AWAY_SLACK_S
        if earliest <= stopped <= started <= latest:
            self._away[machine] = (float(stopped), float(started))

    def _with_figures(self, rotation: MungeRotation) -> MungeRotation:
        away = [*self._away.values(), self.head.away] if self.head.away else list(self._away.values())
        known = [one for one in away if one]
        if rotation.stage is not MungeStage.DONE or not known:
            return rotation
        spread_s = max(started for _, started in known) - min(stopped for stopped, _ in known)
        longest_s = max(started - stopped for stopped, started in known)
        return replace(rotation, spread_ms=round(spread_s * 1000, 1), longest_away_ms=round(longest_s * 1000, 1))


def _event_text(before: MungeRotation, now: MungeRotation) -> str:
    """The text of the event for a change; "" for a change that is no event."""
    if before.stage is now.stage:
        return "" if not now.failure or before.failure == now.failure else now.failure
    texts = {
        MungeStage.STAGE: f"the munge key {now.new} was made and is being stored beside {now.old}",
        MungeStage.SWITCH: "the munge key is staged everywhere: head and nodes switch at one moment",
        MungeStage.VERIFY: "the head has the new munge key: each node has to prove that it has it too",
        MungeStage.RETURN: f"all go back to the old munge key: {now.taken_back}",
        MungeStage.CHECK: "the head has the old munge key again: each node has to prove that it has it too",
        MungeStage.DONE: f"the munge key is {now.new} everywhere",
        MungeStage.ABORTED: f"the munge key stays {now.old}: {now.taken_back}",
    }
    return texts.get(now.stage, "")
