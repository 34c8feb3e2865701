"""Following a rotation to its end: of the auth key, or of the munge key."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from meshd.cli import render
from meshd.cli.exits import CliError, UnreachableError
from meshd.cli.session import say
from meshd.runtime.clock import Clock

POLL_S = 0.5
SILENCE_MAX_S = 120.0


class Rotating(Protocol):
    """What both rotations' documents tell."""

    @property
    def id(self) -> str:
        """Which rotation it is."""
        ...

    @property
    def active(self) -> bool:
        """It has not ended."""
        ...


V = TypeVar("V", bound=Rotating)
V_contra = TypeVar("V_contra", bound=Rotating, contravariant=True)


class Progress(Protocol[V_contra]):
    """Shows how it goes."""

    def update(self, seen: V_contra, elapsed_s: float) -> None:
        """What is now."""
        ...

    def note(self, text: str) -> None:
        """Something that people should know."""
        ...


class LineProgress(Generic[V]):
    """One line for each change of the headline."""

    def __init__(self, headline: Callable[[V], str]) -> None:
        self._headline = headline
        self._told = ""

    def update(self, seen: V, elapsed_s: float) -> None:
        """Tell what changed since the last time."""
        line = self._headline(seen)
        if line != self._told:
            say(f"{render.age(elapsed_s):>6}  {line}")
        self._told = line

    def note(self, text: str) -> None:
        """A line of its own, once in a row."""
        if text != self._told:
            say(f"        {text}")
        self._told = text


async def follow(
    look: Callable[[], Awaitable[V]],
    rotation_id: str,
    progress: Progress[V],
    *,
    timeout_s: float,
    clock: Clock,
    cure: str,
) -> V:
    """Follow a rotation until it has ended or time is up. The daemon may restart meanwhile.

    Args:
        look: asks the daemon how the last rotation stands.
        rotation_id: of the one that is followed.
        progress: told each time.
        timeout_s: after it the rotation is returned as it is.
        clock: for both.
        cure: what to do when another one has taken its place.

    Raises:
        CliError: the daemon stays unreachable, or another rotation has taken its place.
    """
    began = heard = clock.monotonic_s()
    while True:
        try:
            seen = await look()
            heard = clock.monotonic_s()
        except UnreachableError:
            if clock.monotonic_s() - heard > SILENCE_MAX_S:
                raise
            progress.note("meshd does not answer; it may be restarting")
        else:
            progress.update(seen, heard - began)
            if seen.id != rotation_id:
                raise CliError(f"rotation {rotation_id} is over, and {seen.id or 'no other'} is the last", cure)
            if not seen.active or heard - began > timeout_s:
                return seen
        await clock.sleep(POLL_S)
