"""Mints keys for one machine and one use, and revokes each as soon as it is no longer needed.

The order makes it safe: the journal has the record, the key is minted, its secret is kept (0600), the journal has its
id, and only then the machine gets it, at its launch or over the tailnet. So a call to a cloud or a node that is
repeated has the same key. A key that a crash or a lost answer left behind is found by its description and revoked. What
cannot be revoked now is tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

import structlog

from meshd.api.schema import ProblemView
from meshd.codes import ProblemCode
from meshd.daemon.auth_key.fleet import Fleet
from meshd.daemon.auth_key.ports import KeyPorts
from meshd.daemon.controller import Controller
from meshd.daemon.machine_store import MachineStore
from meshd.daemon.reporting import problem
from meshd.errors import StoreError, TailnetError
from meshd.model.machine import Machine, Phase
from meshd.runtime.clock import Clock
from meshd.store.auth_rotations import AuthRotations
from meshd.store.machine_keys import OpenKeys
from meshd.tailnet import machine_keys as m
from meshd.tailnet import spare_keys as s
from meshd.tailnet.keys import KeyFile, Minter
from meshd.tailnet.keystore import KeptKey
from meshd.tailnet.rotation import logs_in

LOOK_S: Final = 2.0
PROBLEM_AFTER: Final = 3
"""A key that could not be revoked after this many tries is a problem."""

log = structlog.get_logger(__name__)


class MachineKeys(Controller):
    """See the module.

    Args:
        open_keys: the journal's records of these keys.
        ports: mint, keep and revoke keys.
        rotations: tell which machines log in again.
        machine_store: the machines.
        fleet: what is known of them.
        clock: time.
        invited: the owners of keys in invitations that are open.
    """

    name = "machine keys"

    def __init__(
        self,
        open_keys: OpenKeys,
        ports: KeyPorts,
        rotations: AuthRotations,
        machine_store: MachineStore,
        fleet: Fleet,
        clock: Clock,
        invited: Callable[[], Collection[str]] = tuple,
    ) -> None:
        super().__init__(clock)
        self._open = open_keys
        self._invited = invited
        self._ports = ports
        self._store = ports.store
        self._api = ports.api
        self._minter = ports.minter
        self._rotations = rotations
        self._machine_store = machine_store
        self._fleet = fleet
        self._tags_of_key: dict[str, tuple[str, ...]] = {}
        self._forgotten: set[str] = set()
        self.problem = ""

    @property
    def unused(self) -> int:
        """How many keys, spares not counted, may still be used by somebody."""
        return sum(not s.is_spare(key) for key in self._open.all())

    def at_hand(self, key: m.MachineKey) -> bool:
        """Whether the secret of a key is kept. Raises TailnetError when its file cannot be read."""
        return self._store.kept(key.name, "own") is not None

    async def for_launch(self, machine: Machine, join_token_ttl_s: float) -> KeptKey:
        """The key for a machine's user data, or for that of its gang: the same one each time.

        Args:
            machine: as the journal has it, with the gang of the create call.
            join_token_ttl_s: how long after its request the machine may join.

        Raises:
            TailnetError: none can be minted, or kept.
            StoreError: the journal cannot be written.
        """
        end = machine.created_at + timedelta(seconds=join_token_ttl_s)
        left_s = max((end - self._clock.now()).total_seconds(), 0.0)
        if machine.gang:
            return await self._key(m.gang_key_owner(machine.gang), m.GANG, left_s + m.MARGIN_S)
        return await self._key(machine.name, m.LAUNCH, left_s + m.MARGIN_S)

    async def for_invitation(self, host: str, number: int, lifetime_s: float) -> KeptKey | None:
        """The key for an invitation: the same one each time; None where meshd cannot mint. Raises as `for_launch`."""
        if self._minter is None:
            return None
        return await self._key(m.invitation_key_owner(host, number), m.INVITATION, lifetime_s)

    async def for_login(self, machine: str, attempt: str) -> KeptKey:
        """The key for one attempt of a node to log in again: the same one each time. Raises as `for_launch`."""
        return await self._key(machine, attempt, m.LOGIN_LIFETIME_S)

    async def for_spare(self, machine: Machine, want: s.Want) -> KeptKey:
        """The spare for a machine: the same one until another is wanted. Raises as `for_launch`."""
        if want.mint and (before := self._open.find(machine.name, want.purpose)) is not None:
            self._store.forget(before.name)  # what is kept under this name is another key
        if machine.spare_key and not self._open.spares_of(machine.name):
            # The journal was lost. Its keys are found by their descriptions.
            for purpose in s.PURPOSES:
                lost = m.ask(machine.name, purpose, self._clock.now(), s.LIFETIME_S, device=machine.tailnet_id)
                self._open.put(replace(lost, lost=True))
        return await self._key(machine.name, want.purpose, s.LIFETIME_S, machine.tailnet_id)

    async def misused(self, machine: Machine) -> bool:
        """Whether the spare that a machine no longer holds was used, though its device is the same; it is noted.

        Raises:
            TailnetError: the API cannot be asked.
            StoreError: the journal cannot be written.
        """
        last = s.newest(self._open.spares_of(machine.name))
        if last is None or not last.id or self._api is None:
            return False
        record = await self._api.get_key(last.id)
        if record is not None and record.valid:
            return False
        self._open.put(replace(last, misused=True))
        return True

    def handed_over(self, machine: str, purpose: str) -> None:
        """Forget the secret of a spare that its machine holds now. Raises TailnetError."""
        if (key := self._open.find(machine, purpose)) is not None:
            self._store.forget(key.name)

    async def revoke_spares(self, before: datetime) -> datetime | None:
        """Revoke all spares that were minted for an order before a moment, and keep their records.

        Returns:
            The time of the first of those orders.

        Raises:
            TailnetError: the API does not answer, or refuses.
        """
        spares = [key for key in self._open.all() if s.is_spare(key) and key.asked_at < before]
        for key in spares:
            await self._revoke(key)
        return min((key.asked_at for key in spares), default=None)

    async def _key(self, machine: str, purpose: str, lifetime_s: float, device: str = "") -> KeptKey:
        before = self._open.find(machine, purpose)
        if before is not None and (kept := self._store.kept(before.name, "own")) is not None:
            if not before.id:  # a crash came before the journal had it
                self._open.put(m.minted(before, kept.id, kept.expires, kept.sha256))
            return kept
        if self._minter is None:
            raise TailnetError("there is no longer a credential for the tailnet's API: no key can be minted")
        tags = await self._tags(self._minter)
        now = self._clock.now()
        given = s.given_lately(self._open.spares_of(machine), now) if purpose in s.PURPOSES else ()
        key = self._open.put(m.ask(machine, purpose, now, lifetime_s, before, device=device, given=given))
        self._forgotten.discard(key.name)
        if before is not None:
            await self._revoke(before)
        mint = self._minter.several if purpose == m.GANG else self._minter.single
        kept = await mint(key.description, tags, int(lifetime_s))
        self._store.keep(key.name, "own", kept)
        self._open.put(m.minted(key, kept.id, kept.expires, kept.sha256))
        return kept

    async def _tags(self, minter: Minter) -> tuple[str, ...]:
        """The tags of the reusable key, if there is one, so that a machine has the same rights with either key."""
        if self._ports.chosen_tags:
            return self._ports.chosen_tags
        fleet = self._fleet.device_tags()
        kept = self._store.in_use() or _in_file(self._ports.file)
        if kept is None or (not kept.tags and not kept.id):
            return fleet or minter.tags
        if not kept.tags and kept.id not in self._tags_of_key and self._api is not None:
            record = await self._api.get_key(kept.id)
            self._tags_of_key[kept.id] = record.tags if record is not None else ()
        return kept.tags or self._tags_of_key.get(kept.id) or fleet or minter.tags

    # -- their end ------------------------------------------------------------------------------------------------

    async def reconcile(self) -> float:
        """Revoke the keys that are no longer needed, one after the other. See Controller."""
        try:
            for listed in self._open.all():
                key = self._open.find(listed.machine, listed.purpose)  # it may have changed while others were revoked
                if key is not None:
                    await self._look_at(key)
            self.problem = ""
        except (StoreError, TailnetError) as error:
            if self.problem != str(error):
                log.error("machine_keys_stopped", reason=str(error))
            self.problem = str(error)
        return LOOK_S

    async def _look_at(self, key: m.MachineKey) -> None:
        machine, now = self._machine_store.journal.machine(key.machine), self._clock.now()
        phase = machine.phase if machine is not None else None
        if s.is_spare(key):
            spares = self._open.spares_of(key.machine)
            needed, why = s.secret_needed(key, machine, spares), s.why_end(key, machine, spares)
        elif key.purpose == m.INVITATION:
            needed = key.machine in self._invited()
            why = "" if needed else "its invitation is over"
        else:
            logging_in = logs_in(self._rotations.last(), key.machine, key.purpose)
            phases = self._phases_of_gang(key.machine) if key.purpose == m.GANG else [phase]
            needed = any(m.secret_needed(key, one, logging_in=logging_in) for one in phases)
            whys = [m.why_end(key, one, logging_in=logging_in) for one in phases]
            why = whys[0] if all(whys) else ""
        if not needed and key.name not in self._forgotten:
            self._store.forget(key.name)
            self._forgotten.add(key.name)
        if not why or not m.due(key, now):
            return
        after = None if m.over(key, now) else await self._ended(key)
        if self._open.find(key.machine, key.purpose) is not key:
            return  # the record is that of another key with this name by now
        if after is not None:
            self._open.put(after)
            return
        self._open.close(key, why, now)
        self._forgotten.discard(key.name)

    def _phases_of_gang(self, owner: str) -> list[Phase | None]:
        """Of all machines that may still join with a gang's key; [None] when there are none."""
        alive = self._machine_store.journal.machines()
        return [one.phase for one in alive if one.gang and m.gang_key_owner(one.gang) == owner] or [None]

    async def _ended(self, key: m.MachineKey) -> m.MachineKey | None:
        """Revoke what was minted for a record. Returns the new record, or None when nothing can be left."""
        now = self._clock.now()
        try:
            await self._revoke(key)
        except TailnetError as error:
            log.warning("machine_key_not_ended", machine=key.machine, key_id=key.id, reason=str(error))
            return m.not_ended(key, str(error), now)
        return None if m.settled(key, now) else m.look_again(key)

    async def _revoke(self, key: m.MachineKey) -> None:
        """Revoke all that was minted for a record. Raises TailnetError."""
        if self._minter is None or self._api is None:
            raise TailnetError("there is no longer a credential for the tailnet's API")
        if key.unclear:
            others = {one.id for one in self._open.all() if one.id and one.name != key.name}
            await self._minter.revoke_described(key.description, but=others, single=key.purpose != m.GANG)
        if key.id:
            await self._api.revoke_key(key.id)

    def problems(self) -> Iterable[ProblemView]:
        """Keys that could not be revoked."""
        if self.problem:
            text = f"keys of machines are not looked after: {self.problem}"
            yield problem(ProblemCode.MACHINE_KEYS_STUCK, "error", text, "check the disk")
        for key in self._open.all():
            if key.attempts >= PROBLEM_AFTER:
                name = f"the auth key {key.id}" if key.id else f"a key that may have been minted for {key.machine}"
                yield problem(
                    ProblemCode.MACHINE_KEY_NOT_REVOKED,
                    "warning",
                    f"{name} is no longer needed and cannot be revoked: {key.failure}",
                    f"meshd tries again; it ends by itself at {key.expires:%H:%M} UTC, or revoke it in the admin "
                    f"console (description: {key.description})",
                    machine=key.machine,
                )  # fmt: skip


def _in_file(file: KeyFile) -> KeptKey | None:
    """The key in the user's file. Where the key is needed, others report that it cannot be read."""
    try:
        return file.read()
    except TailnetError:
        return None
