"""Deadlines for calls that may block in the kernel: a file of a process in state D, a dead disk or share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from .errors import NodeError

T = TypeVar("T")


class Hangs(NodeError):
    """The work did not end in time. Its thread stays; the same work is not started a second time beside it."""

    stage = "disk"

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} does not answer: the disk or process behind it hangs")


class _Work(Generic[T]):
    def __init__(self, what: str, work: Callable[[], T]) -> None:
        self._work = work
        self._value: list[T] = []
        self._error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name=what, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._value.append(self._work())
        except BaseException as error:  # noqa: BLE001 - result() raises it again
            self._error = error

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._value[0]


_stuck: dict[str, _Work[Any]] = {}
_lock = threading.Lock()


def within(what: str, work: Callable[[], T], timeout_s: float) -> T:
    """Run work in a thread, with a deadline. Returns its value, or raises its exception.

    Args:
        what: the work's name, for people. Work of this name does not start while an earlier one hangs.
        work: a call without a deadline of its own.
        timeout_s: the deadline.

    Raises:
        Hangs: the work, or an earlier one of this name, has not ended.
    """
    with _lock:
        earlier = _stuck.get(what)
        if earlier is not None and earlier.thread.is_alive():
            raise Hangs(what)
        begun: _Work[T] = _Work(what, work)
        _stuck[what] = begun
    begun.thread.join(timeout_s)
    if begun.thread.is_alive():
        raise Hangs(what)
    with _lock:
        if _stuck.get(what) is begun:
            del _stuck[what]
    return begun.result()


def begin(what: str, work: Callable[[], T]) -> Callable[[], T]:
    """Begin work in a thread.

    Args:
        what: the work's name, for people.
        work: a call that ends in time by itself.

    Returns:
        A function that waits for the end, and returns the work's value or raises its exception.
    """
    begun = _Work(what, work)

    def result() -> T:
        begun.thread.join()
        return begun.result()

    return result
