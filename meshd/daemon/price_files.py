"""The prices that adapters have fetched: one dated file for each provider, read once and kept in mind."""

from __future__ import annotations

from collections.abc import Mapping
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

    def path(self, provider: str) -> Path:
        """Where a provider's prices are."""
        return self._directory / f"{provider}.json"

    def find(self, provider: str) -> PriceList | None:
        """The newest prices that were fetched; None when there are none, or they cannot be read."""
        if provider not in self._known:
            self._known[provider] = self._read(provider)
        return self._known[provider]

    def damaged(self) -> Mapping[str, str]:
        """Why a file cannot be read, by provider."""
        return self._damaged

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
        try:
            return parse(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self._damaged[provider] = f"{path} cannot be read: {words}"
            log.warning("prices_unreadable", provider=provider, path=str(path), reason=words)
            return None
