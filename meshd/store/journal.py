"""The journal of machines, targets, cooldowns and events.

Only one process writes it, so all machines that are not GONE are kept in memory as well, and a tick reads no disk.
Every write is durable when the call returns (WAL, synchronous=FULL).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, LiteralString, TypeAlias

from pydantic import TypeAdapter

from meshd.codes import EventKind
from meshd.model.cooldown import Cooldown, CooldownCause, CooldownKey
from meshd.model.desired import Target
from meshd.model.machine import Machine, Phase
from meshd.plaintext import plain
from meshd.plan.cooldowns import remembered
from meshd.redaction import redact
from meshd.store.database import JournalDatabase
from meshd.store.events import (
    EVENTS_AFTER,
    EVENTS_NEWEST,
    EVENTS_OF_POOL,
    Event,
    EventFilter,
    NewEvent,
    Origin,
    event_of,
    moment,
)
from meshd.store.salvage import Row, salvage
from meshd.store.unreadable import Unreadable, UnreadableRows

GONE_KEPT = 1000
"""How many machines that are GONE stay in memory because their tailnet device may still exist."""

MachineFollower: TypeAlias = Callable[[sqlite3.Connection, Machine], Callable[[], None]]
"""Writes what follows from a machine's record, and returns what to do when that is durable."""

_WORDS = ("reason", "failure", "refusal", "vendor_words", "problem", "path", "public_ip", "region")
_MACHINE = TypeAdapter(Machine)
_TARGET = TypeAdapter(Target)


class Journal(JournalDatabase):
    """See the module. All methods raise StoreError when the database cannot be read or written."""

    def __init__(self, path: Path) -> None:
        """Open or create the journal at `path`; its directory must exist.

        Raises:
            StoreError: another meshd has it open, it is damaged, or it is of a newer form.
        """
        super().__init__(path)
        self._followers: list[MachineFollower] = []
        self._unreadable = UnreadableRows(self)
        with self._closed_on_error():
            self._load()
        self.revision = 0
        """Grows with every change of a machine's record: what depends on the records is made again only then."""

    def _load(self) -> None:
        self._live: dict[str, Machine] = {}
        for row in self._machine_rows("phase <> 'gone'"):
            self._live[row.name] = self._read_machine(row) or self._salvaged(row)
        gone = (
            "phase = 'gone' AND json_valid(record) AND CASE WHEN json_valid(record) THEN "
            "json_extract(record, '$.device_removed') END = 0 ORDER BY rowid DESC LIMIT ?"
        )
        self._gone: dict[str, Machine] = {m.name: m for m in reversed(list(self._read_machines(gone, GONE_KEPT)))}
        targets = self.rows("SELECT rowid, pool, record FROM targets")
        self._targets = dict(self._unreadable.sift("targets", targets, _TARGET.validate_json))
        cooldowns = self.rows("SELECT rowid, key, json_array(key, until, reason, strikes, cause) FROM blocks")
        found = (one for _, one in self._unreadable.sift("blocks", cooldowns, _cooldown_of))
        self._cooldowns: Mapping[CooldownKey, Cooldown] = {one.key: one for one in found}

    # -- machines -------------------------------------------------------------------------------------------------

    def machines(self) -> list[Machine]:
        """Every machine that is not GONE."""
        return list(self._live.values())

    def gone_with_device(self) -> list[Machine]:
        """The newest machines that are GONE and whose tailnet device is not known to be removed, at most 1,000."""
        return list(self._gone.values())

    def machine(self, name: str) -> Machine | None:
        """The record of a machine, GONE or not; None when the journal never had it."""
        if name in self._live:
            return self._live[name]
        return next(iter(self._read_machines("name = ?", name)), None)

    def history(self, limit: int = 1000) -> list[Machine]:
        """The machines that are GONE, newest first."""
        return list(self._read_machines("phase = 'gone' ORDER BY rowid DESC LIMIT ?", limit))

    def gone_since(self, since: datetime) -> list[Machine]:
        """The machines that are GONE since that time or later."""
        ended = "CASE WHEN json_valid(record) THEN json_extract(record, '$.gone_at') END >= ?"
        return list(self._read_machines("phase = 'gone' AND " + ended, f"{since.astimezone(UTC):%Y-%m-%dT%H:%M:%S}"))

    def machines_of_slot(self, slot: str, limit: int = 50) -> list[Machine]:
        """The newest `limit` machines that were made for a slot, GONE ones too, newest first."""
        return list(self._read_machines("slot = ? ORDER BY rowid DESC LIMIT ?", slot, limit))

    def machines_of_pool(self, pool: str, limit: int = 200) -> list[Machine]:
        """The newest `limit` machines that were made for a pool, GONE ones too, newest first."""
        return list(self._read_machines("pool = ? ORDER BY rowid DESC LIMIT ?", pool, limit))

    def rented_of_pool(self, pool: str, limit: int = 100) -> list[Machine]:
        """The newest `limit` machines of a pool that a cloud had, GONE ones too, newest first."""
        return list(self._read_machines("pool = ? AND instance_id <> '' ORDER BY rowid DESC LIMIT ?", pool, limit))

    def knows_instance(self, provider: str, instance_id: str) -> bool:
        """Whether any record, gone or not, is of this instance."""
        query = "SELECT 1 FROM machines WHERE provider = ? AND instance_id = ? AND instance_id <> ''"  # by the index
        return bool(self.rows(query, provider, instance_id))

    def put(
        self,
        machine: Machine,
        kind: EventKind,
        text: str,
        at: datetime,
        *,
        origin: Origin = Origin.MESHD,
        **fields: Any,
    ) -> Machine:
        """Write a machine's record together with the event that records why; returns the record as written."""
        machine = _bounded(machine)
        record = redact(_MACHINE.dump_json(machine).decode())
        with self.writing(NewEvent(at, kind, text, machine.name, fields, origin)) as db:
            db.execute(
                "INSERT INTO machines (name, pool, slot, provider, instance_id, phase, record) VALUES (?,?,?,?,?,?,?) "
                "ON CONFLICT (name) DO UPDATE SET instance_id=excluded.instance_id, phase=excluded.phase, "
                "record=excluded.record",
                (
                    machine.name,
                    machine.pool,
                    machine.slot,
                    machine.provider,
                    machine.instance_id,
                    machine.phase.value,
                    record,
                ),
            )
            durable = [follower(db, machine) for follower in self._followers]
        for done in durable:
            done()
        self._keep(machine)
        self.revision += 1
        return machine

    def on_machine(self, follower: MachineFollower) -> None:
        """Call `follower` with each record that is written, in the same transaction; then what it returns."""
        self._followers.append(follower)

    def note(self, machine: Machine) -> Machine:
        """Keep a record in memory only, for what changes with every heartbeat."""
        if machine.name in self._live:
            machine = self._live[machine.name] = _bounded(machine)
        return machine

    # -- targets and cooldowns ---------------------------------------------------------------------------------------

    def targets(self) -> Mapping[str, Target]:
        """By pool."""
        return self._targets

    def set_target(self, target: Target, text: str, at: datetime) -> Target:
        """Write a pool's target; returns it with its id, which is that of its event."""
        fields = {"pool": target.pool, "gpus": target.gpus, "by": target.by}
        with self.writing() as db:
            target = replace(target, id=self._insert_event(NewEvent(at, EventKind.TARGET, text, fields=fields)), at=at)
            db.execute(
                "INSERT INTO targets (pool, record) VALUES (?,?) "
                "ON CONFLICT (pool) DO UPDATE SET record=excluded.record",
                (target.pool, _TARGET.dump_json(target).decode()),
            )
        self._targets = {**self._targets, target.pool: target}
        return target

    def cooldowns(self, now: datetime) -> Mapping[CooldownKey, Cooldown]:
        """The cooldowns in force, by key."""
        return {key: cooldown for key, cooldown in self._cooldowns.items() if cooldown.until > now}

    def expired_cooldowns(self, now: datetime) -> Mapping[CooldownKey, Cooldown]:
        """The expired cooldowns whose strikes still count, by key."""
        return {
            k: cooldown
            for k, cooldown in self._cooldowns.items()
            if cooldown.until <= now and remembered(cooldown, now)
        }

    def last_cooldown(self, key: CooldownKey) -> Cooldown | None:
        """The last cooldown of a key, in force or expired; None when there never was one."""
        return self._cooldowns.get(key)

    def set_cooldown(self, cooldown: Cooldown, at: datetime) -> None:
        """Write a cooldown in place of the last one of its key."""
        cooldown = replace(cooldown, reason=plain(redact(cooldown.reason)))
        until = cooldown.until.isoformat()
        fields = {"until": until, "strikes": cooldown.strikes, "cause": cooldown.cause.value}
        with self.writing(NewEvent(at, EventKind.COOLDOWN, f"{cooldown.key}: {cooldown.reason}", fields=fields)) as db:
            db.execute(
                "INSERT INTO blocks (key, until, reason, strikes, cause) VALUES (?,?,?,?,?) "
                "ON CONFLICT (key) DO UPDATE SET until=excluded.until, reason=excluded.reason, "
                "strikes=excluded.strikes, cause=excluded.cause",
                (cooldown.key, until, cooldown.reason, cooldown.strikes, cooldown.cause.value),
            )
        self._cooldowns = {**self._cooldowns, cooldown.key: cooldown}

    def lift_cooldowns(self, keys: Iterable[CooldownKey]) -> None:
        """Delete these cooldowns; unknown keys are no error."""
        doomed = self._cooldowns.keys() & set(keys)
        with self.writing() as db:
            db.executemany("DELETE FROM blocks WHERE key = ?", [(key,) for key in doomed])
        self._cooldowns = {key: cooldown for key, cooldown in self._cooldowns.items() if key not in doomed}

    # -- events ---------------------------------------------------------------------------------------------------

    def event(
        self,
        at: datetime,
        kind: EventKind,
        text: str,
        machine: str = "",
        *,
        origin: Origin = Origin.MESHD,
        **fields: Any,
    ) -> None:
        """Write an event of its own."""
        self.write_events([NewEvent(at, kind, text, machine, fields, origin)])

    def write_events(self, events: Iterable[NewEvent]) -> None:
        """Write several events at once: a write to the disk takes as long for many as for one."""
        with self.writing():
            for one in events:
                self._insert_event(one)

    def events(self, after_id: int = 0, limit: int = 100, machine: str = "") -> list[Event]:
        """The oldest `limit` events after an id; with `after_id` < 0 the newest ones, oldest first."""
        newest = "SELECT * FROM events WHERE ?1 IN ('', machine) ORDER BY id DESC LIMIT ?2"
        after = "SELECT * FROM events WHERE ?1 IN ('', machine) AND id > ?3 ORDER BY id LIMIT ?2"
        rows = self.rows(newest, machine, limit)[::-1] if after_id < 0 else self.rows(after, machine, limit, after_id)
        return [event_of(row) for row in rows]

    def events_like(self, event_filter: EventFilter, after_id: int = 0, limit: int = 100) -> list[Event]:
        """As `events`, of those that match."""
        since = event_filter.since.astimezone(UTC).isoformat() if event_filter.since else ""
        matches = (json.dumps(event_filter.machines), json.dumps(event_filter.kinds), event_filter.pool, since, limit)
        newest = after_id < 0
        rows = self.rows(EVENTS_NEWEST, *matches)[::-1] if newest else self.rows(EVENTS_AFTER, *matches, after_id)
        return [event_of(row) for row in rows]

    def event_kinds(self) -> set[str]:
        """The kinds of all stored events."""
        return {str(kind) for (kind,) in self.rows("SELECT DISTINCT kind FROM events")}

    def events_of_pool(self, pool: str, limit: int) -> list[Event]:
        """The newest events of a pool and of its machines, also of those that are gone; oldest first."""
        rows = self.rows(EVENTS_OF_POOL, pool, limit)
        return [event_of(row) for row in rows[::-1]]

    def last_event_id(self) -> int:
        """The id of the newest event, 0 when there is none."""
        return int(self.rows("SELECT coalesce(max(id), 0) FROM events")[0][0])

    @property
    def unreadable(self) -> UnreadableRows:
        """The rows that could not be read."""
        return self._unreadable

    # -- inside ---------------------------------------------------------------------------------------------------

    def _keep(self, machine: Machine) -> None:
        if machine.phase is not Phase.GONE:
            self._gone.pop(machine.name, None)  # one that was given up may be found alive
            self._live[machine.name] = machine
            return
        self._live.pop(machine.name, None)
        if machine.device_removed:
            self._gone.pop(machine.name, None)
        else:
            self._gone[machine.name] = machine
            if len(self._gone) > GONE_KEPT:
                self._gone.pop(next(iter(self._gone)))

    def _machine_rows(self, where: LiteralString, *args: Any) -> Iterable[Row]:
        columns: LiteralString = "SELECT name, pool, slot, provider, instance_id, phase, record FROM machines WHERE "
        for row in self.rows(columns + where, *args):
            yield Row(*row)

    def _read_machines(self, where: LiteralString, *args: Any) -> Iterable[Machine]:
        for row in self._machine_rows(where, *args):
            yield self._read_machine(row) or salvage(row, datetime.now(UTC))[0]

    @staticmethod
    def _read_machine(row: Row) -> Machine | None:
        """The record; None when it is damaged."""
        try:
            return _MACHINE.validate_json(row.record)
        except (ValueError, OverflowError, RecursionError):
            return None

    def _salvaged(self, row: Row) -> Machine:
        """Write what can be read of a damaged record in its place, and keep the damaged one aside."""
        now = datetime.now(UTC)
        machine, lost = salvage(row, now)
        why = f"cannot be read: {', '.join(lost)}"
        with self.writing(NewEvent(now, EventKind.JOURNAL, f"its record in the journal {why}", machine.name)) as db:
            self._unreadable.keep(db, Unreadable(now, "machines", row.name, why), row.record)
            db.execute(
                "UPDATE machines SET phase = ?, record = ? WHERE name = ?",
                (machine.phase.value, redact(_MACHINE.dump_json(machine).decode()), row.name),
            )
        return machine


def _bounded(machine: Machine) -> Machine:
    """The record with texts of others made safe: no secrets, no control characters, and at most a message's length."""
    changes: dict[str, Any] = {}
    for name in _WORDS:
        was = getattr(machine, name)
        if was and (now := plain(redact(was))) != was:
            changes[name] = now
    return replace(machine, **changes) if changes else machine


def _cooldown_of(record: str) -> Cooldown:
    key, until, reason, strikes, cause = json.loads(record)
    return Cooldown(CooldownKey(key), moment(until), reason, int(strikes), CooldownCause(cause))
