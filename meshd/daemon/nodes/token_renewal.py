"""Renews node tokens: writes down what is wanted, hands out the next tokens, and ends old ones when new ones are used.

The order makes it safe against any kill. The journal knows the wanted generation before a token goes out. The agent
keeps the new token durably before it uses it. Until the head has seen it used, the old one opens as before; from then
on it opens nothing. After a restart meshd orders again what is not done.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import structlog

from meshd.api import schema as s
from meshd.api.auth import Actor
from meshd.api.faults import BadRequest, Refused, Unknown
from meshd.bootstrap.tokens import NodeCaller
from meshd.codes import EventKind, ProblemCode, RefusalCode
from meshd.daemon.agents import Asks
from meshd.daemon.controller import Controller
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.machine_store import MachineStore
from meshd.daemon.nodes.tokens import MachineTokens
from meshd.daemon.reporting import problem
from meshd.model.ids import slot_order
from meshd.model.machine import HOLDS_SLOT, IN_SLURM, Machine, Phase, Removal
from meshd.plaintext import counted
from meshd.runtime.clock import Clock
from meshd.store.join_tokens import JoinTokens
from meshd.store.node_tokens import NodeTokens, Renewal, TokenGeneration

log = structlog.get_logger(__name__)

LOOK_S = 1.0
GIVE_TIMEOUT_S = 30.0
AGAIN_S = 30.0
"""The pause before a machine that did not take its token is asked again."""
AT_ONCE = 64
POLL_SLACK_S = 15.0
"""An agent whose poll is late by more than this cannot be reached."""


@dataclass(frozen=True, slots=True)
class NodeTokenState:
    """How a machine's renewal stands.

    Attributes:
        state: `waiting`, `done`, `offline` (it gets its token when it returns), `failed`, `locked_out` or `gone`.
        reason: why it is not done; "" when it is.
    """

    machine: str
    slot: str
    generation: int
    state: str
    reason: str = ""


class NodeTokenController(Controller):
    """See the module.

    Args:
        records: the journal.
        tokens: makes them.
        agents: asks agents.
        clock: time.
        live: the settings: how long a poll is held.
    """

    name = "node_tokens"

    def __init__(
        self,
        machine_store: MachineStore,
        tokens: MachineTokens,
        agents: Asks,
        clock: Clock,
        live: LiveSettings,
    ) -> None:
        super().__init__(clock)
        self._machine_store = machine_store
        self._tokens = tokens
        self._agents = agents
        self._live = live
        self._log = NodeTokens(machine_store.journal)
        self._seen_at = (-1, -1)
        self._generations: dict[str, int] = {}
        self._failures: dict[str, tuple[str, float]] = {}
        self._free = asyncio.Semaphore(AT_ONCE)

    # -- what others ask ------------------------------------------------------------------------------------------

    @property
    def last(self) -> Renewal | None:
        """The newest renewal."""
        return self._log.last

    def generation(self, machine: str) -> int:
        """Of the token that opens something."""
        return max(self._log.of(machine).generation, self._tokens.floor(machine))

    def keep_out_of_texts(self, machine: str) -> None:
        """Have the machine's tokens blanked, also those that were given out before meshd's start."""
        now = self.generation(machine)
        self._tokens.keep_out_of_texts(machine, {now, now + 1, self._log.of(machine).wanted})
        record = self._machine_store.journal.machine(machine)
        if record is not None and record.gang:
            self._tokens.join_token(record.gang)

    def generations(self) -> dict[str, int]:
        """Of all machines that are alive; the same object while nothing has changed."""
        now = (self._machine_store.journal.revision, self._log.revision)
        if now != self._seen_at:
            names = {machine.name for machine in self._machine_store.journal.machines()}
            if names != self._generations.keys() or now[1] != self._seen_at[1]:
                self._generations = {name: self.generation(name) for name in names}
            self._seen_at = now
        return self._generations

    def proved(self, caller: NodeCaller) -> None:
        """A machine came with this token, and its device is right: an older one no longer opens anything."""
        if caller.generation <= self.generation(caller.machine):
            return
        self._tokens.raise_floor(caller.machine, caller.generation)
        before = self._log.of(caller.machine)
        now, generation = self._clock.now(), caller.generation
        token = replace(before, generation=generation, wanted=max(before.wanted, generation), renewed_at=now)
        self._log.put(token, "its node token was renewed, and the old one no longer opens anything", now)
        self._failures.pop(caller.machine, None)
        log.info("node_token_renewed", machine=caller.machine, generation=generation)

    def may_renew(self) -> list[Machine]:
        """The machines that have a node token: those that joined and are not on their way out of the cloud."""
        return [m for m in self._machine_store.journal.machines() if m.phase in IN_SLURM and m.facts is not None]

    def begin(self, machines: Sequence[Machine], by: str, *, compromised: bool) -> Renewal:
        """Begin a renewal. With `compromised` the old tokens stop at once, and the machines are given back.

        Raises:
            StoreError: it cannot be written down: nothing has begun.
        """
        now = self._clock.now()
        renewal = Renewal(secrets.token_hex(4), now, by, tuple(m.name for m in machines), compromised)
        tokens = [self._wanted(machine.name, compromised=compromised) for machine in machines]
        how = "stopped at once" if compromised else "renewed"
        self._log.begin(renewal, tokens, f"the node tokens of {len(tokens)} machines are {how}, said {by}")
        self._give_back_locked_out()
        self.wake()
        return renewal

    def states(self, renewal: Renewal) -> list[NodeTokenState]:
        """How each machine of a renewal stands."""
        return [self._state(name, renewal) for name in renewal.machines]

    # -- the loop -------------------------------------------------------------------------------------------------

    async def reconcile(self) -> float | None:
        """Hand out the tokens that are due."""
        await self.tick()
        return LOOK_S if self._log.renewing() else None

    async def tick(self) -> None:
        """Hand its token to each machine that is due and can be reached, all at once."""
        self._forget()
        self._give_back_locked_out()
        now_s = self._clock.monotonic_s()
        due = [
            token
            for token in self._log.renewing()
            if (machine := self._machine_store.journal.machine(token.machine)) is not None
            and self._reachable(machine)
            and now_s >= self._failures.get(token.machine, ("", 0.0))[1]
        ]
        await asyncio.gather(*(self._hand_over(token) for token in due))

    # -- inside ---------------------------------------------------------------------------------------------------

    async def _hand_over(self, token: TokenGeneration) -> None:
        name = token.machine
        args = {"token": self._tokens.node_token(name, token.wanted), "generation": token.wanted}
        async with self._free:
            result = await self._agents.ask(name, "node_token", args, GIVE_TIMEOUT_S)
        if self.generation(name) >= token.wanted:
            return  # it has used the token, in the call that brought this result or before
        why = f"its agent did not answer within {GIVE_TIMEOUT_S:g} s" if result is None else result.detail
        why = why or "its agent keeps the new token and has not used it yet"
        self._failures[name] = (why, self._clock.monotonic_s() + AGAIN_S)
        log.warning("node_token_not_renewed", machine=name, reason=why)

    def _wanted(self, name: str, *, compromised: bool) -> TokenGeneration:
        before, generation = self._log.of(name), self.generation(name)
        if not compromised:
            return replace(before, generation=generation, wanted=generation + 1)
        # The next generation may be on its way to the machine, and so to whoever reads its token there.
        stopped = max(before.wanted, generation + 1) + 1
        return replace(before, generation=stopped, wanted=stopped, locked_out=True)

    def _give_back_locked_out(self) -> None:
        """What follows from the journal's word that a token was stopped; also after a kill in between."""
        for token in self._log.locked_out():
            machine = self._machine_store.journal.machine(token.machine)
            if machine is None or machine.phase not in HOLDS_SLOT or machine.removed_by_user:
                continue
            reason = "its node token was stopped as compromised"
            self._tokens.raise_floor(machine.name, token.generation)
            JoinTokens(self._machine_store.journal).close(machine.name, reason, self._clock.now())
            self._machine_store.change(machine.name, EventKind.REMOVE, reason, removal=Removal.BY_USER, reason=reason)

    def _state(self, name: str, renewal: Renewal) -> NodeTokenState:
        token, machine = self._log.of(name), self._machine_store.journal.machine(name)
        slot = machine.slot if machine is not None else ""
        generation = self.generation(name)
        if machine is None or machine.phase is Phase.GONE:
            return NodeTokenState(name, slot, generation, "gone")
        if token.locked_out:
            return NodeTokenState(name, slot, generation, "locked_out", "it is given back after its jobs")
        if token.wanted <= generation:
            return NodeTokenState(name, slot, generation, "done")
        if not self._reachable(machine):
            return NodeTokenState(name, slot, generation, "offline", "it gets its token when it returns")
        if name in self._failures:
            return NodeTokenState(name, slot, generation, "failed", self._failures[name][0])
        return NodeTokenState(name, slot, generation, "waiting", "its agent is handed its token")

    def _reachable(self, machine: Machine) -> bool:
        heard = machine.heartbeat_at
        patience_s = self._live.settings.node_api.poll_hold_s + POLL_SLACK_S
        return heard is not None and (self._clock.now() - heard).total_seconds() < patience_s

    def _forget(self) -> None:
        """Generations of machines that are gone; of unknown ones they are kept, for the journal may have been lost."""
        journal = self._machine_store.journal
        gone = {
            name
            for name in self._tokens.floors
            if (machine := journal.machine(name)) is not None and machine.phase is Phase.GONE
        }
        if gone:
            self._tokens.forget(gone)
        for name in [name for name in self._failures if journal.machine(name) is None]:
            del self._failures[name]


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
