"""How Slurm's slots without a machine should be, and what becomes of jobs that cannot have theirs. PURE.

A free slot is `idle~` while a machine can be had for it, and `drain~` with the reason and the time of the next try
while none can. Everything follows from Slurm's states, the journal and the plan, so that a meshd that was killed goes
on where it was: a drain says by its reason that it is meshd's, a job by its AdminComment.

Measured on 22.05.8 and 24.11.5: Slurm keeps a drain~ over reconfigures and restarts. `power_down_force` brings a slot
back from any state: after ResumeTimeout (`down~`), after it was set DOWN, and from idle~ with NOT_RESPONDING, in which
Slurm gives it to no job. A resume would leave that behind. It takes up to 10 s and SuspendTimeout, and lifts the drain.

A slot that powers up and that a job has must never be drained: Slurm puts that job back into the queue, or ends it when
it may not be requeued. `power_down_asap` closes such a slot to other jobs, and the job that has it stays.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from meshd.codes import DemandCode
from meshd.model.ids import slot_name
from meshd.model.machine import HOLDS_SLOT, Machine
from meshd.model.observed import SlurmJob, SlurmNode, SlurmView
from meshd.model.plan import OpenSlots, Plan, RefusedDemand
from meshd.plaintext import plain
from meshd.plan.fitness import OURS, by_person
from meshd.plan.waiting import COMMENT, SENT_BACK, WORDS_MAX

NOBODY = f"{OURS} nobody waits for it"
"""Why a slot is closed that Slurm powers up and nobody wants: it is powered down next."""

REASON_MAX = 200

SHORT = {
    DemandCode.NO_CAPACITY: "no capacity", DemandCode.NO_OFFER: "no offer suits", DemandCode.PLACE: "no capacity",
    DemandCode.BUDGET: "the budget is used up", DemandCode.LIMIT_IN_ALL: "the limit in USD is reached",
    DemandCode.POOL_COOLING: "its machines failed", DemandCode.AUTH_KEY_DEAD: "the auth key is dead",
    DemandCode.NO_IPV4: "the tailnet has no IPv4", DemandCode.FROZEN: "frozen",
    DemandCode.RESTORED_UNLISTED: "a cloud was not listed since a restore",
}  # fmt: skip
"""Why no machine can be had, in a few words."""


@dataclass(frozen=True, slots=True)
class SendBack:
    """A job that waits for slots for which no machine can be had.

    Attributes:
        batch: it goes back to the queue. False: somebody waits at a terminal, is told, and the allocation ends.
        may_requeue: Slurm may requeue it. A job that never started loses nothing by it, so it is allowed for a moment.
        until: when it is worth trying again.
        why: no machine can be had, in a sentence.
    """

    job: str
    batch: bool
    may_requeue: bool
    until: datetime
    why: str

    @property
    def comment(self) -> str:
        """Its AdminComment, or what the person is told."""
        return plain(f"{SENT_BACK if self.batch else COMMENT}{self.why}", WORDS_MAX)


@dataclass(frozen=True, slots=True)
class SlotChanges:
    """What Slurm is to be told, in this order.

    Attributes:
        drain: by reason, the slots to drain.
        send_back: the jobs that cannot have their slots.
        unwanted: the slots to power down if no job has them after they were closed.
        power_down: the slots to bring back to idle~, whatever state they are in.
        strays: the slots that are up without a machine: likewise, when they stay so. Slurm requeues what it believes to
            run there.
        start_now: jobs that were sent back until a time that does not count any more.
        start_early: by job, its AdminComment: jobs that were sent back, and for which enough nodes are idle meanwhile.
        resume: the drains to lift.
        off_now: slots that Slurm is switching off, and behind which no machine is any more: a resume makes them idle~
            at once, without SuspendTimeout.
    """

    drain: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    send_back: tuple[SendBack, ...] = ()
    unwanted: tuple[str, ...] = ()
    power_down: tuple[str, ...] = ()
    strays: tuple[str, ...] = ()
    start_now: tuple[str, ...] = ()
    start_early: Mapping[str, str] = field(default_factory=dict)
    resume: tuple[str, ...] = ()
    off_now: tuple[str, ...] = ()

    @property
    def none(self) -> bool:
        """Whether nothing is to be done."""
        return self == _NOTHING


_NOTHING = SlotChanges()


@dataclass(frozen=True, slots=True)
class SlotPool:
    """A pool whose slots are looked at: those of it that are CLOUD nodes in Slurm."""

    name: str
    max_nodes: int
    partition: str


def slot_changes(
    pools: Sequence[SlotPool],
    machines: Collection[Machine],
    view: SlurmView,
    plan: Plan,
    gone: Mapping[str, str] | None = None,
) -> SlotChanges:
    """What Slurm is to be told now. Carrying it out once more, or a part of it, changes nothing else.

    Args:
        pools: those of the settings.
        machines: those that are not GONE.
        view: Slurm, read after the plan's snapshot or in it.
        plan: what cannot be had.
        gone: by slot, the address of its last machine, where that is GONE; of those in `silent_with_jobs`.
    """
    there = _with_machine(machines)
    found = _Changes(view, plan, gone or {})
    for pool in pools:
        nodes = _nodes_of(pool, view)
        found.look(pool, [node for node in nodes if node.name not in there])
        found.look_for_idle(pool, nodes)
    return found.made()


def silent_with_jobs(machines: Collection[Machine], view: SlurmView) -> tuple[str, ...]:
    """The CLOUD nodes without a machine that do not respond, and on which Slurm believes a job to run.

    A slurmctld that is killed has forgotten what it did since it last saved its state: that the job ended, and that its
    node was switched off. Slurm gives such a node up after SlurmdTimeout, which each reconfigure restarts.
    """
    there = _with_machine(machines)
    return tuple(
        node.name
        for node in view.nodes.values()
        if node.cloud and node.name not in there and "NOT_RESPONDING" in node.states and node.held and _is_on(node)
    )  # fmt: skip


def _with_machine(machines: Collection[Machine]) -> set[str]:
    return {m.slot for m in machines if m.phase in HOLDS_SLOT and not m.left_slurm}


class _Changes:
    """The changes so far."""

    def __init__(self, view: SlurmView, plan: Plan, gone: Mapping[str, str]) -> None:
        self._view, self._plan, self._gone = view, plan, gone
        self._refused = {slot: one for one in plan.refused for slot in one.slots if _cloud(view, slot)}
        self._drain: dict[str, list[str]] = {}
        self._power_down: list[str] = []
        self._strays: list[str] = []
        self._resume: list[str] = []
        self._off_now: list[str] = []
        self._reopened: set[str] = set()
        self._closed: list[str] = []
        self._early: dict[str, str] = {}

    def look(self, pool: SlotPool, free: Sequence[SlurmNode]) -> None:
        """Look at a pool's slots without a machine."""
        closable = []
        for node in free:
            if _drained_by_person(node, self._view):
                continue
            if is_broken(node, self._view):
                self._power_down.append(node.name)
            elif is_stray(node, self._view) or self._gone.get(node.name) == node.node_addr:
                self._strays.append(node.name)
                if node.powered_down:
                    closable.append(node)
            elif node.powering_up and _ours(node) and node.held and node.name not in self._refused:
                self._resume.append(node.name)  # Slurm gave it to a job before it was drained
            elif node.powering_up and _ours(node) and "POWER_DOWN" in node.states:
                self._closed.append(node.name)  # meshd was killed before it powered it down
            elif node.powered_down:
                closable.append(node)
                if "POWERING_DOWN" in node.states and not node.drained:
                    self._off_now.append(node.name)
        closable = [node for node in closable if not self._of_host(pool, node)]
        opened = self._plan.open_slots.get(pool.name)
        if opened is not None:
            self._open(pool, closable, opened)

    def _of_host(self, pool: SlotPool, node: SlurmNode) -> bool:
        """Open or close a free slot that belongs to a host; False for any other."""
        why = self._plan.bound_slots.get(node.name)
        if why is None:
            return False
        reason = " ".join(f"{OURS} {why}".split())[:REASON_MAX].rstrip()
        if not why and _ours(node):
            self._resume.append(node.name)
            self._reopened.add(pool.partition)
        elif why and (not node.drained or node.reason != reason):
            self._drain.setdefault(reason, []).append(node.name)
        return True

    def look_for_idle(self, pool: SlotPool, nodes: Sequence[SlurmNode]) -> None:
        """Find the jobs that wait for new machines although idle nodes would do. Others that fit come before them.

        Slurm gives a job the nodes that are up before it powers up others.
        """
        pending = (job for job in self._view.jobs if job.state == "PENDING")
        waiting = [job for job in pending if pool.partition in job.partition.split(",")]
        back = [job for job in waiting if _sent_back(job) and not (job.features or job.required_nodes)]
        if not back:
            return
        at_work = {slot for job in self._view.jobs for slot in job.nodes}
        idle = sum(
            node.up and not (node.held or node.drained or node.leaves_power or node.name in at_work) for node in nodes
        )
        if any(job.node_count <= idle for job in waiting if job.state_reason in {"Resources", "Priority"}):
            return
        for job in back:
            if 0 < job.node_count <= idle:
                idle -= job.node_count
                self._early[job.id] = job.admin_comment

    def _open(self, pool: SlotPool, closable: Sequence[SlurmNode], opened: OpenSlots) -> None:
        """Drain the idle~ slots that are too many, and resume drain~ slots. Those that are open stay open first."""
        if opened.code is None:
            lifted = [node.name for node in closable if _ours(node)]
            self._resume += lifted
            if lifted:
                self._reopened.add(pool.partition)
            return
        reason = reason_of(opened.code, opened.reason, opened.until)
        order = sorted(closable, key=lambda node: node.drained)  # stable: in the order of the slots
        self._resume += [node.name for node in order[: opened.count] if _ours(node)]
        for node in order[opened.count :]:
            if not node.drained or node.reason != reason:
                self._drain.setdefault(reason, []).append(node.name)

    def made(self) -> SlotChanges:
        """All of them."""
        start_now = tuple(_start_now(self._reopened, self._view, self._plan))
        unwanted = [slot for slot in self._plan.unwanted_slots if _cloud(self._view, slot)]
        return SlotChanges(
            drain={reason: tuple(slots) for reason, slots in self._drain.items()},
            send_back=tuple(_send_back(self._plan.refused, self._view)),
            unwanted=tuple(dict.fromkeys((*unwanted, *self._closed, *self._refused))),
            power_down=tuple(self._power_down),
            strays=tuple(self._strays),
            start_now=start_now,
            start_early={job: comment for job, comment in self._early.items() if job not in start_now},
            resume=tuple(self._resume),
            off_now=tuple(slot for slot in self._off_now if not any(slot in slots for slots in self._drain.values())),
        )


def to_close(slots: Collection[str], view: SlurmView) -> tuple[str, ...]:
    """Of slots that are not wanted, those that still power up without a job, and that a job could get."""
    return tuple(node.name for node in _for_nobody(slots, view) if not node.drained)


def unwanted_now(slots: Collection[str], view: SlurmView) -> tuple[str, ...]:
    """Of slots that were closed, those that still power up without a job: they may be powered down by force."""
    return tuple(node.name for node in _for_nobody(slots, view) if _ours(node))


def _for_nobody(slots: Collection[str], view: SlurmView) -> list[SlurmNode]:
    found = (view.nodes.get(slot) for slot in slots)
    return [
        node
        for node in found
        if node is not None and node.cloud and node.powering_up and not node.held and not view.jobs_on(node.name)
    ]


def is_broken(node: SlurmNode, view: SlurmView) -> bool:
    """Whether no job could use a free slot in this state: it is DOWN."""
    down = "DOWN" in node.states and not node.states & _GOING and not node.held
    return down and not by_person(node, view.slurm_user)


def is_stray(node: SlurmNode, view: SlurmView) -> bool:
    """Whether a free slot is in a state that passes by itself, or has to be ended when it stays.

    It is up without a machine: one that the journal lost may be about to be found again. Or it is off and
    NOT_RESPONDING: each resume leaves that for a moment, and where it stays Slurm gives the slot to no job.
    """
    if {"POWERED_DOWN", "NOT_RESPONDING"} <= node.states:
        return not node.states & (_GOING | {"DOWN"}) and not node.held
    return _is_on(node) and not node.held and not view.jobs_on(node.name)


def _is_on(node: SlurmNode) -> bool:
    """Whether Slurm takes the node for one that is up: it neither switches it on nor off, and does not have it off."""
    return not (node.powering_up or node.states & (_GOING | {"POWERED_DOWN", "DOWN"}))


_GOING = frozenset({"POWER_DOWN", "POWERING_DOWN"})
"""Slurm is switching it off already."""


def reason_of(code: DemandCode | None, reason: str, until: datetime | None) -> str:
    """The reason of a drain: in short, until when, and then the whole sentence."""
    short = SHORT[code] if code is not None else "no machine"
    when = f" until {until:%Y-%m-%d %H:%M} UTC" if until is not None else ""
    # Slurm drops a space at the end: the reason must read back as it was written.
    return " ".join(f"{OURS} {short}{when}: {reason}".split())[:REASON_MAX].rstrip()


def _ours(node: SlurmNode) -> bool:
    return node.drained and node.reason.startswith(OURS)


def _drained_by_person(node: SlurmNode, view: SlurmView) -> bool:
    return node.drained and by_person(node, view.slurm_user)


def _send_back(refused: Sequence[RefusedDemand], view: SlurmView) -> list[SendBack]:
    jobs = {job.id: job for job in view.jobs if job.configuring}
    found: dict[str, SendBack] = {}
    for one in refused:
        for job in (jobs[name] for name in one.jobs if name in jobs):
            why = reason_of(one.code, one.reason, one.until).removeprefix(f"{OURS} ")
            found[job.id] = SendBack(job.id, job.batch, job.requeue, one.until, why)
    return list(found.values())


def _start_now(reopened: set[str], view: SlurmView, plan: Plan) -> list[str]:
    """The jobs that meshd sent back to these partitions: machines can be had again.

    Somebody lifted a cooldown, or raised a limit, before the time of the next try. A job whose gang alone cannot be had
    waits for that time: the slots were open meanwhile.
    """
    refused = {name for one in plan.refused for name in one.jobs}
    return [
        job.id
        for job in view.jobs
        if _sent_back(job) and job.id not in refused and not reopened.isdisjoint(job.partition.split(","))
    ]


def _sent_back(job: SlurmJob) -> bool:
    return job.state == "PENDING" and job.state_reason == "BeginTime" and job.admin_comment.startswith(SENT_BACK)


def _cloud(view: SlurmView, slot: str) -> bool:
    node = view.nodes.get(slot)
    return node is not None and node.cloud


def _nodes_of(pool: SlotPool, view: SlurmView) -> list[SlurmNode]:
    names = (slot_name(pool.name, index) for index in range(1, pool.max_nodes + 1))
    return [node for name in names if (node := view.nodes.get(name)) is not None and node.cloud]
