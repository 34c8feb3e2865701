"""Which permissions a credential lacks, found out by calls that cost and change nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from meshd.errors import AuthFailed
from meshd.provider_api import ProviderName
from providers._reads import all_of


@dataclass(frozen=True, slots=True)
class Probe:
    """A call that succeeds only with a permission.

    Attributes:
        permission: the vendor's name of what the call needs.
        call: makes it; what it returns is of no interest.
    """

    permission: str
    call: Callable[[], Awaitable[object]]


async def lacking(probes: Iterable[Probe], named: Callable[[AuthFailed, str], str]) -> list[str]:
    """Make all calls and return the permissions that are missing, each once, in order.

    Args:
        probes: the calls.
        named: from a refusal and the probe's permission the one that is missing, since a call may need several; "" when
            the refusal is about the credential as a whole.

    Raises:
        ProviderError: a call failed otherwise, or the credential as a whole is refused.
    """

    async def ask(probe: Probe) -> str:
        try:
            await probe.call()
        except AuthFailed as error:
            missing = named(error, probe.permission)
            if not missing:
                raise
            return missing
        return ""

    return sorted({missing for missing in await all_of(ask(probe) for probe in probes) if missing})


def must_lack_nothing(provider: ProviderName, missing: Iterable[str], who: str, notes: Sequence[str] = ()) -> None:
    """All permissions are there.

    Raises:
        AuthFailed: some are not: the text names each.
    """
    names = sorted(set(missing))
    if names:
        text = "; ".join([f"{who} may not: {', '.join(names)}", *notes])
        raise AuthFailed(text, provider=provider, operation="check")
