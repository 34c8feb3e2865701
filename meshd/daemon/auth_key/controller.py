"""Drives the rotation of the auth key: looks, decides, journals, carries out. One rotation at a time.

It is level-triggered like the reconcile loop: a poll of an agent, a finished step or a timer only wake it. After a
restart it goes on from the journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from secrets import token_hex

import structlog

from meshd.daemon.auth_key.handshakes import HandshakePrimer
from meshd.daemon.auth_key.steps import StepContext, carry_out, store_on
from meshd.errors import StoreError, TailnetError
from meshd.runtime.clock import Clock, sleep_until
from meshd.store.auth_rotations import AuthRotations
from meshd.tailnet.keystore import KeptKey
from meshd.tailnet.rotation import SETTLED, AuthKeyRotation, KeyOrigin, NodeStage, abort, begin, waive
from meshd.tailnet.rotation_fleet import AuthKeyFleet
from meshd.tailnet.rotation_settle import settle
from meshd.tailnet.rotation_steps import (
    STORE_PARALLEL,
    RotationAction,
    RotationStep,
    StepOutcome,
    StepVerdict,
    begun,
    finished,
    next_steps,
)

ACTIVE_S = 1.0
IDLE_S = 5.0
KEEP_AGAIN_S = 60.0
"""A node that did not take the key in use is asked again after this long."""

log = structlog.get_logger(__name__)


class AuthKeyController:
    """See the module.

    Args:
        log_of: the journal's part.
        means: what steps work with.
        fleet: what is known now.
        clock: time.
        occasion: called when no rotation is under way: may begin one.
        look: reads the tailnet anew: a node's new key is waited for.
        greetings: greets who has logged in anew.
    """

    def __init__(
        self,
        log_of: AuthRotations,
        means: StepContext,
        fleet: Callable[[], AuthKeyFleet],
        clock: Clock,
        *,
        occasion: Callable[[], None],
        look: Callable[[], Awaitable[None]],
        greetings: HandshakePrimer,
    ) -> None:
        self._log = log_of
        self._means = means
        self._fleet = fleet
        self._clock = clock
        self._occasion = occasion
        self._look = look
        self._greetings = greetings
        self._looking: asyncio.Task[None] | None = None
        self._busy: dict[RotationStep, asyncio.Task[None]] = {}
        self._keeping: dict[str, asyncio.Task[None]] = {}
        self._asked_s: dict[str, float] = {}
        self._awake = asyncio.Event()
        self._waited_for: frozenset[str] = frozenset()
        self._tidied = ""
        self.problem = ""

    @property
    def last(self) -> AuthKeyRotation | None:
        """The rotation under way, else the last one."""
        return self._log.last()

    @property
    def active(self) -> AuthKeyRotation | None:
        """The rotation under way."""
        return self.last if self.last is not None and not self.last.ended else None

    def wake(self) -> None:
        """Look again soon."""
        self._awake.set()

    def heard(self, machine: str) -> None:
        """An agent spoke. One that is waited for is served at once."""
        if machine in self._waited_for:
            self._awake.set()

    def tailnet_changed(self) -> None:
        """A new node key that is waited for is looked for at once."""
        if self._greetings.expected:
            self._awake.set()

    # -- what people, files and calendars ask for -----------------------------------------------------------------

    def start(
        self,
        source: KeyOrigin,
        *,
        by: str,
        reason: str,
        new: KeptKey | None = None,
        reauth: bool = False,
        compromised: bool = False,
        leaked_at: datetime | None = None,
    ) -> AuthKeyRotation:
        """Begin a rotation; the caller has seen that none is under way.

        Args:
            source: where the new key comes from.
            by: who asked for it.
            reason: why, for people.
            new: the key of a file.
            reauth: nodes log in anew.
            compromised: revoke the old key first.
            leaked_at: devices born since then are listed.

        Raises:
            StoreError: the journal cannot be written.
            TailnetError: the keys cannot be kept.
        """
        assert self.active is None
        now, in_use = self._clock.now(), self._means.store.in_use()
        rotation_id = f"{now:%Y%m%d-%H%M%S}-{token_hex(2)}"
        if new is not None:
            self._means.store.keep(rotation_id, "new", new)
        rotation = begin(
            rotation_id, source, now, by=by, reason=reason, old=in_use.ref() if in_use else None,
            new=new.ref() if new else None, reauth=reauth, compromised=compromised, leaked_at=leaked_at,
        )  # fmt: skip
        self._put(rotation, now)
        log.info("rotation_begins", rotation=rotation_id, by=by, reason=reason, reauth=rotation.reauth)
        self.wake()
        return rotation

    def abort(self, by: str) -> AuthKeyRotation:
        """Ask for the way back; the caller has seen that there is one."""
        assert self.active is not None
        rotation = self._put(abort(self.active, by), self._clock.now())
        self.wake()
        return rotation

    def waive(self, machine: str, by: str) -> AuthKeyRotation:
        """Do not wait for a node any more; the caller has seen that it is waited for."""
        assert self.active is not None
        now = self._clock.now()
        rotation = self._put(waive(self.active, machine, by, now), now)
        log.info("rotation_node_waived", machine=machine, by=by)
        self.wake()
        return rotation

    # -- the loop -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look and act for ever."""
        try:
            while True:
                self.tick()
                await sleep_until(self._awake, ACTIVE_S if self.active else IDLE_S, self._clock)
                self._awake.clear()
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """End what is under way; the journal knows what was not finished."""
        tasks = [*self._busy.values(), *self._keeping.values(), *([self._looking] if self._looking else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._greetings.aclose()

    def tick(self) -> None:
        """Look, decide, begin. Nothing is begun that is not in the journal."""
        try:
            if self.active is None:
                self._tidy()
                self._keep_nodes()
                self._occasion()
            if self.active is not None:
                self._go_on(self.active)
            self.problem = ""
        except (StoreError, TailnetError) as error:
            if self.problem != str(error):
                log.error("rotation_stopped", reason=str(error))
            self.problem = str(error)

    def _tidy(self) -> None:
        """Once after a rotation has ended, also when a crash came between."""
        if self.last is None or self.last.id == self._tidied:
            return
        self._means.store.forget(self.last.id)
        self._greetings.forget()
        self._tidied, self._waited_for = self.last.id, frozenset()
        log.info("rotation_ended", rotation=self.last.id, stage=self.last.stage.value, why=self.last.taken_back)

    def _go_on(self, rotation: AuthKeyRotation) -> None:
        fleet, now = self._fleet(), self._clock.now()
        self._greetings.look(fleet)
        rotation = self._put(settle(rotation, fleet, now, self._busy), now)
        for step in next_steps(rotation, fleet, now, self._busy):
            rotation = self._put(begun(rotation, step, fleet, now), now)
            if step.action is RotationAction.REAUTH:
                self._greetings.expect(step.machine, fleet.nodes[step.machine].node_key)
            self._busy[step] = asyncio.create_task(self._carry_out(step), name=f"rotation {step.action}")
        if any(node.stage is NodeStage.REAUTHENTICATED for node in rotation.nodes.values()) and not self._looking:
            self._looking = asyncio.create_task(self._look_again(), name="rotation look")
        self._waited_for = frozenset(m for m, node in rotation.nodes.items() if node.stage not in SETTLED)

    async def _look_again(self) -> None:
        try:
            await self._look()
        finally:
            self._looking = None

    async def _carry_out(self, step: RotationStep) -> None:
        try:
            assert self.active is not None
            outcome = await self._safely(self.active, step)
            if self.active is not None:
                now = self._clock.now()
                if outcome.verdict is not StepVerdict.DONE:
                    log.warning(
                        "rotation_step_failed", step=step.action.value, machine=step.machine, reason=outcome.reason
                    )
                self._put(finished(self.active, step, outcome, now), now)
        except StoreError as error:
            self.problem = str(error)  # the step is carried out once more: each may be
            log.error("rotation_step_not_journaled", step=step.action.value, reason=str(error))
        finally:
            del self._busy[step]
            self.wake()

    async def _safely(self, rotation: AuthKeyRotation, step: RotationStep) -> StepOutcome:
        try:
            return await carry_out(self._means, rotation, step)
        except Exception as error:  # a fault of our own in one step must not end the others
            log.exception("rotation_step_broke", step=step.action.value)
            return StepOutcome(StepVerdict.AGAIN, f"a fault inside meshd: {type(error).__name__}")

    def _put(self, rotation: AuthKeyRotation, now: datetime) -> AuthKeyRotation:
        return rotation if rotation is self._log.last() else self._log.put(rotation, now)

    # -- between rotations ----------------------------------------------------------------------------------------

    def _keep_nodes(self) -> None:
        """Nodes that keep another key than the one in use are given it: who was waived, or lost its file, returns."""
        key = self._means.store.in_use()
        if key is None:
            return
        now_s, nodes = self._clock.monotonic_s(), self._fleet().nodes
        self._asked_s = {machine: asked_s for machine, asked_s in self._asked_s.items() if machine in nodes}
        for machine, seen in nodes.items():
            asked_s = self._asked_s.get(machine)
            waits = asked_s is not None and now_s < asked_s + KEEP_AGAIN_S
            if seen.own_key or seen.sha256 == key.sha256 or not seen.reachable or machine in self._keeping or waits:
                continue
            if len(self._keeping) >= STORE_PARALLEL:
                return
            self._asked_s[machine] = now_s
            self._keeping[machine] = asyncio.create_task(self._keep(machine, key), name=f"auth key {machine}")

    async def _keep(self, machine: str, key: KeptKey) -> None:
        try:
            outcome = await store_on(self._means, machine, key)
            if outcome.verdict is not StepVerdict.DONE:
                log.warning("auth_key_not_kept", machine=machine, reason=outcome.reason)
        except StoreError as error:
            log.warning("auth_key_not_kept", machine=machine, reason=str(error))
        finally:
            del self._keeping[machine]
            self.wake()
