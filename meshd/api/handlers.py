"""Which function answers which endpoint. The types of an endpoint and of its handler must agree."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast, overload

from meshd.api.auth import UNKNOWN_ACTOR, Actor
from meshd.api.endpoints import CALLER, ENDPOINTS, A, Endpoint, Q, R, Read, ReadByMembers, Write
from meshd.api.schema import Document


class Handlers:
    """One handler for each endpoint of the table but CALLER, which the server answers itself.

    Args:
        revision: changes with what the answers of the shared endpoints depend on.
    """

    def __init__(self, revision: Callable[[], object] = lambda: None) -> None:
        self._revision = revision
        self._written = 0
        self._reads: dict[Endpoint[Any, Any], Callable[..., Awaitable[Document]]] = {}
        self._writes: dict[Endpoint[Any, Any], Callable[[Any, Actor], Awaitable[Document]]] = {}

    @overload
    def read(self, endpoint: Read[None, A] | ReadByMembers[None, A], handler: Callable[[], Awaitable[A]]) -> None: ...

    @overload
    def read(self, endpoint: Read[R, A] | ReadByMembers[R, A], handler: Callable[[R], Awaitable[A]]) -> None: ...

    def read(self, endpoint: Endpoint[Any, A], handler: Callable[..., Awaitable[A]]) -> None:
        """Set the handler of an endpoint that changes nothing."""
        self._reads[endpoint] = handler

    def write(self, endpoint: Write[R, A], handler: Callable[[R, Actor], Awaitable[A]]) -> None:
        """Set the handler of an endpoint that changes something.

        It is called only for actors that may write, or with a request that only looks.
        """
        self._writes[endpoint] = handler

    @property
    def revision(self) -> object:
        """Changes with what the answers of the shared endpoints depend on, and after each write."""
        return self._written, self._revision()

    def check(self) -> None:
        """Raise ValueError for endpoints of the table that have no handler."""
        missing = [e.name for e in ENDPOINTS if e is not CALLER and e not in self._reads and e not in self._writes]
        if missing:
            raise ValueError(f"no handler for {', '.join(missing)}")

    async def call(self, endpoint: Endpoint[Q, A], request: Q | None = None, actor: Actor = UNKNOWN_ACTOR) -> A:
        """Have a request answered. The caller has checked that the actor may.

        Args:
            endpoint: one of the table.
            request: None for an endpoint without parameters.
            actor: who asks; a Read needs to know nothing of it.
        """
        if endpoint in self._writes:
            try:
                return cast("A", await self._writes[endpoint](request, actor))
            finally:
                self._written += 1
        handler = self._reads[endpoint]
        return cast("A", await (handler() if request is None else handler(request)))
