"""Refused join tokens: a problem while they are recent, and one event for each series."""

from __future__ import annotations

from datetime import datetime, timedelta

from meshd.api.schema import ProblemView
from meshd.codes import EventKind, JoinCode, ProblemCode
from meshd.daemon.reporting import problem
from meshd.errors import JoinRefused
from meshd.store.events import NewEvent, Origin
from meshd.store.journal import Journal

SHOWN_FOR = timedelta(minutes=15)
"""How long it stays a problem after the last try."""

KEPT_MAX = 1000
"""Pairs of machine and kind that are remembered; the oldest go."""


class JoinTokenWatch:
    """Remembers refused join tokens. It changes no machine's record: users of a node can read its join token."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._seen: dict[tuple[str, str], tuple[str, datetime]] = {}

    def note(self, machine: str, error: JoinRefused, now: datetime) -> None:
        """The join token of a machine was refused. Raises StoreError."""
        pair = (machine, error.code)
        last = self._seen.pop(pair, None)
        if last is None or now - last[1] >= SHOWN_FOR:
            news = NewEvent(now, EventKind.JOIN_TOKEN, f"refused: {error}", machine, {"code": error.code}, Origin.NODE)
            with self._journal.writing(news):
                pass
        self._seen[pair] = (error.reason, now)
        while len(self._seen) > KEPT_MAX:
            del self._seen[next(iter(self._seen))]

    def problems(self, now: datetime) -> list[ProblemView]:
        """The tries of the last 15 minutes with tokens of machines that are not gone: no others open anything."""
        self._seen = {pair: seen for pair, seen in self._seen.items() if now - seen[1] < SHOWN_FOR}
        alive = {machine.name for machine in self._journal.machines()}
        return [
            problem(
                ProblemCode.JOIN_TOKEN_REFUSED, "warning", f"a caller from {machine} was refused: {reason}",
                _cure(code, machine), machine=machine,
            )
            for (machine, code), (reason, _) in sorted(self._seen.items())
            if machine in alive
        ]  # fmt: skip


def _cure(code: str, machine: str) -> str:
    if code == JoinCode.TOKEN_CLOSED:
        return (
            "a user on it may have tried the join token from its user data: look at who runs jobs there. If its agent "
            f"lost its node token, replace the machine: meshctl remove {machine}"
        )
    if code == JoinCode.OTHER_INSTANCE:
        return (
            "another machine sent the join token of its gang: look for a second device with its name in the tailnet's "
            f"admin console. The machine itself may still join; if it does not: meshctl remove {machine}"
        )
    return f"it can no longer join: meshctl remove {machine}"
