"""What the three rotations share: their options, waiting for the end, and waiving nodes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, Protocol, TypeVar

from meshd.api.endpoints import A, Endpoint
from meshd.api.schema import WaiveRequest
from meshd.cli.batch import ask_each, report_failures
from meshd.cli.errors import CliError, UnreachableError
from meshd.cli.progress import Progress
from meshd.cli.session import Session
from meshd.runtime.clock import Clock

POLL_S = 0.5
SILENCE_MAX_S = 120.0
"""The wait ends with an error when meshd has not answered for this long."""


@dataclass(frozen=True, slots=True)
class RotateOptions:
    """The options of `meshctl rotate-key`, without --munge and --tokens."""

    reauth: bool
    compromised: bool
    since: datetime | None
    nodes: tuple[str, ...]
    status: bool
    abort: bool
    waive: tuple[str, ...]
    dry_run: bool
    wait: bool
    timeout_s: float
    yes: bool
    as_json: bool


class RotationDocument(Protocol):
    """What the documents of all rotations have."""

    @property
    def id(self) -> str:
        """Which rotation it is."""
        ...

    @property
    def active(self) -> bool:
        """It has not ended."""
        ...


V = TypeVar("V", bound=RotationDocument)


class HeadlineChanges(Generic[V]):
    """Turns views of a rotation into one line for each change of its headline."""

    def __init__(self, headline: Callable[[V], str]) -> None:
        self._headline = headline
        self._last = ""

    def __call__(self, view: V) -> Iterator[str]:
        """The headline, if it changed since the last call."""
        line = self._headline(view)
        if line != self._last:
            yield line
        self._last = line


def waive_nodes(
    session: Session, endpoint: Endpoint[WaiveRequest, A], nodes: Sequence[str], show: Callable[[A], None]
) -> None:
    """Waive each node, and show the rotation after the last one.

    Raises:
        CliError: the single node's error; PARTLY if some failed; the first error's code if all failed.
    """
    views, failed = session.ask(
        lambda head: ask_each(head, nodes, lambda head, node: head.call(endpoint, WaiveRequest(machine=node)))
    )
    if not views:
        raise failed[0][1]
    show(views[-1])
    report_failures(failed, len(nodes))


async def wait_for_rotation(
    read: Callable[[], Awaitable[V]],
    rotation_id: str,
    progress: Progress[V],
    *,
    timeout_s: float,
    clock: Clock,
    cure: str,
) -> V:
    """Wait until a rotation has ended or time is up; returns its last view. The daemon may restart meanwhile.

    Args:
        read: reads the last rotation from the daemon.
        rotation_id: of the rotation to wait for.
        progress: shows each view.
        timeout_s: the longest wait.
        clock: measures it.
        cure: what the user can do when the last rotation is another one.

    Raises:
        CliError: the daemon does not answer for SILENCE_MAX_S, or the last rotation is another one.
    """
    began = answered = clock.monotonic_s()
    while True:
        try:
            view = await read()
            answered = clock.monotonic_s()
        except UnreachableError:
            if clock.monotonic_s() - answered > SILENCE_MAX_S:
                raise
            progress.note("meshd does not answer; it may be restarting")
        else:
            progress.update(view, answered - began)
            if view.id != rotation_id:
                raise CliError(f"rotation {rotation_id} has ended; the last one is {view.id or 'not known'}", cure)
            if not view.active or answered - began > timeout_s:
                return view
        await clock.sleep(POLL_S)
