"""The auth key's rotation of a desk in memory: a stage further with each tick and each look, one node may be away."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from meshd.api.auth import Actor
from meshd.api.faults import Refused, Unknown
from meshd.api.schema import (
    AbortRotationRequest,
    KeyRow,
    NewcomerRow,
    RotateKeyRequest,
    RotationNodeRow,
    RotationView,
    WaiveRequest,
)

WAY = ("mint", "prove", "switch", "distribute", "hold", "revoke", "done")
BACK = ("rollback", "discard", "aborted")


class MemoryRotation:
    """The four endpoints."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self.now = now
        self.key = KeyRow(id="kOLD", sha256="0" * 12, minted=True)
        self.current = RotationView(at=now(), in_use=self.key)
        self.away = False
        self.stuck = False
        self.refused = ""

    def tick(self) -> None:
        seen = self.current
        if not seen.active or self.stuck:
            return
        way = BACK if seen.stage in BACK or self.refused else WAY
        if self.refused and seen.stage not in BACK:
            self._to("discard", taken_back=self.refused)
            return
        if seen.stage == "hold" and any(node.state == "pending" for node in seen.nodes):
            return
        stage = way[way.index(seen.stage) + 1]
        nodes = seen.nodes
        if stage == "distribute":
            nodes = [self._node("a100-1", "stored"), self._node("a100-2", "pending" if self.away else "stored")]
        if stage == "hold":
            nodes = [n.model_copy(update={"state": "confirmed"}) if n.state == "stored" else n for n in nodes]
        ended = stage in {"done", "aborted"}
        if stage == "done":
            self.key = KeyRow(id="kNEW", sha256="1" * 12, minted=True)
        self._to(stage, nodes=nodes, active=not ended, ended_at=self.now() if ended else None)

    def _node(self, slot: str, state: str) -> RotationNodeRow:
        reason = "its agent cannot be reached" if state == "pending" else ""
        return RotationNodeRow(machine=f"lab-{slot}-k7q2mz", slot=slot, state=state, since=self.now(), reason=reason)

    def _to(self, stage: str, **changes: object) -> None:
        changed = {"stage": stage, "at": self.now(), "in_use": self.key, **changes}
        self.current = self.current.model_copy(update=changed)

    async def rotation(self) -> RotationView:
        self.tick()
        return self.current

    async def rotate(self, request: RotateKeyRequest, actor: Actor) -> RotationView:
        if self.current.active:
            raise Refused("a rotation is under way", "see `meshctl rotate-key --status`")
        base = RotationView(at=self.now(), in_use=self.key)
        if request.dry_run:
            return base.model_copy(update={"steps": ["mint a key like kOLD", "give it to 2 nodes"]})
        newcomer = NewcomerRow(device_id="n9", hostname="stranger", address="100.64.0.9", created=self.now())
        self.current = base.model_copy(
            update={
                "id": "20261128-120000-abcd", "stage": "mint", "active": True, "started_at": self.now(),
                "by": actor.user, "reason": "asked for", "old": self.key, "new": KeyRow(id="kNEW", sha256="1" * 12),
                "newcomers": [newcomer] if request.compromised else [],
            }
        )  # fmt: skip
        return self.current

    async def abort(self, request: AbortRotationRequest, actor: Actor) -> RotationView:
        if not self.current.active:
            raise Refused("no rotation of the auth key is active", "`meshctl rotate-key` begins one")
        self._to("rollback", taken_back=f"aborted by {actor.user}")
        return self.current

    async def waive(self, request: WaiveRequest, actor: Actor) -> RotationView:
        if request.machine not in {node.slot for node in self.current.nodes}:
            raise Unknown(f"the rotation does not wait for {request.machine}", "see `meshctl rotate-key --status`")
        nodes = [
            n.model_copy(update={"state": "waived"}) if n.slot == request.machine else n for n in self.current.nodes
        ]
        self._to(self.current.stage, nodes=nodes)
        return self.current
