"""What the daemon reports of providers: their credentials, those it cannot use, and hosts that strangers own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial

from meshd.api.schema import CheckRow, ProblemView
from meshd.codes import CheckName, ProblemCode
from meshd.daemon.providers.breaker import Breaker
from meshd.daemon.providers.registry import OffProvider
from meshd.daemon.reporting import Check, fail, ok, problem, warn
from meshd.errors import AuthFailed, ProviderOff, RateLimited, Transient, Uncertain
from meshd.model.machine import Machine, Phase
from meshd.model.observed import Snapshot
from meshd.plaintext import counted
from meshd.plan import provider_capabilities
from meshd.provider_api import Provider


def checks(providers: Mapping[str, Provider]) -> Iterable[Check]:
    """A check of each provider by itself, and one of all."""

    async def trust() -> CheckRow:
        return host_trust(providers)

    yield Check(CheckName.HOST_TRUST, trust)
    for name, provider in sorted(providers.items()):
        yield Check(CheckName.PROVIDER, partial(check, provider), about=name)


async def check(provider: Provider) -> CheckRow:
    """The row of one provider. Raises ProviderError for what no credential or waiting can mend."""
    name = f"{CheckName.PROVIDER} {provider.name}"
    try:
        can = provider.capabilities
        return ok(name, f"{await provider.check()}; {provider_capabilities.description(can)}")
    except ProviderOff as error:
        return fail(name, ProblemCode.PROVIDER_OFF, error.text, error.cure)
    except AuthFailed as error:
        where = f"/etc/meshd/credentials/{provider.name}"
        cure = f"a permission: docs/providers.md lists all; a credential: put another into {where}, then "
        return fail(name, ProblemCode.PROVIDER_REFUSES, str(error), f"{cure}`systemctl restart meshd`")
    except (Transient, Uncertain, RateLimited) as error:
        cure = f"see {provider.name}'s status page; meshd asks again by itself"
        return fail(name, ProblemCode.PROVIDER_UNREADABLE, str(error), cure)


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
                f"{provider} is paused after {breaker.failures} failed calls; next try {again}; the last: "
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


NAME = CheckName.HOST_TRUST


def host_trust(providers: Mapping[str, Provider]) -> CheckRow:
    """The row of `meshctl doctor`."""
    foreign = sorted(name for name, provider in providers.items() if provider.capabilities.foreign_hosts)
    if not foreign:
        return ok(NAME, "every provider rents machines on hosts of its own")
    text = (
        f"{', '.join(foreign)} may rent on hosts of strangers, who can read the munge key there: with it they are root "
        "on every node of the cluster"
    )
    cure = "rent there only what strangers may have, or leave such hosts out: docs/providers.md names the setting"
    return warn(NAME, ProblemCode.PROVIDER_HOSTS_FOREIGN, text, cure)
