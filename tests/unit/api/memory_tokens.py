"""A renewal of node tokens as a desk in memory has it: a node further each time that it is looked at."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from meshd.api.auth import Actor
from meshd.api.schema import TokenNodeRow, TokenRenewalRequest, TokenRenewalView


class MemoryTokens:
    """The two endpoints."""

    def __init__(self, now: Callable[[], datetime], actors: list[Actor]) -> None:
        self._now = now
        self._actors = actors
        self.view = TokenRenewalView(at=now())
        self.asked: list[TokenRenewalRequest] = []
        #: What becomes of the nodes that are waited for, one at each look.
        self.ends = ["done", "done"]

    async def renewal(self) -> TokenRenewalView:
        waiting = [row for row in self.view.nodes if row.state == "waiting"]
        if waiting and self.ends:
            state = self.ends.pop(0)
            rows = [row.model_copy(update={"state": state}) if row is waiting[0] else row for row in self.view.nodes]
            active = any(row.state == "waiting" for row in rows)
            self.view = self.view.model_copy(update={"nodes": rows, "active": active})
        return self.view

    async def renew(self, request: TokenRenewalRequest, actor: Actor) -> TokenRenewalView:
        self.asked.append(request)
        names = request.machines or ("h100-1", "h100-2")
        rows = [TokenNodeRow(machine=f"lab-{name}-x", slot=name, state="waiting") for name in names]
        if request.only_looks():
            return TokenRenewalView(at=self._now(), nodes=rows, steps=["hand each agent its new token"])
        self._actors.append(actor)
        self.view = TokenRenewalView(
            at=self._now(), id="t1", active=True, by=str(actor.user), compromised=request.compromised, nodes=rows
        )
        return self.view
