"""A rotation of the munge key as a desk in memory has it: a stage further each time that it is looked at."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from meshd.api.auth import Actor
from meshd.api.faults import Refused
from meshd.api.schema import (
    AbortRotationRequest,
    MungeRotationRequest,
    MungeRotationView,
    RotateMungeKeyRequest,
    WaiveRequest,
)


class MemoryMungeRotation:
    """The two endpoints."""

    def __init__(self, now: Callable[[], datetime], actors: list[Actor]) -> None:
        self._now = now
        self._actors = actors
        self.view = MungeRotationView(at=now(), key="aaaa")

    async def rotation(self) -> MungeRotationView:
        if self.view.active and not self.view.failure:
            stages = ("stage", "switch", "verify", "done")
            after = stages[stages.index(self.view.stage) + 1]
            figures = {"spread_ms": 210.0, "longest_away_ms": 205.0} if after == "done" else {}
            self.view = self.view.model_copy(update={"stage": after, "active": after != "done", **figures})
        return self.view

    async def rotate(self, request: RotateMungeKeyRequest, actor: Actor) -> MungeRotationView:
        if request.dry_run:
            return MungeRotationView(at=self._now(), key="aaaa", old="aaaa", steps=["make a key"])
        if self.view.active:
            raise Refused("a rotation of the munge key is under way", "--status shows it, --abort takes it back")
        return self._to(actor, id="r1", stage="stage", active=True, old="aaaa", new="bbbb", by=str(actor.user))

    async def abort(self, request: AbortRotationRequest, actor: Actor) -> MungeRotationView:
        self._check_active()
        return self._to(actor, stage="aborted", active=False, taken_back=f"aborted by {actor.user}")

    async def waive(self, request: WaiveRequest, actor: Actor) -> MungeRotationView:
        self._check_active()
        return self._to(actor, failure="")

    def _check_active(self) -> None:
        if not self.view.active:
            raise Refused("no rotation of the munge key is under way", "--status")

    def _to(self, actor: Actor, **changes: object) -> MungeRotationView:
        self._actors.append(actor)
        self.view = self.view.model_copy(update=changes)
        return self.view

    async def act(self, request: MungeRotationRequest, actor: Actor) -> MungeRotationView:
        raise NotImplementedError(request.action)
