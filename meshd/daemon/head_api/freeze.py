"""`meshctl freeze` and `thaw`, and the problem that meshd is frozen."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from meshd.api import schema as s
from meshd.api.auth import Actor
from meshd.codes import ProblemCode
from meshd.daemon.head_api.views import freeze_view
from meshd.daemon.reporting import Reporter, problem
from meshd.model.freeze import Freeze
from meshd.plan.freeze import CURE
from meshd.runtime.clock import Clock
from meshd.store.freezes import Freezes


class FreezeService(Reporter):
    """Answers FREEZE and THAW.

    Args:
        freezes: the journal's.
        clock: time.
        wake: starts a tick now.
    """

    def __init__(self, freezes: Freezes, clock: Clock, wake: Callable[[], object]) -> None:
        self._freezes = freezes
        self._clock = clock
        self._wake = wake

    async def freeze(self, request: s.FreezeRequest, actor: Actor) -> s.FreezeAnswer:
        """Rent nothing and end nothing from now on. A freeze that holds already stays as it is."""
        before = self._freezes.current
        freeze = self._freezes.freeze(Freeze(self._clock.now(), str(actor.user), request.reason))
        self._wake()
        return s.FreezeAnswer(frozen=True, changed=before is None, freeze=freeze_view(freeze))

    async def thaw(self, _request: s.ThawRequest, actor: Actor) -> s.FreezeAnswer:
        """End the freeze."""
        held = self._freezes.thaw(str(actor.user), self._clock.now())
        self._wake()
        return s.FreezeAnswer(frozen=False, changed=held is not None, freeze=freeze_view(held))

    def problems(self) -> Iterable[s.ProblemView]:
        """That it is frozen: somebody must end that."""
        freeze = self._freezes.current
        if freeze is not None:
            text = f"nothing is rented and nothing is ended: {freeze.words}"
            yield problem(ProblemCode.FROZEN, "error", text, CURE, since=freeze.at)
