"""The last logs of machines: one file for each, bounded in size, and in all; the oldest ones go."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import structlog

from meshd.runtime.atomicfile import write_atomic

log = structlog.get_logger(__name__)

MACHINE_MAX_B: Final = 256 * 1024
ALL_MAX_B: Final = 64 * 1024 * 1024
SUFFIX: Final = ".json"
_NAME: Final = re.compile(r"[a-z0-9][-a-z0-9]{0,62}")
"""A machine that meshd adopted has the name that its cloud shows."""


@dataclass(frozen=True, slots=True)
class KeptLog:
    """The end of one log, as it was at a time."""

    at: datetime
    text: str


class KeptLogs:
    """Keeps them. Thread-safe.

    Args:
        directory: made when it is missing, 0700; each file is 0600.
        machine_max_b, all_max_b: bytes of one machine's file, and of all.
    """

    def __init__(self, directory: Path, machine_max_b: int = MACHINE_MAX_B, all_max_b: int = ALL_MAX_B) -> None:
        self._directory = directory
        self._machine_max_b = machine_max_b
        self._all_max_b = all_max_b
        self._lock = threading.Lock()

    def put(self, machine: str, at: datetime, texts: Mapping[str, str]) -> None:
        """Keep logs of a machine, by part. They replace earlier ones of the same parts.

        Raises:
            OSError: they cannot be written.
        """
        if not texts or not _NAME.fullmatch(machine):
            return
        with self._lock:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            logs = {**self._read(machine), **{part: KeptLog(at, text) for part, text in texts.items()}}
            write_atomic(self._path(machine), _fitting(logs, self._machine_max_b), mode=0o600)
            self._remove_oldest(machine)

    def get(self, machine: str) -> Mapping[str, KeptLog]:
        """What is kept of a machine, by part; nothing when it is unknown or its file cannot be read."""
        return self._read(machine) if _NAME.fullmatch(machine) else {}

    def _path(self, machine: str) -> Path:
        return self._directory / (machine + SUFFIX)

    def _read(self, machine: str) -> dict[str, KeptLog]:
        try:
            found = json.loads(self._path(machine).read_bytes())
            return {
                str(part): KeptLog(datetime.fromisoformat(one["at"]).astimezone(UTC), str(one["text"]))
                for part, one in found.items()
            }
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            log.warning("kept_logs_unreadable", machine=machine, reason=str(error))
            return {}

    def _remove_oldest(self, newest: str) -> None:
        """Remove the oldest files until all fit; never the one that was just written."""
        found = []
        for path in self._directory.glob(f"*{SUFFIX}"):
            with suppress(FileNotFoundError):
                state = path.stat()
                found.append((path != self._path(newest), -state.st_mtime_ns, state.st_size, path))
        room_b = self._all_max_b
        for _, _, size_b, path in sorted(found):
            room_b -= size_b
            if room_b < 0:
                path.unlink(missing_ok=True)


def _fitting(logs: Mapping[str, KeptLog], max_b: int) -> bytes:
    """The document. While it is too large, the longest text loses its beginning."""
    texts = {part: one.text for part, one in logs.items()}
    while True:
        document: dict[str, Any] = {
            part: {"at": logs[part].at.isoformat(), "text": text} for part, text in texts.items()
        }
        data = json.dumps(document, ensure_ascii=False).encode("utf-8", "replace")
        longest = max(texts, key=lambda part: len(texts[part]))
        if len(data) <= max_b or not texts[longest]:
            return data
        texts[longest] = texts[longest][len(texts[longest]) // 4 + 1 :]
