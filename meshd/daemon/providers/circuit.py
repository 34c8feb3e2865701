"""The circuit breaker around a provider: a cloud that does not answer is left alone, and nobody waits for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from meshd.daemon.providers.breaker import Admission, Breaker
from meshd.daemon.providers.guarded import Operation
from meshd.errors import AuthFailed, ProviderError, RateLimited, Transient, Uncertain
from meshd.runtime.clock import Clock

T = TypeVar("T")
log = structlog.get_logger(__name__)

READS = frozenset({"offers", "get", "list", "check"})
NEVER_REFUSED = frozenset({"terminate", "check"})
"""Machines are given back whatever else fails; and who asks `meshctl doctor` wants the cloud's word of now."""
ELSEWHERE = frozenset({"fetch_prices", "console", "create_image", "images", "delete_image", "billed"})
"""Asked of another API than the rest, or with a permission of their own: the one tells nothing of the other."""


class Circuit:
    """Holds one provider's breaker.

    Reads that fail for no reason of their own, and refused credentials, count as faults. A launch or a termination
    does not count: it has its own way out. A rate limit is neither an answer nor a fault.
    """

    def __init__(self, provider: str, clock: Clock) -> None:
        self.provider = provider
        self.state = Breaker()
        self._clock = clock

    async def call(self, operation: Operation, ask: Callable[[], Awaitable[T]]) -> T:
        """See Guard.

        Raises:
            Transient: the breaker is open: nothing was sent.
        """
        if operation in ELSEWHERE:
            return await ask()
        admission = Admission.THROUGH
        if operation not in NEVER_REFUSED:
            now_s = self._clock.monotonic_s()
            self.state, admission = self.state.admit(now_s, may_probe=operation in READS)
        if admission is Admission.REFUSE:
            raise self._refusal(operation)
        probe = admission is Admission.PROBE
        try:
            answer = await ask()
        except ProviderError as error:
            self._told(operation, error, probe=probe)
            raise
        else:
            if operation in READS:
                self._answered()
            return answer
        finally:
            if probe and self.state.probing:
                self.state = self.state.untold()

    def _told(self, operation: Operation, error: ProviderError, *, probe: bool) -> None:
        match error:
            case RateLimited():
                return
            case AuthFailed():
                self._failed(error, probe=probe)
            case Transient() | Uncertain() if operation in READS:
                self._failed(error, probe=probe)
            case _ if operation in READS:
                self._answered()

    def _answered(self) -> None:
        if self.state.is_open:
            log.info("breaker_closed", provider=self.provider, failures=self.state.failures)
        self.state = self.state.answered()

    def _failed(self, error: ProviderError, *, probe: bool) -> None:
        was_open = self.state.is_open
        self.state = self.state.failed(str(error), self._clock.monotonic_s(), probe=probe)
        if self.state.is_open and not was_open:
            log.warning("breaker_opened", provider=self.provider, failures=self.state.failures, reason=str(error))

    def _refusal(self, operation: Operation) -> Transient:
        return Transient(
            f"not asked, since its calls fail one after another; the last: {self.state.reason}",
            provider=self.provider,
            operation=operation,
            vendor_text=self.state.reason,
            retry_after_s=max(1.0, self.state.retry_after_s(self._clock.monotonic_s())),
        )
