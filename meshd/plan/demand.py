"""What Slurm demands of a pool: the slots that it powers up, and the jobs behind them. PURE.

Everything is read from the states of nodes and jobs, so a call of ResumeProgram that is lost or doubled changes
nothing. A slot is demanded while Slurm powers it up and a CONFIGURING job has it, or a person has powered it up. Slurm
itself decides which jobs may have nodes: one that it holds back for a dependency, a limit or its priority has none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from meshd.model.desired import Pool
from meshd.model.ids import job_order, slot_index
from meshd.model.machine import COUNTS_AS_SUPPLY, HOLDS_SLOT, Machine, Phase, Removal
from meshd.model.observed import SlurmNode, SlurmView
from meshd.plan.fitness import OURS
from meshd.plan.plan_input import PlanInput
from meshd.plan.room import taken_slots

_LEAVES = frozenset({"DOWN", "POWER_DOWN", "POWERING_DOWN"})
"""Slurm takes the slot back already, although it powered it up."""


@dataclass(frozen=True, slots=True)
class Gang:
    """The slots of one job, or of jobs that share slots. Their machines are in one place, unless the pool spreads.

    Attributes:
        jobs: their ids, in order; () for a slot that a person powered up.
        slots: those that lack a machine, in order.
        soon: those of them that have to wait, since a machine is still to leave the slot.
        machines: those that the jobs have already, and that stay.
        moving: nodes that the jobs have, and that leave since the gang goes elsewhere or their cloud takes them back.
            The jobs have to let them go.
    """

    jobs: tuple[str, ...]
    slots: tuple[str, ...]
    soon: frozenset[str]
    machines: tuple[Machine, ...]
    moving: tuple[Machine, ...] = ()

    @property
    def words(self) -> str:
        """Who waits, for people: "job 12", "jobs 12, 13", "h100-3, which somebody powered up"."""
        if not self.jobs:
            return f"{', '.join(self.slots)}, which somebody powered up"
        shown = ", ".join(self.jobs[:5]) + (f" and {len(self.jobs) - 5} more" if len(self.jobs) > 5 else "")
        return f"job {shown}" if len(self.jobs) == 1 else f"jobs {shown}"


@dataclass(frozen=True, slots=True)
class Demand:
    """What Slurm demands of one pool.

    Attributes:
        gangs: those that lack machines, in the order of their first job.
        slots: all slots that are demanded, with a machine or without.
        kept: machines that were to be given back, and whose slot is demanded again.
        cancelled: machines on their way to a slot that no job has any more.
        unwanted: slots that Slurm powers up and nobody waits for.
        closed: slots that a person drained and that nobody waits for: no machine is rented for them.
    """

    gangs: tuple[Gang, ...] = ()
    slots: frozenset[str] = frozenset()
    kept: tuple[Machine, ...] = ()
    cancelled: tuple[Machine, ...] = ()
    unwanted: tuple[str, ...] = ()
    closed: frozenset[str] = frozenset()

    @property
    def lacking(self) -> frozenset[str]:
        """The demanded slots without a machine that stays."""
        return frozenset(slot for gang in self.gangs for slot in gang.slots)


NONE = Demand()


def demand_of(pool: Pool, machines: Sequence[Machine], given: PlanInput, by_person: Collection[str] = ()) -> Demand:
    """What Slurm demands of this pool; nothing while Slurm cannot be read, or when a person drives the pool.

    Args:
        pool: the pool.
        machines: those of the pool that are not GONE.
        given: the observed state.
        by_person: the slots that a person powered up (`powered_up`).
    """
    if given.slurm is None or not pool.from_queue:
        return NONE
    at: dict[str, Machine] = {m.slot: m for m in machines if _stays(m)}
    back: dict[str, Machine] = {m.slot: m for m in machines if m.slot not in at and _can_come_back(m)}
    powering_up = [node for node in given.slurm.nodes.values() if node.powering_up and _in(pool, node.name)]
    waited_for = [node for node in powering_up if given.configuring_jobs.get(node.name)]
    people = [
        node
        for node in powering_up
        if not (given.configuring_jobs.get(node.name) or node.drained or node.states & _LEAVES)
        and (node.name in by_person or _of_person(at.get(node.name)))
    ]
    demanded = frozenset(node.name for node in (*waited_for, *people))
    kept = tuple(machine for slot, machine in sorted(back.items()) if slot in demanded)
    at.update({machine.slot: machine for machine in kept})
    lacking = [slot for slot in demanded if slot not in at]
    lost = tuple(m for m in at.values() if m.slot not in demanded and _is_cancelled(m, given))
    unwanted = [node.name for node in powering_up if node.name not in demanded and _nobody(node, at, lost)]
    closed = (
        node.name
        for node in given.slurm.nodes.values()
        if node.drained and not node.reason.startswith(OURS) and node.name not in demanded and _in(pool, node.name)
    )
    return Demand(
        gangs=_gangs(pool, lacking, at, machines, given),
        slots=demanded,
        kept=kept,
        cancelled=tuple(sorted(lost, key=lambda m: (-m.usd_per_hour, m.name))),
        unwanted=tuple(sorted(unwanted, key=lambda slot: slot_index(pool.name, slot) or 0)),
        closed=frozenset(closed),
    )


def _in(pool: Pool, slot: str) -> bool:
    index = slot_index(pool.name, slot)
    return index is not None and 1 <= index <= pool.max_nodes


def _stays(machine: Machine) -> bool:
    """Whether it is, or will be, the node of its slot. A node that its cloud takes back is one until then."""
    taken_back = machine.preempted_at is not None and machine.phase is not Phase.READY
    return machine.phase in COUNTS_AS_SUPPLY and not (machine.removal or machine.failure or taken_back)


def _moves_as_node(machine: Machine, given: PlanInput) -> bool:
    """Whether it leaves with its gang, or its cloud takes it back, and a job could still start there."""
    leaves = machine.removal is Removal.GANG_MOVED or machine.preempted_at is not None
    return leaves and machine.phase in HOLDS_SLOT and not (machine.left_slurm or given.idle(machine))


def _can_come_back(machine: Machine) -> bool:
    """Whether it was to be given back, and Slurm still has it as a machine that is on its way."""
    wanted_less = machine.removal is Removal.SCALE_DOWN and not machine.failure
    on_its_way = machine.phase in COUNTS_AS_SUPPLY and machine.phase is not Phase.READY
    return wanted_less and on_its_way and machine.preempted_at is None


def _of_person(machine: Machine | None) -> bool:
    """Whether a machine was rented for a slot that a person had powered up."""
    return machine is not None and machine.by_queue and not machine.for_jobs


def _is_cancelled(machine: Machine, given: PlanInput) -> bool:
    """Whether it was rented for jobs that have left its slot, and has not become a node yet.

    Slurm was read after the machine was requested. A node that is up stays: its idle time decides.
    """
    if not (machine.by_queue and machine.for_jobs) or machine.phase is Phase.READY:
        return False
    node = given.slurm.nodes.get(machine.slot) if given.slurm is not None else None
    seen_since = given.slurm_at is not None and given.slurm_at > machine.created_at
    has_job = given.jobs.get(machine.slot) or given.configuring_jobs.get(machine.slot)
    return seen_since and not has_job and node is not None and not node.up


def _nobody(node: SlurmNode, at: Mapping[str, Machine], lost: Collection[Machine]) -> bool:
    """Whether no machine that stays is on its way to this slot, which Slurm still powers up."""
    machine = at.get(node.name)
    return not node.states & _LEAVES and (machine is None or machine in lost)


def _gangs(
    pool: Pool, lacking: Sequence[str], at: Mapping[str, Machine], machines: Sequence[Machine], given: PlanInput
) -> tuple[Gang, ...]:
    """The slots without a machine, grouped by the jobs that wait for them."""
    if not lacking:
        return ()
    taken = taken_slots(machines, given)
    groups = _Groups()
    slots_of: dict[str, list[str]] = {}
    for slot, jobs in given.configuring_jobs.items():
        if _in(pool, slot):
            for job in jobs:
                slots_of.setdefault(job, []).append(slot)
            machine = at.get(slot)
            if machine is None or machine.phase is not Phase.READY:
                groups.join(jobs)
    together: dict[str, list[str]] = {}
    alone: list[Gang] = []
    for slot in sorted(lacking, key=lambda slot: slot_index(pool.name, slot) or 0):
        jobs = given.configuring_jobs.get(slot, ())
        if jobs:
            together.setdefault(groups.of(jobs[0]), []).append(slot)
        else:
            alone.append(Gang((), (slot,), frozenset({slot} & taken), ()))
    found = []
    for group, slots in together.items():
        members = groups.members(group)
        theirs = {slot for job in members for slot in slots_of.get(job, ())}
        there = tuple(at[slot] for slot in sorted(theirs) if slot in at)
        soon = frozenset(taken.intersection(slots))
        moving = tuple(m for m in machines if m.slot in theirs and _moves_as_node(m, given))
        found.append(Gang(tuple(sorted(members, key=job_order)), tuple(slots), soon, there, moving))
    return (*sorted(found, key=lambda gang: job_order(gang.jobs[0])), *alone)


@dataclass(slots=True)
class _Groups:
    """Jobs that share a slot, and so belong together (union-find)."""

    _above: dict[str, str] = field(default_factory=dict)
    _members: dict[str, list[str]] | None = None

    def of(self, job: str) -> str:
        """The job that stands for the group."""
        above = self._above.get(job, job)
        while above != self._above.get(above, above):
            above = self._above[above]
        self._above[job] = above
        return above

    def join(self, jobs: Sequence[str]) -> None:
        """Count these jobs as one group."""
        first = self.of(jobs[0])
        for job in jobs:
            self._above[self.of(job)] = first

    def members(self, group: str) -> list[str]:
        """The jobs of a group."""
        if self._members is None:
            self._members = {}
            for job in list(self._above):
                self._members.setdefault(self.of(job), []).append(job)
        return self._members.get(group, [group])


@dataclass(frozen=True, slots=True)
class PoweredUp:
    """Which slots Slurm powered up for a person, as far as was seen. Slurm does not say it of a slot.

    Attributes:
        by_person: by slot that is powering up: whether it began without a job.
        looked: whether Slurm was read before.
    """

    by_person: Mapping[str, bool] = field(default_factory=dict)
    looked: bool = False

    @property
    def slots(self) -> frozenset[str]:
        """Those that a person powered up."""
        return frozenset(slot for slot, by_person in self.by_person.items() if by_person)


def powered_up(before: PoweredUp, view: SlurmView | None) -> PoweredUp:
    """What is known of the slots that power up, after one more look at Slurm.

    A slot that begins to power up without a job was powered up by a person. One whose job is cancelled meanwhile was
    not. In the first look after meshd's start they cannot be told apart, and count as cancelled: a machine that was
    rented for a person is known from the journal.

    Args:
        before: the last result.
        view: Slurm now; None while it cannot be read.
    """
    if view is None:
        return before
    with_job = {slot for job in view.jobs for slot in job.nodes}
    found = {
        name: name not in with_job and before.by_person.get(name, before.looked)
        for name, node in view.nodes.items()
        if node.powering_up
    }
    return PoweredUp(found, looked=True)
