"""Puts the guards around the providers: the one place that knows which there are, and in which order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from meshd.api.schema import ProblemView
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.providers import checks, problems
from meshd.daemon.providers.bounds import Bounds
from meshd.daemon.providers.breaker import Breaker
from meshd.daemon.providers.circuit import Circuit
from meshd.daemon.providers.deadline import Deadline
from meshd.daemon.providers.guarded import Operation, guarded
from meshd.daemon.providers.meter import Meter
from meshd.daemon.providers.off import OffProvider
from meshd.daemon.reporting import Check, Reporter
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
        yield from problems.off(self._providers.values())
        yield from problems.paused(self.breakers(), self._clock.monotonic_s(), self._clock.now())

    def checks(self) -> Iterable[Check]:
        """Whether each provider takes the credential, and what it can do."""
        return checks.checks(self._providers)

    def breakers(self) -> Mapping[str, Breaker]:
        """By provider: how its breaker stands."""
        return {name: circuit.state for name, circuit in self._circuits.items()}

    def _timeout_s(self, operation: Operation) -> float:
        settings = self._live.settings
        longer_s = {"launch": settings.timing.launch_timeout_s, "fetch_prices": settings.prices.refresh_timeout_s}
        return longer_s.get(operation, settings.timing.provider_timeout_s)
