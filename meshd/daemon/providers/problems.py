"""Providers that meshd cannot use, or leaves alone for a while. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from meshd.api.schema import ProblemView
from meshd.codes import ProblemCode
from meshd.daemon.providers.breaker import Breaker
from meshd.daemon.providers.off import OffProvider
from meshd.daemon.reporting import problem
from meshd.model.machine import Machine, Phase
from meshd.model.observed import Snapshot
from meshd.plaintext import counted
from meshd.provider_api import Provider


def off(providers: Iterable[Provider]) -> Iterable[ProblemView]:
    """Providers that are enabled and cannot be used."""
    for provider in providers:
        if isinstance(provider, OffProvider):
            text = f"{provider.error.text}; meshd keeps its machines and cannot end them"
            yield problem(ProblemCode.PROVIDER_OFF, "error", text, provider.error.cure)


def paused(breakers: Mapping[str, Breaker], monotonic_s: float, now: datetime) -> Iterable[ProblemView]:
    """Clouds that meshd leaves alone for a while, since their calls fail."""
    for provider, breaker in sorted(breakers.items()):
        if breaker.is_open:
            wait_s = breaker.retry_after_s(monotonic_s)
            again = f"in {wait_s:.0f} s" if wait_s else "now"
            yield problem(
                ProblemCode.PROVIDER_PAUSED,
                "error",
                f"{provider} is left alone after {breaker.failures} failed calls, and asked again {again}; the last: "
                f"{breaker.reason}",
                f"`meshctl doctor` asks {provider} at once, and goes on with it when it answers; meshd still gives "
                "machines there back",
                since=now - timedelta(seconds=max(0.0, monotonic_s - breaker.first_opened_at_s)),
            )


def not_enabled(machines: Iterable[Machine], snapshot: Snapshot) -> Iterable[ProblemView]:
    """Machines of providers that are not enabled: nobody looks after them."""
    unwatched: dict[str, list[Machine]] = {}
    for machine in machines:
        if machine.provider not in snapshot.instances and machine.phase is not Phase.REQUESTED:
            unwatched.setdefault(machine.provider, []).append(machine)
    for provider, found in sorted(unwatched.items()):
        usd = sum(machine.usd_per_hour for machine in found)
        text = f"{counted(len(found), 'machine')} of {provider} at {usd:.2f} USD/h in all: {provider} is not enabled, "
        yield problem(
            ProblemCode.PROVIDER_NOT_ENABLED,
            "error",
            f"{text}so meshd can neither see nor end them",
            f"set providers.{provider}.enabled = true, then `systemctl restart meshd`, until they are gone",
        )
