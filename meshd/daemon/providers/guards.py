"""The guards around each provider, and their order: a circuit breaker, bounds, metrics, a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar, get_args

from meshd.api.schema import ProblemView
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.providers import report
from meshd.daemon.providers.bounds import Bounds
from meshd.daemon.providers.breaker import Breaker
from meshd.daemon.providers.circuit import Circuit
from meshd.daemon.providers.guarded import Operation, guarded
from meshd.daemon.providers.registry import OffProvider
from meshd.daemon.reporting import Check, Reporter
from meshd.errors import AuthFailed, ProviderError, QuotaExceeded, Transient, Uncertain
from meshd.obs.metrics import Metrics
from meshd.provider_api import Provider
from meshd.runtime.clock import Clock


class Guards(Reporter):
    """Guards providers, and reports how they are.

    Args:
        live: the settings, for the deadlines.
        metrics: where calls are counted.
        clock: for the breakers and durations.
    """

    def __init__(self, live: LiveSettings, metrics: Metrics, clock: Clock) -> None:
        self._live = live
        self._metrics = metrics
        self._clock = clock
        self._circuits: dict[str, Circuit] = {}
        self._providers: dict[str, Provider] = {}

    def around(self, provider: Provider) -> Provider:
        """The provider, guarded. What its breaker refuses is no call, so the breaker is outermost."""
        name = provider.name
        circuit = self._circuits[name] = Circuit(name, self._clock)
        meter = Meter(name, self._metrics, self._clock)
        return guarded(provider, (circuit, Bounds(name), meter, Deadline(name, self._timeout_s)))

    def around_all(self, providers: Mapping[str, Provider]) -> dict[str, Provider]:
        """Each of them guarded. One that is off makes no calls, and needs no guard."""
        self._providers = {
            name: provider if isinstance(provider, OffProvider) else self.around(provider)
            for name, provider in providers.items()
        }
        return self._providers

    def problems(self) -> Iterable[ProblemView]:
        """Providers that are off, or left alone for a while."""
        yield from report.off(self._providers.values())
        yield from report.paused(self.breakers(), self._clock.monotonic_s(), self._clock.now())

    def checks(self) -> Iterable[Check]:
        """Whether each provider takes the credential, and what it can do."""
        return report.checks(self._providers)

    def breakers(self) -> Mapping[str, Breaker]:
        """By provider: how its breaker stands."""
        return {name: circuit.state for name, circuit in self._circuits.items()}

    def _timeout_s(self, operation: Operation) -> float:
        settings = self._live.settings
        longer_s = {"launch": settings.timing.launch_timeout_s, "fetch_prices": settings.prices.refresh_timeout_s}
        return longer_s.get(operation, settings.timing.provider_timeout_s)


T = TypeVar("T")


class Deadline:
    """Gives a call up when its time is over.

    A launch may have had its effect by then: it is Uncertain. Every other call can be made again: it is Transient.

    Args:
        provider: its name in errors.
        timeout_s: seconds for a call of this operation, asked before each.
    """

    def __init__(self, provider: str, timeout_s: Callable[[Operation], float]) -> None:
        self._provider = provider
        self._timeout_s = timeout_s

    async def call(self, operation: Operation, ask: Callable[[], Awaitable[T]]) -> T:
        """See Guard."""
        timeout_s = self._timeout_s(operation)
        try:
            async with asyncio.timeout(timeout_s):
                return await ask()
        except TimeoutError as error:
            kind = Uncertain if operation == "launch" else Transient
            raise kind(f"no answer within {timeout_s:g} s", provider=self._provider, operation=operation) from error


ALERTED = (AuthFailed.kind, QuotaExceeded.kind)
"""Outcomes for which there is an alert."""


class Meter:
    """Keeps the books of one provider's calls. Its outcomes: ok, the error's kind, cancelled, fault (one of ours)."""

    def __init__(self, provider: str, metrics: Metrics, clock: Clock) -> None:
        self._provider = provider
        self._metrics = metrics
        self._clock = clock
        # From 0 on, so that the first refusal is an increase.
        for operation in get_args(Operation):
            for outcome in ALERTED:
                metrics.provider_calls.labels(provider, operation, outcome)

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
