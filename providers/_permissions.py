"""Finding missing permissions of a credential, by calls that cost and change nothing."""

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
        permission: the vendor's name of the permission.
        call: makes the call; its result is ignored.
    """

    permission: str
    call: Callable[[], Awaitable[object]]


async def missing_permissions(probes: Iterable[Probe], named: Callable[[AuthFailed, str], str]) -> list[str]:
    """Make all calls and return the missing permissions, sorted, each once.

    Args:
        probes: the calls.
        named: returns the missing permission for a refusal and the probe's permission, since a call may need several;
            "" when the credential as a whole is refused.

    Raises:
        ProviderError: a call failed for another reason, or the credential as a whole is refused.
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


def require_none_missing(provider: ProviderName, missing: Iterable[str], who: str, notes: Sequence[str] = ()) -> None:
    """Fail when permissions are missing.

    Raises:
        AuthFailed: the text names each of them.
    """
    names = sorted(set(missing))
    if names:
        text = "; ".join([f"{who} may not: {', '.join(names)}", *notes])
        raise AuthFailed(text, provider=provider, operation="check")
