"""What people ask about node tokens: that they are renewed, and how that stands."""

from __future__ import annotations

from collections.abc import Iterable

from meshd.api import schema as s
from meshd.api.auth import Actor
from meshd.api.faults import BadRequest, Refused, Unknown
from meshd.codes import ProblemCode, RefusalCode
from meshd.daemon.nodes.token_renewal import NodeTokenController
from meshd.daemon.reporting import problem
from meshd.model.ids import slot_order
from meshd.model.machine import Machine
from meshd.plaintext import counted
from meshd.runtime.clock import Clock


class NodeTokenService:
    """See meshd.api.endpoints for what each method promises."""

    def __init__(self, node_tokens: NodeTokenController, clock: Clock) -> None:
        self._node_tokens = node_tokens
        self._clock = clock

    async def renewal(self) -> s.TokenRenewalView:
        """The last renewal."""
        renewal = self._node_tokens.last
        if renewal is None:
            return s.TokenRenewalView(at=self._clock.now())
        rows = [
            s.TokenNodeRow(
                machine=one.machine, slot=one.slot, generation=one.generation, state=one.state, reason=one.reason
            )
            for one in sorted(self._node_tokens.states(renewal), key=lambda one: slot_order(one.slot))
        ]
        return s.TokenRenewalView(
            at=self._clock.now(), id=renewal.id, active=any(row.state == "waiting" for row in rows),
            started_at=renewal.started_at, by=renewal.by, compromised=renewal.compromised, nodes=rows,
        )  # fmt: skip

    async def renew(self, request: s.TokenRenewalRequest, actor: Actor) -> s.TokenRenewalView:
        """Begin a renewal, unless it is a dry run."""
        machines = self._chosen(request.machines)
        if request.compromised and not request.machines:
            raise BadRequest(
                "--compromised gives the machines back: say which",
                "name them with --node, e.g. --node 'h100-[1-4]'",
                code=RefusalCode.MACHINE_NEEDED,
            )
        if request.dry_run:
            return self._preview(machines, compromised=request.compromised)
        self._node_tokens.begin(machines, str(actor.user), compromised=request.compromised)
        return await self.renewal()

    def problems(self) -> Iterable[s.ProblemView]:
        """Nodes that do not take their token."""
        renewal = self._node_tokens.last
        failed = [one for one in self._node_tokens.states(renewal) if one.state == "failed"] if renewal else []
        for one in failed:
            text = f"{one.slot} does not take its new node token: {one.reason}"
            cure = (
                f"meshd asks again; an agent of an older version never can: `meshctl remove {one.machine}` replaces it"
            )
            yield problem(ProblemCode.NODE_TOKEN_NOT_TAKEN, "warning", text, cure, machine=one.machine)

    def _chosen(self, asked: tuple[str, ...]) -> list[Machine]:
        found = self._node_tokens.may_renew()
        if not asked:
            if not found:
                raise Refused("no machine has a node token", "see `meshctl nodes`", code=RefusalCode.NO_SUCH_MACHINE)
            return found
        by_any: dict[str, Machine] = {one.slot: one for one in found}
        by_any.update({one.name: one for one in found})
        unknown = [name for name in asked if name not in by_any]
        if unknown:
            raise Unknown(
                f"there is no machine or slot {', '.join(unknown)} that has joined",
                "see `meshctl nodes`",
                code=RefusalCode.NO_SUCH_MACHINE,
            )
        return list({by_any[name].name: by_any[name] for name in asked}.values())

    def _preview(self, machines: list[Machine], *, compromised: bool) -> s.TokenRenewalView:
        count = counted(len(machines), "machine")
        if compromised:
            steps = [
                f"stop the node tokens of {count} at once: their agents are locked out",
                "give the machines back after their jobs; their pools rent others",
            ]
        else:
            steps = [
                f"write down the next generation for {count}",
                "hand each agent its new token over its own connection; one that is off gets it when it returns",
                "end each old token with the first use of the new one",
            ]
        rows = [
            s.TokenNodeRow(
                machine=one.name, slot=one.slot, generation=self._node_tokens.generation(one.name), state="waiting"
            )
            for one in sorted(machines, key=lambda one: slot_order(one.slot))
        ]
        return s.TokenRenewalView(at=self._clock.now(), compromised=compromised, nodes=rows, steps=steps)
