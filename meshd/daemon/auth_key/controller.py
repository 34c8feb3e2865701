"""Carries out the rotation of the auth key.

Each pass looks at the machines, decides (`meshd.tailnet.rotation_settle`, `rotation_steps`), writes the decision into
the journal, and then begins its steps (`steps`). After a restart it goes on from the journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import datetime
from secrets import token_hex

import structlog

from meshd.api.schema import ProblemView
from meshd.daemon.active_rotation import ActiveRotations
from meshd.daemon.auth_key import problems
from meshd.daemon.auth_key.checks import DeviceChecks
from meshd.daemon.auth_key.handshakes import HandshakePrimer
from meshd.daemon.auth_key.steps import StepContext, carry_out, store_on
from meshd.daemon.auth_key.triggers import Due, RotationTriggers
from meshd.daemon.controller import Controller
from meshd.daemon.reporting import Check
from meshd.errors import StoreError, TailnetError
from meshd.runtime.clock import Clock
from meshd.store.auth_rotations import AuthRotations
from meshd.tailnet.keystore import KeptKey
from meshd.tailnet.rotation import SETTLED, AuthKeyRotation, KeyOrigin, NodeStage, abort, begin, waive
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
"""The pause before a node that did not take the key in use is sent it again."""

log = structlog.get_logger(__name__)


class AuthKeyController(Controller):
    """See the module.

    Args:
        rotations: the journal's records.
        active: tells whether a rotation, of either key, is active.
        context: what the steps work with.
        triggers: tell when a rotation is due.
        primer: begins sessions with nodes that have logged in again.
        checks: for `meshctl doctor`.
        clock: time.
    """

    name = "auth key"

    def __init__(
        self,
        rotations: AuthRotations,
        active: ActiveRotations,
        context: StepContext,
        triggers: RotationTriggers,
        primer: HandshakePrimer,
        checks: DeviceChecks,
        clock: Clock,
    ) -> None:
        super().__init__(clock)
        self._log = rotations
        self._any_active = active
        self._context = context
        self._store = context.ports.store
        self._fleet = context.fleet
        self._triggers = triggers
        self._primer = primer
        self._device_checks = checks
        self._looking: asyncio.Task[None] | None = None
        self._busy: dict[RotationStep, asyncio.Task[None]] = {}
        self._keeping: dict[str, asyncio.Task[None]] = {}
        self._asked_s: dict[str, float] = {}
        self._put_off: Due | None = None
        """A rotation that is due and waits until the active one of the munge key has ended."""
        self._waited_for: frozenset[str] = frozenset()
        self._tidied = ""
        self.problem = ""

    @property
    def last(self) -> AuthKeyRotation | None:
        """The newest rotation; None when there never was one."""
        return self._log.last()

    @property
    def active(self) -> AuthKeyRotation | None:
        """The newest rotation, if it has not ended."""
        return self.last if self.last is not None and not self.last.ended else None

    def agent_spoke(self, machine: str) -> None:
        """Start the next pass now if the rotation waits for this machine."""
        if machine in self._waited_for:
            self.wake()

    def tailnet_changed(self) -> None:
        """Start the next pass now if the rotation waits for a new node key."""
        if self._primer.expected:
            self.wake()

    # -- what people, the key file and the calendar ask for -------------------------------------------------------

    def begin(
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
        """Begin a rotation. The caller has seen that none is active.

        Args:
            source: where the new key comes from.
            by: the user, or "meshd".
            reason: why, for people.
            new: the key, when it comes from the file.
            reauth: nodes log in again with the new key.
            compromised: revoke the old key first.
            leaked_at: list the devices that joined since then.

        Raises:
            StoreError: the journal cannot be written.
            TailnetError: the keys cannot be kept.
        """
        assert self.active is None
        now, in_use = self._clock.now(), self._store.in_use()
        rotation_id = f"{now:%Y%m%d-%H%M%S}-{token_hex(2)}"
        if new is not None:
            self._store.keep(rotation_id, "new", new)
        rotation = begin(
            rotation_id, source, now, by=by, reason=reason, old=in_use.ref() if in_use else None,
            new=new.ref() if new else None, reauth=reauth, compromised=compromised, leaked_at=leaked_at,
        )  # fmt: skip
        self._put(rotation, now)
        log.info("rotation_begins", rotation=rotation_id, by=by, reason=reason, reauth=rotation.reauth)
        self.wake()
        return rotation

    def abort(self, by: str) -> AuthKeyRotation:
        """Take the rotation back. The caller has seen that this is possible."""
        assert self.active is not None
        rotation = self._put(abort(self.active, by), self._clock.now())
        self.wake()
        return rotation

    def waive(self, machine: str, by: str) -> AuthKeyRotation:
        """No longer wait for a node. The caller has seen that the rotation waits for it."""
        assert self.active is not None
        now = self._clock.now()
        rotation = self._put(waive(self.active, machine, by, now), now)
        log.info("rotation_node_waived", machine=machine, by=by)
        self.wake()
        return rotation

    # -- the loop -------------------------------------------------------------------------------------------------

    async def reconcile(self) -> float:
        """Look, decide, begin steps. A step begins only after the journal has it. See Controller."""
        try:
            if self.active is None:
                self._tidy()
                self._keep_nodes()
                self._begin_if_due()
            if self.active is not None:
                self._go_on(self.active)
            self.problem = ""
        except (StoreError, TailnetError) as error:
            if self.problem != str(error):
                log.error("rotation_stopped", reason=str(error))
            self.problem = str(error)
        return ACTIVE_S if self.active else IDLE_S

    async def aclose(self) -> None:
        """Cancel the steps. The journal knows what was not finished."""
        tasks = [*self._busy.values(), *self._keeping.values(), *([self._looking] if self._looking else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._primer.aclose()

    def _begin_if_due(self) -> None:
        due, other = self._triggers.due(self.last), self._any_active.current()
        if due is not None and other is None:
            self.begin(due.source, by="meshd", reason=due.reason, new=due.new)
        elif due is not None and other is not None and (self._put_off is None or self._put_off.reason != due.reason):
            log.info("rotation_put_off", reason=due.reason, active_rotation=other.text)
        self._put_off = due if other is not None else None

    def _tidy(self) -> None:
        """Clean up once after a rotation has ended, also after a crash."""
        if self.last is None or self.last.id == self._tidied:
            return
        self._store.forget(self.last.id)
        self._primer.forget()
        self._tidied, self._waited_for = self.last.id, frozenset()
        log.info("rotation_ended", rotation=self.last.id, stage=self.last.stage.value, why=self.last.taken_back)

    def _go_on(self, rotation: AuthKeyRotation) -> None:
        fleet, now = self._fleet.now(), self._clock.now()
        self._primer.look(fleet)
        rotation = self._put(settle(rotation, fleet, now, self._busy), now)
        for step in next_steps(rotation, fleet, now, self._busy):
            rotation = self._put(begun(rotation, step, fleet, now), now)
            if step.action is RotationAction.REAUTH:
                self._primer.expect(step.machine, fleet.nodes[step.machine].node_key)
            self._busy[step] = asyncio.create_task(self._carry_out(step), name=f"rotation {step.action}")
        if any(node.stage is NodeStage.REAUTHENTICATED for node in rotation.nodes.values()) and not self._looking:
            self._looking = asyncio.create_task(self._look_again(), name="rotation look")
        self._waited_for = frozenset(m for m, node in rotation.nodes.items() if node.stage not in SETTLED)

    async def _look_again(self) -> None:
        try:
            await self._fleet.tailnet.look()
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
            self.problem = str(error)  # the step is carried out again; every step may be
            log.error("rotation_step_not_journaled", step=step.action.value, reason=str(error))
        finally:
            del self._busy[step]
            self.wake()

    async def _safely(self, rotation: AuthKeyRotation, step: RotationStep) -> StepOutcome:
        try:
            return await carry_out(self._context, rotation, step)
        except Exception as error:  # a fault of our own in one step must not end the others
            log.exception("rotation_step_broke", step=step.action.value)
            return StepOutcome(StepVerdict.AGAIN, f"a fault inside meshd: {type(error).__name__}")

    def _put(self, rotation: AuthKeyRotation, now: datetime) -> AuthKeyRotation:
        return rotation if rotation is self._log.last() else self._log.put(rotation, now)

    def problems(self) -> Iterable[ProblemView]:
        """What is wrong with the key, its rotation and the tailnet's API. See Controller."""
        ports, now, in_use, last = self._context.ports, self._clock.now(), self._store.in_use(), self.last
        yield from problems.tailnet_api(ports.api)
        yield from problems.stuck(self.problem)
        if not ports.mints:
            yield from problems.key_file(ports.file)
        if last is not None:
            yield from problems.rotation_problems(last, now, in_use)
        if self._put_off is not None and (other := self._any_active.current()) is not None:
            yield problems.put_off(self._put_off.reason, other)
        end = self.ends_at
        if in_use is not None and end is not None and end - self._triggers.ahead <= now and self.active is None:
            yield problems.key_ends(in_use, end, now, ports.file, can_mint=ports.minter is not None)

    @property
    def ends_at(self) -> datetime | None:
        """When the key in use ends; None when there is none, or that is not known."""
        in_use = self._store.in_use()
        return self._triggers.end_of(in_use) if in_use else None

    def checks(self) -> Iterable[Check]:
        """The keys, and the devices that joined with them. See Controller."""
        return self._device_checks.all()

    # -- between rotations ----------------------------------------------------------------------------------------

    def _keep_nodes(self) -> None:
        """Send the key in use to nodes that keep another one: a waived node returns, or a node has lost its file."""
        key = self._store.in_use()
        if key is None:
            return
        now_s, nodes = self._clock.monotonic_s(), self._fleet.now().nodes
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
            outcome = await store_on(self._context, machine, key)
            if outcome.verdict is not StepVerdict.DONE:
                log.warning("auth_key_not_kept", machine=machine, reason=outcome.reason)
        except StoreError as error:
            log.warning("auth_key_not_kept", machine=machine, reason=str(error))
        finally:
            del self._keeping[machine]
            self.wake()
