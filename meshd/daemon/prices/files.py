"""The prices that adapters have fetched: one dated file for each provider, read once and kept in mind."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import structlog

from meshd.errors import StoreError
from meshd.price_list import PriceList, dump, parse
from meshd.runtime.atomicfile import write_atomic

log = structlog.get_logger(__name__)


class PriceFiles:
    """Everything in `directory`, which is made when the first file is written. Only the daemon writes there."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[str, PriceList | None] = {}
        self._damaged: dict[str, str] = {}
        self._marks: dict[str, tuple[int, int] | None] = {}

    def path(self, provider: str) -> Path:
        """Where a provider's prices are."""
        return self._directory / f"{provider}.json"

    def find(self, provider: str) -> PriceList | None:
        """The newest prices that were fetched; None when there are none, or they cannot be read."""
        if provider in self._damaged and self._mark(provider) != self._marks.get(provider):
            self._forget(provider)  # somebody mended it, or took it away
        if provider not in self._known:
            self._known[provider] = self._read(provider)
        return self._known[provider]

    def damaged(self) -> Mapping[str, str]:
        """Why a file cannot be read, by provider."""
        for provider in list(self._damaged):
            self.find(provider)
        return self._damaged

    def _forget(self, provider: str) -> None:
        self._known.pop(provider, None)
        self._damaged.pop(provider, None)

    def _mark(self, provider: str) -> tuple[int, int] | None:
        """What differs after any write."""
        with suppress(OSError):
            seen = self.path(provider).stat()
            return seen.st_ino, max(seen.st_mtime_ns, seen.st_ctime_ns)
        return None

    def put(self, provider: str, prices: PriceList) -> None:
        """Write the file, and have the prices hold at once.

        Raises:
            StoreError: it cannot be written; what was there before still holds.
        """
        path = self.path(provider)
        try:
            path.parent.mkdir(exist_ok=True)
            path.parent.chmod(0o755)  # whatever the service's umask: there is nothing secret in it
            write_atomic(path, dump(prices).encode(), mode=0o644)
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error.strerror or error}") from error
        self._known[provider] = prices
        self._damaged.pop(provider, None)

    def _read(self, provider: str) -> PriceList | None:
        path = self.path(provider)
        self._marks[provider] = self._mark(provider)
        try:
            return parse(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self._damaged[provider] = f"{path} cannot be read: {words}"
            log.warning("prices_unreadable", provider=provider, path=str(path), reason=words)
            return None
