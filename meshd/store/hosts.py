"""Owned machines in the journal: invitations, and hosts that redeemed one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import structlog
from pydantic import TypeAdapter

from meshd.codes import EventKind
from meshd.model.host import Host
from meshd.plaintext import plain
from meshd.redaction import redact
from meshd.runtime.atomicfile import write_atomic
from meshd.store.events import NewEvent
from meshd.store.journal import Journal

_HOST: Final = TypeAdapter(Host)
_HOSTS: Final = TypeAdapter(tuple[Host, ...])
log = structlog.get_logger(__name__)


class Hosts:
    """All methods raise StoreError when the journal cannot be read or written.

    Args:
        journal: the journal.
        copy: the file of a copy, so that a lost journal does not cut hosts off: they would take meshd off themselves.
            None: there is no copy.
    """

    def __init__(self, journal: Journal, copy: Path | None = None) -> None:
        self._journal = journal
        self._copy = copy
        rows = journal.rows("SELECT rowid, name, record FROM hosts")
        self._hosts: Mapping[str, Host] = dict(journal.unreadable.sift("hosts", rows, _HOST.validate_json))
        self._followers: list[Callable[[str], None]] = []

    def restore(self, at: datetime) -> int:
        """Put the hosts of the copy into a journal that has none: it was lost. Returns how many."""
        lost = _read(self._copy) if self._copy is not None and not self._hosts else ()
        for host in lost:
            self.put(host, "the journal was lost: it is known from the copy beside it", at)
        return len(lost)

    def all(self) -> tuple[Host, ...]:
        """Each of them, by name."""
        return tuple(self._hosts[name] for name in sorted(self._hosts))

    def find(self, name: str) -> Host | None:
        """The host with this name."""
        return self._hosts.get(name)

    def of_machine(self, machine: str) -> Host | None:
        """The host that is this machine."""
        return next((host for host in self._hosts.values() if machine and host.machine == machine), None)

    def on_change(self, follower: Callable[[str], None]) -> None:
        """Call `follower` with the name of each host that changes."""
        self._followers.append(follower)

    def put(self, host: Host, text: str, at: datetime, machine: str = "") -> Host:
        """Write a host, and an event that says why."""
        host = _bounded(host)
        with self._journal.writing(self._event(host.name, text, at, machine)) as db:
            db.execute(
                "INSERT INTO hosts (name, record) VALUES (?,?) ON CONFLICT (name) DO UPDATE SET record=excluded.record",
                (host.name, redact(_HOST.dump_json(host).decode())),
            )
        kept = self._keep(host)
        self._write_copy()
        return kept

    def change(self, name: str, text: str, at: datetime, **changes: Any) -> Host:
        """Write changes of the newest record of a host; `text` says why."""
        return self.put(replace(self._hosts[name], **changes), text, at, changes.get("machine", ""))

    def note(self, host: Host) -> Host:
        """Keep a record in memory only, for what changes with each call."""
        return self._keep(_bounded(host)) if host.name in self._hosts else host

    def forget(self, name: str, text: str, at: datetime) -> None:
        """Delete a host: its tokens open nothing any more."""
        with self._journal.writing(self._event(name, text, at, "")) as db:
            db.execute("DELETE FROM hosts WHERE name = ?", (name,))
        self._hosts = {other: host for other, host in self._hosts.items() if other != name}
        self._write_copy()
        self._changed(name)

    def _write_copy(self) -> None:
        if self._copy is None:
            return
        try:
            write_atomic(self._copy, _HOSTS.dump_json(self.all()), mode=0o600)
        except OSError as error:
            log.warning("hosts_copy_not_written", path=str(self._copy), reason=str(error))

    def _keep(self, host: Host) -> Host:
        if self._hosts.get(host.name) != host:
            self._hosts = {**self._hosts, host.name: host}
            self._changed(host.name)
        return host

    def _changed(self, name: str) -> None:
        for follower in self._followers:
            follower(name)

    @staticmethod
    def _event(name: str, text: str, at: datetime, machine: str) -> NewEvent:
        return NewEvent(at, EventKind.HOST, f"{name}: {text}", machine, {"host": name})


def _read(path: Path) -> tuple[Host, ...]:
    try:
        return _HOSTS.validate_json(path.read_bytes())
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, OverflowError, RecursionError) as error:
        log.warning("hosts_copy_not_read", path=str(path), reason=str(error).splitlines()[0])
        return ()


def _bounded(host: Host) -> Host:
    """The record with the host's words made safe: no secrets, no control characters."""
    problem = plain(redact(host.problem)) if host.problem else ""
    return replace(host, problem=problem) if problem != host.problem else host
