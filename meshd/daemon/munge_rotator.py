"""Carries out the rotation of the munge key: looks at head and nodes, writes down what was decided, has it done."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Protocol, assert_never

import structlog
from pydantic import SecretBytes, SecretStr

from meshd.api.node_schema import PollIn, ResultIn, Verb, key_b64
from meshd.daemon.agents import AgentQueues
from meshd.daemon.munge_nodes import MungeNodes
from meshd.errors import MungeError
from meshd.munge.key import fingerprint, make_key
from meshd.munge.keystore import MungeKeyStore
from meshd.munge.rotation import AT_ONE_MOMENT, Rotation, Stage, begin, key_in_force
from meshd.munge.rotation_steps import (
    MakeKeys,
    Pace,
    PutNode,
    RestartSlurmd,
    StageHead,
    StageNode,
    Step,
    SwitchHead,
    SwitchNode,
    abort,
    decide,
)
from meshd.munge.rotation_world import HeadView, World
from meshd.runtime.clock import Clock
from meshd.store.munge_rotations import MungeRotations

LOOK_S = 0.5
AGAIN_S = 2.0
ORDER_TIMEOUT_S = 60.0
TURNS_MAX = 12

log = structlog.get_logger(__name__)


class HeadSide(Protocol):
    """The head's own munge; see HeadMunge."""

    view: HeadView
    away: tuple[float, float] | None

    async def stage(self, key: SecretBytes) -> None:
        """Lay a key beside the present one."""
        ...

    async def switch(self, name: str, at: datetime) -> None:
        """Change at a moment."""
        ...

    async def look(self) -> None:
        """See whether munge and slurmctld work."""
        ...

    async def made_at(self) -> datetime:
        """When the key in place was made. Raises MungeError."""
        ...

    def forget(self) -> None:
        """Forget what came of an earlier rotation."""
        ...


class MungeRotator:
    """The newest rotation of the munge key, and the key in force.

    Args:
        log_of: the journal's part.
        credential: the key that the service was started with.
        look_at_slurm: has Slurm read again.
    """

    def __init__(
        self,
        *,
        log_of: MungeRotations,
        store: MungeKeyStore,
        credential: Callable[[], SecretBytes],
        head: HeadSide,
        agents: AgentQueues,
        nodes: MungeNodes,
        look_at_slurm: Callable[[], Awaitable[object]],
        clock: Clock,
        pace: Pace | None = None,
    ) -> None:
        self._log = log_of
        self._store = store
        self._credential = credential
        self.head = head
        self._agents = agents
        self._nodes = nodes
        self._look_at_slurm = look_at_slurm
        self._clock = clock
        self.pace = pace or Pace()
        self._failures: dict[str, str] = {}
        self._not_before: dict[Step, datetime] = {}
        self._at_work: dict[Step, asyncio.Task[None]] = {}
        self._away: list[tuple[float, float]] = []
        self._awake = asyncio.Event()
        self._settled = asyncio.Event()
        self.problem = ""
        self.rotation = log_of.last()
        self._note_settled()
        self._loaded: dict[str, SecretBytes] = {}
        self._rules = True
        """The newest rotation says which key is in force. One that ended before this start does so only if the
        credential, which is the head's key as it is now, is the same."""
        if self.rotation is not None and self.rotation.ended:
            self._rules = _is(credential, self.rotation.target)
            store.erase_but()

    # -- what others ask ------------------------------------------------------------------------------------------

    def key_for_joining(self) -> SecretBytes:
        """The key that a machine which joins now must get. Raises MungeError when it cannot be read."""
        rotation = self.rotation
        if rotation is None or not self._rules:
            return self._credential()
        return self._key(key_in_force(rotation, self.head.view.key, self._clock.now()))

    @property
    def active(self) -> bool:
        """A rotation is under way."""
        return self.rotation is not None and not self.rotation.ended

    async def switched(self, timeout_s: float) -> bool:
        """Wait for the end of the change that is under way, if one is; False when it has not come in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._settled.wait()
        except TimeoutError:
            return False
        return True

    def heard(self, machine: str, report: PollIn) -> None:
        """Take what an agent tells. One that comes back with a key of the past is sent the new one before all else."""
        heard = self._nodes.heard(machine, report)
        for result in report.results:
            self._note_away(result)
        if self.active:
            self._awake.set()
        elif self._rules and self.rotation is not None and heard.key not in {"", self.rotation.target}:
            self.turn()

    def begin(self, by: str, waived: tuple[str, ...]) -> Rotation:
        """Begin a rotation; the caller has seen that none is under way.

        Raises:
            MungeError: the present key cannot be read.
            StoreError: it cannot be written down.
        """
        now = self._clock.now()
        old = fingerprint(self.key_for_joining())
        self._failures, self._away, self._rules = {}, [], True
        self.head.forget()
        self._write(begin(secrets.token_hex(4), old, now, by, waived), f"the munge key is being rotated, said {by}")
        self._awake.set()
        return self.current

    def abort(self, by: str) -> Rotation:
        """Take the way back. Raises IllegalMove when none is under way, StoreError."""
        self._write(abort(self.current, self._clock.now(), self.pace, by), f"everybody keeps the old key, said {by}")
        self._cancel()
        self._awake.set()
        return self.current

    def waive(self, machines: tuple[str, ...], by: str) -> Rotation:
        """Do not wait for these machines. Raises StoreError."""
        waived = tuple(sorted({*self.current.waived, *machines}))
        self._write(replace(self.current, waived=waived), f"not waited for, said {by}: {', '.join(machines)}")
        self._awake.set()
        return self.current

    @property
    def current(self) -> Rotation:
        """The newest rotation. Raises MungeError when there never was one."""
        if self.rotation is None:
            raise MungeError("the munge key was never rotated")
        return self.rotation

    def world(self) -> World:
        """As it is known just now."""
        switching = {step.machine for step in self._at_work if isinstance(step, SwitchNode)}
        return World(self.head.view, self._nodes.views(self._failures, switching), self._store.fingerprints())

    # -- the loop -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve for ever."""
        try:
            while True:
                if self.active:
                    if self.current.stage in {Stage.VERIFY, Stage.CHECK}:
                        await asyncio.gather(self.head.look(), self._look_at_slurm())
                    self.turn()
                try:
                    async with asyncio.timeout(LOOK_S if self.active else None):
                        await self._awake.wait()
                except TimeoutError:
                    continue
                self._awake.clear()
        finally:
            self._cancel()

    def turn(self) -> None:
        """Decide until nothing changes any more; each decision is written down before its steps begin.

        Raises:
            StoreError: nothing is done that cannot be written down.
        """
        for _ in range(TURNS_MAX):
            before = self.current
            try:
                decision = decide(before, self.world(), self._clock.now(), self.pace)
                if decision.rotation != before:
                    self._write(decision.rotation, _told(before, decision.rotation))
                for step in decision.steps:
                    self._begin(step)
                self.problem = ""
            except MungeError as error:
                if self.problem != str(error):
                    log.error("munge_rotation_stopped", reason=str(error))
                self.problem = str(error)
                return
            if self.current == before:
                return

    # -- inside ---------------------------------------------------------------------------------------------------

    def _write(self, rotation: Rotation, text: str) -> None:
        before = self.rotation
        if rotation.ended:
            rotation = self._with_figures(rotation)
        self.rotation = self._log.put(rotation, text, self._clock.now())
        self._note_settled()
        if text:
            log.info("munge_rotation", stage=rotation.stage.value, text=text)
        if before is not None and before.stage is not rotation.stage:
            self._not_before.clear()
            if rotation.stage is Stage.RETURN:
                self._cancel()
            elif rotation.ended:
                self._end(rotation)

    def _note_settled(self) -> None:
        if self.rotation is not None and self.rotation.stage in AT_ONE_MOMENT:
            self._settled.clear()
        else:
            self._settled.set()

    def _end(self, rotation: Rotation) -> None:
        self._cancel()
        self._loaded = {rotation.target: self._key(rotation.target)}
        self._store.erase_but(rotation.target)
        for machine in self._nodes.joined():
            self._agents.of(machine.name).put("munge_key", {"action": "forget"})

    def _key(self, name: str) -> SecretBytes:
        if name in self._loaded:
            return self._loaded[name]
        if name in self._store.fingerprints():
            return self._store.read(name)
        key = self._credential()
        if fingerprint(key) != name:
            raise MungeError(f"the munge key {name} is no more: restart meshd, and rotate again")
        return key

    def _begin(self, step: Step) -> None:
        if isinstance(step, MakeKeys):
            self._make_keys()
            return
        not_before = self._not_before.get(step)
        if step in self._at_work or (not_before is not None and self._clock.now() < not_before):
            return
        match step:
            case StageHead(name):
                work: Awaitable[None] = self.head.stage(self._key(name))
            case SwitchHead(name, at):
                work = self.head.switch(name, at)
            case StageNode(machine, name):
                work = self._order(step, machine, {"action": "stage", "key_b64": self._b64(name)})
            case PutNode(machine, name):
                work = self._order(step, machine, {"action": "put", "key_b64": self._b64(name)})
            case SwitchNode(machine, name, at):
                args = {"action": "switch", "fingerprint": name, "at_unix": at.timestamp(), "away_s": self.pace.away_s}
                work = self._order(step, machine, args)
            case RestartSlurmd(machine):
                work = self._order(step, machine, {}, "restart_slurmd")
            case _:
                assert_never(step)
        task = asyncio.ensure_future(work)
        self._at_work[step] = task
        task.add_done_callback(lambda done: self._ended(step, done))

    def _make_keys(self) -> None:
        old = self.key_for_joining()
        if fingerprint(old) != self.current.old:
            raise MungeError("the munge key has changed since the rotation began: abort it")
        self._store.erase_but(self.current.old)
        self._store.keep(old)
        new = self._store.keep(make_key())
        self._write(replace(self.current, new=new), "")

    def _order(self, step: Step, machine: str, args: dict[str, Any], verb: Verb = "munge_key") -> Awaitable[None]:
        """Put it into the machine's queue at once, so that it comes before what is ordered later."""
        ordered = self._agents.order(machine, verb, args, ORDER_TIMEOUT_S)

        async def wait() -> None:
            why = await ordered
            if why:
                log.warning("munge_step_failed", step=type(step).__name__, machine=machine, reason=why)
                self._failures[machine] = why
                self._not_before[step] = self._clock.now() + timedelta(seconds=AGAIN_S)
            else:
                self._failures.pop(machine, None)

        return wait()

    def _ended(self, step: Step, task: asyncio.Future[None]) -> None:
        self._at_work.pop(step, None)
        if not task.cancelled() and task.exception() is not None:
            log.error("munge_step_broke", step=type(step).__name__, exc_info=task.exception())
        # Asked again only when the agent has told how it stands now.
        self._not_before.setdefault(step, self._clock.now() + timedelta(seconds=AGAIN_S))
        self._awake.set()

    def _cancel(self) -> None:
        for step, task in list(self._at_work.items()):
            if not isinstance(step, StageHead | SwitchHead):  # the head's unit is under way and will answer
                task.cancel()

    def _b64(self, name: str) -> SecretStr:
        return key_b64(self._key(name).get_secret_value())

    def _note_away(self, result: ResultIn) -> None:
        stopped, started = result.data.get("stopped_unix"), result.data.get("started_unix")
        if isinstance(stopped, int | float) and isinstance(started, int | float):
            self._away.append((float(stopped), float(started)))

    def _with_figures(self, rotation: Rotation) -> Rotation:
        away = [*self._away, self.head.away] if self.head.away else []
        known = [one for one in away if one]
        if rotation.stage is not Stage.DONE or not known:
            return rotation
        spread_s = max(started for _, started in known) - min(stopped for stopped, _ in known)
        longest_s = max(started - stopped for stopped, started in known)
        return replace(rotation, spread_ms=round(spread_s * 1000, 1), longest_away_ms=round(longest_s * 1000, 1))


def _is(credential: Callable[[], SecretBytes], name: str) -> bool:
    try:
        return fingerprint(credential()) == name
    except MungeError:
        return False


def _told(before: Rotation, now: Rotation) -> str:
    """The event's text; "" for a change that is not worth one."""
    if before.stage is now.stage:
        return "" if not now.failure or before.failure == now.failure else now.failure
    texts = {
        Stage.STAGE: f"the munge key {now.new} was made and is being laid beside {now.old}",
        Stage.SWITCH: "the munge key is staged everywhere: head and nodes switch at one moment",
        Stage.VERIFY: "the head has the new munge key: each node proves that it has it too",
        Stage.RETURN: f"everybody goes back to the old munge key: {now.taken_back}",
        Stage.CHECK: "the head has the old munge key again: each node proves it",
        Stage.DONE: f"the munge key is {now.new} everywhere",
        Stage.ABORTED: f"the munge key stays {now.old}: {now.taken_back}",
    }
    return texts.get(now.stage, "")
