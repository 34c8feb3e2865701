"""Gives a spare key to each machine that joined with a key of its own, and replaces the spare in time.

`meshd.tailnet.spare_keys` decides what a machine needs. Nothing waits for a spare: a machine without one works, until
its device is deleted. Machines are served one at a time to spare the API, and the pause after each failure in a row is
longer.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import structlog

from meshd.api.schema import ProblemView
from meshd.codes import EventKind, ProblemCode
from meshd.daemon.agents import Asks
from meshd.daemon.auth_key.fleet import Fleet
from meshd.daemon.auth_key.machine_keys import MachineKeys
from meshd.daemon.controller import Controller
from meshd.daemon.machine_store import MachineStore
from meshd.daemon.reporting import problem
from meshd.errors import StoreError, TailnetError
from meshd.model.machine import Machine
from meshd.runtime.backoff import backoff_s
from meshd.runtime.clock import Clock
from meshd.store.auth_rotations import AuthRotations
from meshd.store.machine_keys import OpenKeys
from meshd.tailnet import spare_keys as s
from meshd.tailnet.rotation import AuthKeyStage

LOOK_S: Final = 2.0
GIVE_TIMEOUT_S: Final = 30.0
RETRY_FIRST_S: Final = 5.0
RETRY_MAX_S: Final = 600.0
PROBLEM_AFTER: Final = 3
"""After this many failed tries it is a problem."""

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Pause:
    """The pause after a failure."""

    why: str
    tries: int = 0
    until_s: float = 0.0

    def again(self, why: str, now_s: float) -> None:
        self.why, self.tries = why, self.tries + 1
        self.until_s = now_s + backoff_s(self.tries, RETRY_FIRST_S, RETRY_MAX_S)


class SpareKeys(Controller):
    """See the module.

    Args:
        keys: mints and revokes them.
        agents: asks nodes.
        machine_store: the machines.
        open_keys: the journal's records of the spares.
        rotations: spares that are older than the last one that succeeded are replaced.
        fleet: tells whether a machine can be reached.
        clock: time.
    """

    name = "spare keys"

    def __init__(
        self,
        keys: MachineKeys,
        agents: Asks,
        machine_store: MachineStore,
        open_keys: OpenKeys,
        rotations: AuthRotations,
        fleet: Fleet,
        clock: Clock,
    ) -> None:
        super().__init__(clock)
        self._keys = keys
        self._agents = agents
        self._machine_store = machine_store
        self._rotations = rotations
        self._open = open_keys
        self._fleet = fleet
        self._one_at_a_time: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._api: _Pause | None = None
        self._nodes: dict[str, _Pause] = {}

    # -- for others -----------------------------------------------------------------------------------------------

    def count(self) -> tuple[int, int]:
        """How many machines hold a spare, of how many that may."""
        may = [machine for machine in self._machine_store.journal.machines() if s.may_hold(machine)]
        return sum(bool(machine.spare_key) for machine in may), len(may)

    async def provide(self, name: str, since: datetime | None) -> str:
        """Give a machine the spare that it needs. Returns why that failed, for people; "" when it holds the right one.

        Args:
            name: the machine's.
            since: a spare that is older is replaced.

        Raises:
            TailnetError: none can be minted, or kept.
            StoreError: the journal cannot be written.
        """
        async with self._one_at_a_time[name]:
            machine = self._machine_store.get(name)
            if not s.may_hold(machine):
                return "it is not READY, or cannot be reached"
            wanted = self._want(machine, since)
            if wanted is None:
                return ""
            if wanted.mint and (why := self._stopped(machine, since)):
                return why
            if wanted.gone and await self._keys.misused(machine):
                why = self._stopped(machine, since)
                self._machine_store.change(name, EventKind.AUTH_KEY, f"it gets no further spare auth key: {why}")
                return why
            log.info("spare_key_given", machine=name, reason=wanted.why)
            key = await self._keys.for_spare(machine, wanted)
            result = await self._agents.ask(name, "spare_key", {"key": key.secret}, GIVE_TIMEOUT_S)
            if result is None:
                return f"its agent did not answer within {GIVE_TIMEOUT_S:g} s"
            if not result.ok:
                return result.detail or "its agent did not say why"
            if result.data.get("sha256") != key.sha256:
                return "its agent stored another key than it was given"
            if self._machine_store.get(name).spare_key != key.sha256:
                self._machine_store.change(
                    name, EventKind.AUTH_KEY, f"keeps the spare auth key {key.id}", spare_key=key.sha256
                )
            self._keys.handed_over(name, wanted.purpose)
            return ""

    # -- the loop -------------------------------------------------------------------------------------------------

    async def reconcile(self) -> float:
        """Serve the machines that need a spare, one after the other, while the API answers. See Controller."""
        machines = self._machine_store.journal.machines()
        self._forget({machine.name for machine in machines})
        try:
            for machine in machines:
                if self._api is not None and self._clock.monotonic_s() < self._api.until_s:
                    return LOOK_S
                if s.may_hold(machine):
                    await self._serve(machine)
        except (StoreError, TailnetError) as error:
            self._api = self._api or _Pause("")
            self._api.again(str(error), self._clock.monotonic_s())
            log.warning("spare_key_not_minted", reason=str(error), tries=self._api.tries)
        return LOOK_S

    def _rotated_at(self) -> datetime | None:
        """When the keys were rotated last. A rotation that is active or was taken back does not count.

        An active one exchanges the spares itself, at its own pace.
        """
        last = self._rotations.last()
        return last.started_at if last is not None and last.stage is AuthKeyStage.DONE else None

    async def _serve(self, machine: Machine) -> None:
        pause, since = self._nodes.get(machine.name), self._rotated_at()
        if pause is not None and self._clock.monotonic_s() < pause.until_s:
            return
        if not self._fleet.reachable(machine):
            return
        if self._want(machine, since) is None:
            self._nodes.pop(machine.name, None)
            return
        why = await self.provide(machine.name, since)
        self._api = None
        if not why:
            self._nodes.pop(machine.name, None)
            return
        pause = self._nodes.setdefault(machine.name, _Pause(""))
        pause.again(why, self._clock.monotonic_s())
        log.warning("spare_key_not_kept", machine=machine.name, reason=why, tries=pause.tries)

    def _want(self, machine: Machine, since: datetime | None) -> s.Want | None:
        spares = self._open.spares_of(machine.name)
        last = s.newest(spares)
        at_hand = last is not None and last.sha256 != machine.spare_key and self._keys.at_hand(last)
        return s.want(machine, spares, self._clock.now(), since=since, at_hand=at_hand)

    def _stopped(self, machine: Machine, since: datetime | None) -> str:
        return s.stopped(machine, self._open.spares_of(machine.name), self._clock.now(), since=since)

    def _forget(self, alive: set[str]) -> None:
        for name in self._nodes.keys() - alive:
            del self._nodes[name]
        for name in [name for name, lock in self._one_at_a_time.items() if name not in alive and not lock.locked()]:
            del self._one_at_a_time[name]

    def problems(self) -> Iterable[ProblemView]:
        """Machines that are without a good spare for some time. The machines themselves work."""
        cure = "meshd tries again; until then a machine cannot come back by itself when its device is deleted by hand"
        if self._api is not None and self._api.tries >= PROBLEM_AFTER:
            text = f"machines are given no spare auth keys: {self._api.why}"
            yield problem(ProblemCode.SPARE_KEYS_NOT_MINTED, "info", text, cure)
        for machine in self._machine_store.journal.machines():
            if s.may_hold(machine) and (why := self._stopped(machine, self._rotated_at())):
                text = f"{machine.name} is given no further spare auth key: {why}"
                yield problem(
                    ProblemCode.SPARE_KEY_STOPPED, "error", text,
                    "`meshctl rotate-key --compromised` revokes all spares, lists the devices that are new, and "
                    f"gives new spares; if the machine is not yours alone, `meshctl remove {machine.name}`",
                    machine=machine.name,
                )  # fmt: skip
        stopped = {machine.name for machine in self._machine_store.journal.machines() if self._stopped(machine, None)}
        for name, pause in self._nodes.items():
            if pause.tries >= PROBLEM_AFTER and name not in stopped:
                text = f"{name} takes no spare auth key: {pause.why}"
                yield problem(ProblemCode.SPARE_KEY_NOT_TAKEN, "info", text, cure, machine=name)
