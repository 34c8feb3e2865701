"""`meshctl freeze` and `thaw`, and the problem that meshd is frozen."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from meshd.api import schema as s
from meshd.api.auth import Actor
from meshd.api.faults import Refused
from meshd.codes import ProblemCode, RefusalCode
from meshd.daemon.head_api.views import freeze_view
from meshd.daemon.machines.restored import RestoreWatch
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
        restores: which clouds are waited for since an older journal was restored.
    """

    def __init__(self, freezes: Freezes, clock: Clock, wake: Callable[[], object], restores: RestoreWatch) -> None:
        self._freezes = freezes
        self._restores = restores
        self._clock = clock
        self._wake = wake

    async def freeze(self, request: s.FreezeRequest, actor: Actor) -> s.FreezeAnswer:
        """Rent nothing and end nothing from now on. A freeze that holds already stays as it is."""
        before = self._freezes.current
        freeze = self._freezes.freeze(Freeze(self._clock.now(), str(actor.user), request.reason))
        self._wake()
        return s.FreezeAnswer(frozen=True, changed=before is None, freeze=freeze_view(freeze))

    async def thaw(self, request: s.ThawRequest, actor: Actor) -> s.FreezeAnswer:
        """End the freeze; with a provider, do not wait for its listing after a restore."""
        if request.provider:
            return self._release(request.provider, actor)
        held = self._freezes.thaw(str(actor.user), self._clock.now())
        self._wake()
        return s.FreezeAnswer(frozen=False, changed=held is not None, freeze=freeze_view(held))

    def _release(self, provider: str, actor: Actor) -> s.FreezeAnswer:
        if provider not in self._restores.clouds:
            cure = f"those in the settings: {', '.join(sorted(self._restores.clouds)) or 'none'}"
            raise Refused(f"there is no cloud {provider}", cure, code=RefusalCode.NO_SUCH_PROVIDER)
        changed, freeze = self._restores.release(provider, str(actor.user)), self._freezes.current
        self._wake()
        return s.FreezeAnswer(frozen=freeze is not None, changed=changed, freeze=freeze_view(freeze))

    def problems(self) -> Iterable[s.ProblemView]:
        """That it is frozen, and the clouds that are waited for: somebody must end that."""
        yield from self._restores.problems()
        freeze = self._freezes.current
        if freeze is not None:
            text = f"nothing is rented and nothing is ended: {freeze.words}"
            yield problem(ProblemCode.FROZEN, "error", text, CURE, since=freeze.at)
