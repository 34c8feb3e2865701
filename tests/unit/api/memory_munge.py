"""A rotation of the munge key as a desk in memory has it: a stage further each time that it is looked at."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from meshd.api.auth import Actor
from meshd.api.faults import Refused
from meshd.api.schema import MungeRotationRequest, MungeRotationView


class MemoryMungeRotation:
    """The two endpoints."""

    def __init__(self, now: Callable[[], datetime], actors: list[Actor]) -> None:
        self._now = now
        self._actors = actors
        self.view = MungeRotationView(at=now(), key="aaaa")

    async def munge_rotation(self) -> MungeRotationView:
        if self.view.active and not self.view.failure:
            stages = ("stage", "switch", "verify", "done")
            after = stages[stages.index(self.view.stage) + 1]
            figures = {"spread_ms": 210.0, "longest_away_ms": 205.0} if after == "done" else {}
            self.view = self.view.model_copy(update={"stage": after, "active": after != "done", **figures})
        return self.view

    async def rotate_munge_key(self, request: MungeRotationRequest, actor: Actor) -> MungeRotationView:
        if request.only_looks():
            return MungeRotationView(at=self._now(), key="aaaa", old="aaaa", steps=["make a key"])
        self._actors.append(actor)
        if request.action == "begin" and self.view.active:
            raise Refused("a rotation of the munge key is under way", "--status shows it, --abort takes it back")
        if request.action != "begin" and not self.view.active:
            raise Refused("no rotation of the munge key is under way", "--status")
        begun = {"id": "r1", "stage": "stage", "active": True, "old": "aaaa", "new": "bbbb", "by": str(actor.user)}
        changes: dict[str, dict[str, Any]] = {
            "begin": begun,
            "abort": {"stage": "aborted", "active": False, "taken_back": f"aborted by {actor.user}"},
            "waive": {"failure": ""},
        }
        self.view = self.view.model_copy(update=changes[request.action])
        return self.view
