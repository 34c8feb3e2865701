"""Asks the daemon for what the live view shows."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from meshd.api import endpoints
from meshd.api.schema import CostQuery, CostView, EventsQuery, EventsView, JobsQuery
from meshd.cli.client import HeadClient
from meshd.cli.errors import CliError, UnreachableError
from meshd.cli.top.board import Board
from meshd.runtime.clock import Clock

COST_S = 30.0
"""How often the money of today is asked for: it is read from the journal, all else from memory."""
EVENTS_MAX = 500
EVENTS_WAIT_S = 25.0


class Feed:
    """Asks for everything, round by round.

    Args:
        head: the daemon.
        clock: this host's.
    """

    def __init__(self, head: HeadClient, clock: Clock) -> None:
        self._head, self._clock = head, clock
        self._cost_at: datetime | None = None
        self._last_event: int | None = None
        self.board = Board()

    async def round(self) -> Board:
        """What is known after one more round of questions. Where the daemon does not answer, the old answers stay."""
        head, now, board = self._head, self._clock.now(), self.board
        try:
            board = replace(
                board, status=await head.call(endpoints.STATUS), nodes=await head.call(endpoints.NODES),
                jobs=await head.call(endpoints.JOBS, JobsQuery()),
            )  # fmt: skip
            if board.may_write is None:
                board = replace(board, may_write=(await head.call(endpoints.CALLER)).may_write)
            if self._cost_at is None or now - self._cost_at >= timedelta(seconds=COST_S):
                self._cost_at = now
                board = replace(board, cost=await self._cost(now))
            self.board = replace(board, error="", error_since=None)
        except CliError as error:
            self.board = replace(board, error=error.message, error_since=self.board.error_since or now)
        return self.board

    async def _cost(self, now: datetime) -> CostView | None:
        """The money of today; None where the journal cannot be read: all else can still be shown."""
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        try:
            return await self._head.call(endpoints.COST, CostQuery(by="day", since=midnight))
        except UnreachableError:
            raise
        except CliError:
            return None

    async def events(self) -> EventsView:
        """What happened since the last call, which it may wait for.

        Raises:
            CliError: the daemon does not answer.
        """
        if self._last_event is None:
            query = EventsQuery(limit=EVENTS_MAX)
        else:
            query = EventsQuery(after_id=self._last_event, limit=EVENTS_MAX, wait_s=EVENTS_WAIT_S)
        view = await self._head.call(endpoints.EVENTS, query)
        self._last_event = view.last_id
        return view
