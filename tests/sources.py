"""Sources that answer with what a test put there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from meshd.model.observed import Fresh, Observation
from tests.unit.worlds import NOW

T_co = TypeVar("T_co", covariant=True)


class Given(Generic[T_co]):
    """A source whose every reading gives what the function returns at that moment; see meshd.daemon.observe.source."""

    def __init__(self, read: Callable[[], Observation[T_co]]) -> None:
        self._read = read

    @property
    def current(self) -> Observation[T_co]:
        return self._read()

    async def read_once(self) -> Observation[T_co]:
        return self._read()


def fresh(read: Callable[[], T_co]) -> Given[T_co]:
    """A source that can always be read."""
    return Given(lambda: Fresh(read(), NOW))
