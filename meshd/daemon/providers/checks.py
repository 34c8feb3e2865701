"""Whether each cloud takes meshd's credential, and what it can do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from meshd.api.schema import CheckRow
from meshd.codes import CheckName, ProblemCode
from meshd.daemon.providers import host_trust
from meshd.daemon.reporting import Check, fail, ok, warn
from meshd.errors import AuthFailed, ProviderOff, RateLimited, Transient, Uncertain
from meshd.plan import provider_capabilities
from meshd.provider_api import Provider


def checks(providers: Mapping[str, Provider]) -> Iterable[Check]:
    """A check of each provider by itself, and one of all."""

    async def trust() -> CheckRow:
        return host_trust.check(providers)

    yield Check(CheckName.HOST_TRUST, trust)
    for name, provider in sorted(providers.items()):
        yield Check(CheckName.PROVIDER, partial(check, provider), about=name)


async def check(provider: Provider) -> CheckRow:
    """The row of one provider. Raises ProviderError for what no credential or waiting can mend."""
    name = f"{CheckName.PROVIDER} {provider.name}"
    try:
        can = provider.capabilities
        text = f"{await provider.check()}; {provider_capabilities.description(can)}"
        if not can.tun:
            why = f"{text}; {provider_capabilities.NO_TUN}, and none is rented"
            return warn(name, ProblemCode.PROVIDER_WITHOUT_TUN, why, provider_capabilities.no_tun_cure(provider.name))
        return ok(name, text)
    except ProviderOff as error:
        return fail(name, ProblemCode.PROVIDER_OFF, error.text, error.cure)
    except AuthFailed as error:
        where = f"/etc/meshd/credentials/{provider.name}"
        cure = f"a permission: docs/providers.md lists all; a credential: put another into {where}, then "
        return fail(name, ProblemCode.PROVIDER_REFUSES, str(error), f"{cure}`systemctl restart meshd`")
    except (Transient, Uncertain, RateLimited) as error:
        cure = f"see {provider.name}'s status page; meshd asks again by itself"
        return fail(name, ProblemCode.PROVIDER_UNREADABLE, str(error), cure)
