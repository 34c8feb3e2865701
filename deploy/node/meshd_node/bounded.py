"""Work that the kernel may keep for ever: a file of a process in state D, a disk or a share that does not answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from .errors import NodeError

T = TypeVar("T")


class Hangs(NodeError):
    """The work did not end in time. Its thread is left behind, and not joined by a second one."""

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
        except BaseException as error:  # noqa: BLE001 - it is raised again where it was asked for
            self._error = error

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._value[0]


_stuck: dict[str, _Work[Any]] = {}
_lock = threading.Lock()


def within(what: str, work: Callable[[], T], timeout_s: float) -> T:
    """The work's value, or its exception.

    Args:
        what: the work's name, for people; work of one name is not begun again while an earlier one hangs.
        work: without a deadline of its own.
        timeout_s: it is waited for so long.

    Raises:
        Hangs: it did not end, or an earlier one has not ended yet.
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
