"""Counts and times the calls to a cloud."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from meshd.daemon.providers.guarded import Operation
from meshd.errors import ProviderError
from meshd.obs.metrics import Metrics
from meshd.runtime.clock import Clock

T = TypeVar("T")


class Meter:
    """Keeps the books of one provider's calls. Its outcomes: ok, the error's kind, cancelled, fault (one of ours)."""

    def __init__(self, provider: str, metrics: Metrics, clock: Clock) -> None:
        self._provider = provider
        self._metrics = metrics
        self._clock = clock

    async def call(self, operation: Operation, ask: Callable[[], Awaitable[T]]) -> T:
        """See Guard."""
        outcome, began_s = "fault", self._clock.monotonic_s()
        with self._metrics.provider_calls_in_flight.labels(self._provider, operation).track_inprogress():
            try:
                answer = await ask()
                outcome = "ok"
                return answer
            except ProviderError as error:
                outcome = error.kind
                raise
            except asyncio.CancelledError:
                outcome = "cancelled"
                raise
            finally:
                took_s = self._clock.monotonic_s() - began_s
                self._metrics.provider_call_seconds.labels(self._provider, operation).observe(took_s)
                self._metrics.provider_calls.labels(self._provider, operation, outcome).inc()
