"""Puts the guards around the providers: the one place that knows which there are, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from meshd.config import TimingSettings
from meshd.daemon.guard.around import GuardedProvider, Operation
from meshd.daemon.guard.breaker import Breaker
from meshd.daemon.guard.circuit import Circuit
from meshd.daemon.guard.deadline import Deadline
from meshd.daemon.guard.meter import Meter
from meshd.obs.metrics import Metrics
from meshd.provider_api import Provider
from meshd.runtime.clock import Clock


class Guards:
    """Guards providers, and tells how their breakers stand.

    Args:
        timing: the settings' deadlines, asked anew for each call.
        metrics: where calls are counted.
        clock: for the breakers and durations.
    """

    def __init__(self, timing: Callable[[], TimingSettings], metrics: Metrics, clock: Clock) -> None:
        self._timing = timing
        self._metrics = metrics
        self._clock = clock
        self._circuits: dict[str, Circuit] = {}

    def around(self, provider: Provider) -> Provider:
        """The provider, guarded. What its breaker refuses is no call, so the breaker is outermost."""
        name = provider.name
        circuit = self._circuits[name] = Circuit(name, self._clock)
        meter = Meter(name, self._metrics, self._clock)
        return GuardedProvider(provider, (circuit, meter, Deadline(name, self._timeout_s)))

    def breakers(self) -> Mapping[str, Breaker]:
        """By provider: how its breaker stands."""
        return {name: circuit.state for name, circuit in self._circuits.items()}

    def _timeout_s(self, operation: Operation) -> float:
        timing = self._timing()
        return timing.launch_timeout_s if operation == "launch" else timing.provider_timeout_s
