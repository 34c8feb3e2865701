"""Records of what was at paths of an owned machine before, in a file that outlives a cut of power."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .snapshot import Snapshot, from_json


@dataclass
class Record:
    """One change, or several one after the other, of one path.

    Attributes:
        number: unique in its layer.
        path: absolute, as on the machine.
        before: what was there.
        after: what the change left there; None where nobody knows.
        ours: at the begin of the undo it was as `after` says.
        undone: it is taken back.
    """

    number: str
    path: str
    before: Snapshot
    after: Snapshot | None = None
    ours: bool = False
    undone: bool = False


class Log:
    """The records of one layer: a file to which lines are added, and which survives a cut of power at any time."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.records: list[Record] = []
        self.facts: dict[str, Any] = {}
        self._count = 0
        self._load()

    def _load(self) -> None:
        by_number: dict[str, Record] = {}
        try:
            lines = self.file.read_bytes().splitlines()
        except FileNotFoundError:
            return
        for line in lines:
            with suppress(ValueError, TypeError, KeyError):  # the last line may be cut
                value = json.loads(line)
                if "fact" in value:
                    self._learn(value["fact"], value["value"])
                    continue
                record = by_number.get(value["n"])
                if record is None:
                    record = Record(value["n"], value["path"], from_json(value["before"]))
                    by_number[record.number] = record
                    self.records.append(record)
                record.before = from_json(value["before"]) if "before" in value else record.before
                if "after" in value:
                    record.after = from_json(value["after"]) if value["after"] else None
                record.ours = record.ours or bool(value.get("ours"))
                record.undone = record.undone or bool(value.get("undone"))
        self._count = len(self.records)

    def add(self, path: str, before: Snapshot, after: Snapshot | None = None, sync: bool = True) -> Record:
        """Record a change that is about to happen."""
        self._count += 1
        record = Record(f"{self._count}-{os.getpid()}", path, before, after)
        self.records.append(record)
        value = {"n": record.number, "path": path, "before": before.as_json()}
        self._write({**value, "after": after.as_json()} if after else value, sync)
        return record

    def settle(self, record: Record, after: Snapshot | None) -> None:
        """Say what the change leaves."""
        if record.after is None or after is None or not record.after.same(after):
            record.after = after
            self._write({"n": record.number, "after": after.as_json() if after else None}, sync=True)

    def restate(self, record: Record, before: Snapshot, after: Snapshot) -> None:
        """Correct the record after somebody else changed the path: it is `after` now, and has to become `before`."""
        record.before, record.after = before, after
        self._write({"n": record.number, "before": before.as_json(), "after": after.as_json()}, sync=True)

    def mark(self, record: Record, word: str) -> None:
        """Say of a record that it is `ours` or `undone`."""
        setattr(record, word, True)
        self._write({"n": record.number, word: True}, sync=True)

    def learn(self, name: str, value: list[str]) -> None:
        """Add to a fact: the packages that came, the host's name, ..."""
        if value:
            self._learn(name, value)
            self._write({"fact": name, "value": value}, sync=True)

    def _learn(self, name: str, value: list[str]) -> None:
        known = self.facts.setdefault(name, [])
        known += [one for one in value if one not in known]

    def _write(self, value: dict[str, Any], sync: bool) -> None:
        self.file.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
        fd = os.open(str(self.file), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, b"\n" + json.dumps(value, separators=(",", ":")).encode() + b"\n")
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)
