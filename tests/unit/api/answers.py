"""Handlers of the head API whose answers a test can set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from meshd.api.auth import UNKNOWN_ACTOR, Actor
from meshd.api.endpoints import A, Endpoint, Q, Write
from meshd.api.faults import ApiFault, BadRequest, NotReady, Unknown
from meshd.api.handlers import Handlers
from meshd.api.schema import Request

F = TypeVar("F", bound=Request)


@dataclass(frozen=True)
class Call:
    endpoint: Endpoint[Any, Any]
    request: Any
    actor: Actor


class Checked(Handlers):
    """Handlers that may refuse only as the table declares. No two callers share an answer."""

    def __init__(self, inner: Handlers | None = None) -> None:
        super().__init__(revision=object)
        if inner is not None:
            self._reads, self._writes = inner._reads, inner._writes

    async def call(self, endpoint: Endpoint[Q, A], request: Q | None = None, actor: Actor = UNKNOWN_ACTOR) -> A:
        try:
            return await super().call(endpoint, request, actor)
        except ApiFault as fault:
            declared = (NotReady, *endpoint.refusals, *([BadRequest] if endpoint.request else []))
            if not isinstance(fault, declared):
                raise AssertionError(f"{endpoint.name} does not declare {fault.kind}: {fault}") from fault
            raise


@dataclass
class Answers(Checked):
    """Answers with what `give` was told, else as its handlers do.

    Attributes:
        calls: every request, in its order.
        waiting: requests that are not answered yet, by endpoint.
        writers: the user of each request that did more than look, and was not refused.
    """

    calls: list[Call] = field(default_factory=list)
    waiting: Counter[Endpoint[Any, Any]] = field(default_factory=Counter)
    writers: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._given: dict[Endpoint[Any, Any], list[Any]] = {}

    def give(self, endpoint: Endpoint[Q, A], *answers: A | Exception | Callable[[Q], A]) -> None:
        """From now on: one answer after the other, the last one for ever. A function gets the request."""
        self._given[endpoint] = list(answers)

    def asked(self, endpoint: Endpoint[F, A]) -> list[F]:
        return [call.request for call in self.calls if call.endpoint is endpoint]

    def check(self) -> None:
        """A test needs only some of the endpoints."""

    async def call(self, endpoint: Endpoint[Q, A], request: Q | None = None, actor: Actor = UNKNOWN_ACTOR) -> A:
        self.calls.append(Call(endpoint, request, actor))
        answer = await self._answer(endpoint, request, actor)
        if isinstance(endpoint, Write) and request is not None and not request.only_looks():
            self.writers.append(actor.uid)
        return answer

    async def _answer(self, endpoint: Endpoint[Q, A], request: Q | None, actor: Actor) -> A:
        given = self._given.get(endpoint)
        if given:
            answer = given.pop(0) if len(given) > 1 else given[0]
            if isinstance(answer, Exception):
                raise answer
            return answer(request) if callable(answer) else answer  # type: ignore[no-any-return]
        if endpoint not in self._reads and endpoint not in self._writes:
            raise Unknown(f"this test has no answer for {endpoint.name}", "give one")
        self.waiting[endpoint] += 1
        try:
            return await super().call(endpoint, request, actor)
        finally:
            self.waiting[endpoint] -= 1
