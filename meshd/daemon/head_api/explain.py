"""Why a machine, a slot or a pool is as it is, from the journal and the last tick."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from meshd.api import schema as s
from meshd.api.faults import NotReady, Unknown
from meshd.codes import RefusalCode
from meshd.daemon.head_api import plan_views, views
from meshd.daemon.head_api.names import near_words, pool_of_slot
from meshd.daemon.head_api.state import HeadState
from meshd.daemon.head_api.views import health_view
from meshd.daemon.machines.controller import Tick
from meshd.daemon.observe.agent_reports import NodeLogs
from meshd.model.cooldown import CooldownKey
from meshd.model.desired import Desired, Pool, Target
from meshd.model.machine import COUNTS_AS_SUPPLY, HOLDS_SLOT, IN_SLURM, Machine, Phase
from meshd.model.observed import SlurmJob
from meshd.model.plan import RequestMachine
from meshd.plaintext import counted
from meshd.plan import explanation
from meshd.plan.fitness import is_ready, unfit
from meshd.plan.hosts import away, unsuited
from meshd.plan.paths import path_fault
from meshd.plan.placement import amount, unit_of
from meshd.plan.plan_input import ClusterView
from meshd.plan.scale import supply_gpus, units
from meshd.plan.waiting import Wait

EVENTS_MAX = 20
ATTEMPTS_MAX = 50
_JOB = re.compile(r"\d{1,10}(_\d{1,10})?")
"""The id of a job, or of a task of an array. No machine, slot or pool has such a name."""
ENDING = frozenset({Phase.TERMINATING, Phase.LOST})


@dataclass(frozen=True, slots=True)
class _Moment:
    """What is desired and what the last tick saw, at one moment."""

    desired: Desired
    tick: Tick
    at: datetime

    def target(self, pool: str) -> Target | None:
        """A pool's target; None: it has none, or there is no such pool."""
        known = self.desired.pools.get(pool)
        return self.desired.target(known) if known else None

    def doing(self, machine: Machine) -> str:
        """What a machine is doing, in one sentence."""
        cooldown = self.desired.cooldowns.get(CooldownKey.of_provider(machine.provider))
        held = cooldown if cooldown is not None and cooldown.until > self.at else None
        context = explanation.Context(
            self.desired.policy,
            views.slurm_of(self.tick.snapshot),
            held,
            self.tick.plan.held_orders.get(machine.name, ""),
            unfit(machine, self._cluster_view),
            path_fault(machine, self._cluster_view),
        )
        return explanation.doing(machine, context)

    @property
    def _cluster_view(self) -> ClusterView:
        return ClusterView.of(self.tick.snapshot, self.desired.policy, self.at)

    def _host(self, slot: str, pool: Pool) -> str:
        """Why a slot that belongs to a host has no machine; "" for any other slot."""
        owner = next((host for host in self.desired.hosts if (host.slot, host.pool) == (slot, pool.name)), None)
        if owner is None:
            return ""
        why = away(owner, self.at) or unsuited(owner, pool)
        why = why or ("it sleeps until somebody needs it" if owner.can_sleep else "it is about to be a node")
        return f"it is the slot of {owner.name}, an owned machine: {why}"

    def why_none(self, slot: str, pool: str, machines: list[Machine]) -> str:
        """Why a slot has no machine. `machines` are the pool's."""
        if pool not in self.desired.pools:
            return f"nothing is rented for it: pool {pool} is no longer in the settings"
        for step in self.tick.plan.steps:
            if isinstance(step, RequestMachine) and step.subject == slot:
                return f"a machine is about to be rented for it: {step.offer.key}"
        if why := self._host(slot, self.desired.pools[pool]):
            return why
        for refused in self.tick.plan.refused:
            if slot in refused.slots:
                return f"no machine can be had for it before {refused.until:%H:%M} UTC: {refused.reason}"
        target = self.target(pool)
        missing = target.gpus - supply_gpus(machines) if target else 0
        if self.desired.pools[pool].from_queue and missing <= 0:
            slurm = views.slurm_of(self.tick.snapshot)
            node = slurm.nodes.get(slot) if slurm else None
            if node is not None and node.drained:
                return f"no job can have it: it is drained in Slurm: {node.reason or 'without a reason'}"
            return "it is free: when Slurm gives it to a job, a machine is rented"
        if target is None:
            return f"nothing is rented for it: pool {pool} has no target (`meshctl scale --pool {pool} --gpus N`)"
        if not target.gpus:
            return f"nothing is rented for it: pool {pool} is scaled to 0"
        if missing <= 0:
            wanted = amount(target.gpus, self.desired.pools[pool])
            return f"no machine is wanted for it: the pool's other slots have the {wanted} of its target"
        held = self._held(pool)
        because = f"nothing is rented for it: {held}" if held else "other free slots come before it"
        return f"{amount(missing, self.desired.pools[pool])} of the pool missing, and {because}"

    def pool_why(self, pool: str, machines: list[Machine]) -> str:
        """How many GPUs a pool has of its target, and what holds it back. `machines` are the pool's."""
        target = self.target(pool)
        if target is None and pool in self.desired.pools and self.desired.pools[pool].from_queue:
            return self._by_queue(machines)
        if target is None:
            return f"it has no target: it is held as it is (`meshctl scale --pool {pool} --gpus N` sets one)"
        supply = [m for m in machines if m.phase in COUNTS_AS_SUPPLY and not m.removal]
        there = sum(units(m) for m in supply if m.phase is Phase.READY)
        broken = sum(units(m) for m in supply if m.phase is Phase.READY and not is_ready(m, self._cluster_view))
        wanted = amount(target.gpus, self.desired.pools[pool])
        text = f"{wanted} wanted: {there - broken} ready, {sum(map(units, supply)) - there} on their way"
        text += f", {broken} unfit" if broken else ""
        held = self._held(pool)
        return f"{text}; {held}" if held else text

    def _by_queue(self, machines: list[Machine]) -> str:
        supply = [m for m in machines if m.phase in COUNTS_AS_SUPPLY and not m.removal]
        ready = sum(m.phase is Phase.READY for m in supply)
        return f"Slurm's queue decides: {counted(ready, 'machine')} ready, {len(supply) - ready} on their way"

    def unit(self, pool: str) -> str:
        """What a pool's target counts: `GPU` or `machine`."""
        found = self.desired.pools.get(pool)
        return unit_of(found) if found else "GPU"

    def constraints(self, pool: str) -> list[str]:
        """What an offer must meet."""
        found = self.desired.pools.get(pool)
        return explanation.constraints(found, self.target(pool)) if found else []

    def next_offers(self, pool: str, machines: list[Machine]) -> list[s.AlternativeRow]:
        """The offers to try next, and why not the others; none if the pool has its target. `machines`: its own."""
        target = self.target(pool)
        ready = sum(units(m) for m in machines if m.phase is Phase.READY and not m.removal)
        if pool not in self.desired.pools or (target is not None and ready >= target.gpus):
            return []
        settled = [m for m in machines if m.phase is Phase.READY or m.removal or m.failure]
        return plan_views.alternatives([pool], (), self.tick.snapshot, self.desired, self.at, settled)

    def _held(self, pool: str) -> str:
        return "; ".join(warn.reason for warn in self.tick.plan.warnings if warn.subject == pool and warn.holds_back)


class ExplainService:
    """Answers EXPLAIN. Every answer is of one moment: the last tick, and the journal as it is now.

    Args:
        state: the journal and the last tick.
        logs: gets slurmd's log from a node's agent; None: no log is shown.
    """

    def __init__(self, state: HeadState, logs: NodeLogs | None) -> None:
        self._state = state
        self._journal = state.journal
        self._logs = logs

    async def explain(self, query: s.ExplainQuery) -> s.ExplainView:
        """What a machine, a slot or a pool is doing and why; for a machine in Slurm also its health.

        If something is wrong with the machine, its agent is asked for slurmd's log.

        Raises:
            Unknown: there is no such thing; its cure has similar names.
            NotReady: there was no tick yet.
        """
        view = self._explanation(query.subject)
        view = view.model_copy(update={"freeze": views.freeze_view(self._state.desired().freeze)})
        machine = self._journal.machine(view.machine) if view.machine else None
        if machine is None or machine.phase not in IN_SLURM:
            return view
        cluster_view = self._state.cluster_view(self._state.clock.now())
        wrong = unfit(machine, cluster_view) is not None or machine.phase is not Phase.READY
        log = await self._logs.fetch(machine.name) if wrong and self._logs is not None else None
        health = health_view(machine, self._of(machine.pool), self._state.desired(), cluster_view, log)
        return view.model_copy(update={"health": health})

    def _explanation(self, subject: str) -> s.ExplainView:
        moment = _Moment(self._state.desired(), self._state.tick(), self._state.clock.now())
        machine = self._journal.machine(subject)
        if machine is not None:
            return self._slot(subject, machine.slot, machine.pool, machine, moment)
        if subject in moment.desired.pools:
            return self._pool(moment.desired.pools[subject], moment)
        if _JOB.fullmatch(subject):
            return self._job(subject, moment)
        made = self._journal.machines_of_slot(subject, 1)
        pool = made[0].pool if made else pool_of_slot(subject, moment.desired)
        if pool is None:
            words = near_words(subject, moment.desired, self._journal.machines(), pools=True)
            raise Unknown(f"there is no machine, slot or pool {subject}", words, code=RefusalCode.NO_SUCH_MACHINE)
        return self._slot(subject, subject, pool, self._at(subject), moment)

    def _at(self, slot: str) -> Machine | None:
        """The machine of a slot: the one that holds it, or else the newest one that is still ending there."""
        there = [m for m in self._journal.machines() if m.slot == slot]
        return max(there, key=lambda m: (m.phase in HOLDS_SLOT, m.created_at), default=None)

    def _slot(self, subject: str, slot: str, pool: str, machine: Machine | None, moment: _Moment) -> s.ExplainView:
        """A slot, or one of its machines."""
        target = moment.target(pool)
        made = self._journal.machines_of_slot(slot, ATTEMPTS_MAX)
        newest = machine or (made[0] if made else None)
        attempts = explanation.attempts(made, newest.name if newest else "", target.at if target else None)
        why = moment.doing(machine) if machine else moment.why_none(slot, pool, self._of(pool))
        if machine and machine.phase is Phase.GONE and made and made[0].name != machine.name:
            why += f". Slot {slot} went on with {made[0].name}"
        why += _also_there(slot, machine, self._of(pool))
        return s.ExplainView(
            subject=subject, at=moment.at, pool=pool, slot=slot, machine=newest.name if newest else "",
            phase=machine.phase.value if machine else "", why=why, rungs=[_attempt(m) for m in attempts],
            target_gpus=target.gpus if target else 0, unit=moment.unit(pool), constraints=moment.constraints(pool),
            next_rungs=moment.next_offers(pool, self._of(pool)), events=self._events(newest),
        )  # fmt: skip

    def _pool(self, pool: Pool, moment: _Moment) -> s.ExplainView:
        """A pool: every attempt since its target was set."""
        target = moment.target(pool.name)
        since = target.at if target else None
        made = self._journal.machines_of_pool(pool.name, 4 * ATTEMPTS_MAX)
        attempts = [m for m in made if (since is not None and m.created_at >= since) or m.phase is not Phase.GONE]
        return s.ExplainView(
            subject=pool.name, at=moment.at, pool=pool.name, why=moment.pool_why(pool.name, self._of(pool.name)),
            rungs=[_attempt(m) for m in attempts[:ATTEMPTS_MAX]][::-1], target_gpus=target.gpus if target else 0,
            unit=unit_of(pool), constraints=moment.constraints(pool.name),
            next_rungs=moment.next_offers(pool.name, self._of(pool.name)),
            events=self._events_of_pool(pool.name),
            waiting=[views.waiting_row(job) for job in self._state.waiting() if job.pool == pool.name],
        )  # fmt: skip

    def _job(self, job: str, moment: _Moment) -> s.ExplainView:
        """A job: what it waits for, what was tried for it, and what stands against each offer."""
        slurm = views.slurm_of(moment.tick.snapshot)
        found = next((one for one in slurm.jobs if one.id == job), None) if slurm else None
        waits = next((one for one in self._state.waiting() if one.job == job), None)
        if slurm is None:
            raise NotReady("Slurm cannot be read now", "`meshctl doctor`")
        if found is None:
            raise Unknown(
                f"Slurm has no job {job} that waits or runs", "`squeue` shows them", code=RefusalCode.NO_SUCH_JOB
            )
        pool = waits.pool if waits else self._pool_of(found, moment)
        made = [m for m in self._journal.machines_of_pool(pool, 4 * ATTEMPTS_MAX) if job in m.for_jobs] if pool else []
        machines = self._of(pool)
        return s.ExplainView(
            subject=job, job=job, at=moment.at, pool=pool, why=waits.text if waits else _not_for_machines(found),
            rungs=[_attempt(m) for m in made[:ATTEMPTS_MAX]][::-1], unit=moment.unit(pool),
            waiting=[views.waiting_row(waits)] if waits else [],
            constraints=moment.constraints(pool) if waits else [],
            next_rungs=moment.next_offers(pool, machines) if waits and waits.wait is Wait.REFUSED else [],
        )  # fmt: skip

    @staticmethod
    def _pool_of(job: SlurmJob, moment: _Moment) -> str:
        """The pool of a job's nodes; "" when it has none of meshd's."""
        pools = (pool_of_slot(slot, moment.desired) for slot in job.nodes)
        return next((pool for pool in pools if pool is not None), "")

    def _of(self, pool: str) -> list[Machine]:
        return [m for m in self._journal.machines() if m.pool == pool]

    def _events(self, machine: Machine | None) -> list[s.EventRow]:
        if machine is None:
            return []
        return [views.event_row(event, machine) for event in self._journal.events(-1, EVENTS_MAX, machine.name)]

    def _events_of_pool(self, pool: str) -> list[s.EventRow]:
        events = self._journal.events_of_pool(pool, EVENTS_MAX)
        return [
            views.event_row(event, self._journal.machine(event.machine) if event.machine else None) for event in events
        ]


def _not_for_machines(job: SlurmJob) -> str:
    """What a job does that waits for no machine of meshd."""
    if job.state == "PENDING":
        why = f": Slurm says {job.state_reason}" if job.state_reason else ""
        return f"it waits, but not for machines of meshd{why} (`scontrol show job {job.id}`)"
    return f"it is {job.state} on {', '.join(job.nodes[:8]) or 'no node'}"


def _also_there(slot: str, machine: Machine | None, machines: list[Machine]) -> str:
    """The former machines of a slot that their cloud has not ended yet."""
    others = sorted(m.name for m in machines if m.slot == slot and m.phase in ENDING and m is not machine)
    return f". Still being ended there: {', '.join(others)}" if others else ""


def _attempt(machine: Machine) -> s.AttemptRow:
    return s.AttemptRow(
        at=machine.launch_called_at or machine.created_at, machine=machine.name, offer=machine.offer.key,
        provider=machine.provider, usd_per_hour=machine.usd_per_hour, outcome=explanation.outcome(machine),
        words=explanation.words(machine),
    )  # fmt: skip
