"""Slurm with power saving: jobs come, wait for nodes that power up, run, and are queued again.

What Slurm is told happens at once. It gives jobs nodes in the order in which they came: all that a job asks for, or
none. It knows no priorities, no limits and no backfill.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from meshd.errors import SlurmError
from meshd.model.ids import slot_name
from meshd.model.observed import SlurmJob, SlurmNode, SlurmView
from meshd.simulate.faults import Violation
from meshd.simulate.life import NOWHERE
from meshd.simulate.world import SimMachine, World
from meshd.slurm.job_signal import JobSignal

REQUEUED_WAITS_S = 120.0
"""So long Slurm lets a job wait that it has put back into the queue."""
SUSPEND_S = 10.0
"""SuspendTimeout."""


@dataclass
class Job:
    """A job of the queue.

    Attributes:
        count: how many nodes it asks for.
        begin_s: it is not started before.
        slots: those that it has; () while it waits.
        ends_s: when it ends; None before it runs.
        given_up_until_s: until when it was put back for lack of machines.
        comment: its AdminComment.
        batch: somebody waits at a terminal otherwise.
        partition: that it is in.
        cpus, gpus: what it asks for on each node; where both are None it has its nodes alone.
        user: whose it is.
    """

    id: str
    count: int
    run_s: float
    begin_s: float
    slots: tuple[str, ...] = ()
    ends_s: float | None = None
    given_up_until_s: float = 0.0
    comment: str = ""
    batch: bool = True
    partition: str = "h100"
    cpus: int | None = None
    gpus: int | None = None
    user: str = "u"

    @property
    def alone(self) -> bool:
        """Whether no other job may be on its nodes."""
        return self.cpus is None and self.gpus is None


@dataclass
class QueueWorld(World):
    """Slurm with CLOUD nodes, in which what it is told happens at once.

    Attributes:
        sizes: by partition, how many slots it has.
        rooms: by partition, the CPUs and GPUs of each slot; where there are none, each job has its nodes alone.
        in_order: a job does not start while an earlier one of its partition waits for nodes.
        leaving: POWER_DOWN: no new job comes, the one that is there ends first.
        off_s: POWERING_DOWN until then.
        notices: by machine id, when its cloud takes it back.
        limit_usd: a pool's, per hour.
        budget_usd: of the budget over all pools, per hour.
    """

    sizes: Mapping[str, int] = field(default_factory=dict)
    rooms: dict[str, tuple[int, int]] = field(default_factory=dict)
    in_order: bool = False
    queue: dict[str, Job] = field(default_factory=dict)
    powering: set[str] = field(default_factory=set)
    registered: set[str] = field(default_factory=set)
    down: set[str] = field(default_factory=set)
    drains: dict[str, str] = field(default_factory=dict)
    leaving: set[str] = field(default_factory=set)
    off_s: dict[str, float] = field(default_factory=dict)
    addrs: dict[str, str] = field(default_factory=dict)
    notices: dict[str, float] = field(default_factory=dict)
    limit_usd: float | None = None
    budget_usd: float | None = None
    submitted: int = 0
    give_ups: int = 0
    ran: int = 0
    holders: dict[str, list[Job]] = field(default_factory=dict)  # by slot; it follows from the jobs' slots

    def __post_init__(self) -> None:
        """Name the slots."""
        self.of_partition = {
            name: [str(slot_name(name, index)) for index in range(1, count + 1)] for name, count in self.sizes.items()
        }
        self.slots = [slot for slots in self.of_partition.values() for slot in slots]

    # -- who has what ---------------------------------------------------------------------------------------------

    def jobs_on(self, slot: str) -> list[Job]:
        """The jobs that have a slot, running or not."""
        return self.holders.get(slot, [])

    def running_on(self, slot: str) -> Job | None:
        """A job that runs on a slot."""
        return next((job for job in self.jobs_on(slot) if job.ends_s is not None), None)

    def assign(self, job: Job, slots: Iterable[str]) -> None:
        """Give a job these slots instead of those that it has."""
        for slot in job.slots:
            self.holders[slot].remove(job)
            if not self.holders[slot]:
                del self.holders[slot]
        job.slots = tuple(slots)
        for slot in job.slots:
            self.holders.setdefault(slot, []).append(job)

    def forget(self, job: Job) -> None:
        """It has ended, or somebody cancels it."""
        self.assign(job, ())
        self.queue.pop(job.id, None)

    def behind(self, slot: str) -> SimMachine | None:
        """The machine that a slot's address leads to."""
        address = self.addrs.get(slot, NOWHERE)
        if address == NOWHERE:
            return None
        return next((m for m in self.machines.values() if m.ip and m.ip == address and m.ended_s is None), None)

    # -- what Slurm shows -----------------------------------------------------------------------------------------

    def node(self, slot: str) -> SlurmNode:
        """A node as `scontrol show nodes` has it."""
        states = {"MIXED" if self.jobs_on(slot) else "IDLE", "CLOUD"}
        if slot in self.down:
            states = {"DOWN", "CLOUD", "NOT_RESPONDING"}
        elif slot in self.off_s:
            states |= {"POWERING_DOWN"}
        elif slot in self.powering:
            states |= {"POWERING_UP", "NOT_RESPONDING"}
        elif slot not in self.registered:
            states |= {"POWERED_DOWN"}
        if slot in self.leaving:
            states |= {"POWER_DOWN"}
        reason = self.drains.get(slot, "")
        return SlurmNode(
            slot, self.addrs.get(slot, NOWHERE), frozenset(states | ({"DRAIN"} if reason else set())), reason
        )

    def show(self) -> SlurmView:
        """All nodes and jobs."""
        jobs = tuple(self.job_view(job) for job in self.queue.values())
        return SlurmView("24.11.5", {slot: self.node(slot) for slot in self.slots}, jobs, power_saving=True)

    def job_view(self, job: Job) -> SlurmJob:
        """A job as squeue has it."""
        return SlurmJob(
            job.id, job.user, job.partition,
            "PENDING" if not job.slots else "RUNNING" if job.ends_s else "CONFIGURING",
            job.slots, "" if job.slots else "BeginTime" if job.begin_s > self.clock.t_s else "Resources",
            batch=job.batch, admin_comment=job.comment, node_count=job.count,
        )  # fmt: skip

    async def view(self) -> SlurmView:
        """Nodes and jobs now. Raises SlurmError."""
        if self.slurm_down:
            raise SlurmError("slurmctld does not answer")
        self.schedule()  # the world goes on between a snapshot and the step that it led to
        return self.show()

    # -- what Slurm is told ---------------------------------------------------------------------------------------

    async def drain(self, slot: str, reason: str) -> None:
        """No new jobs come."""
        await self.drain_slots([slot], reason)

    async def drain_slots(self, slots: Collection[str], reason: str) -> None:
        """No new jobs come. Raises Violation for a slot that powers up for a job."""
        self.maybe_crash()
        for slot in slots:
            if slot in self.powering and self.jobs_on(slot):
                raise Violation(f"{slot} was drained while it powers up for a job: Slurm queues the job again")
            self.drains[slot] = reason

    async def resume(self, slot: str) -> None:
        """Jobs may come again."""
        await self.resume_slots([slot])

    async def forget_reason(self, slot: str) -> None:
        """Nothing: here a resume takes the reason away."""

    async def resume_slots(self, slots: Collection[str]) -> None:
        """Jobs may come again."""
        for slot in slots:
            self.drains.pop(slot, None)
            self.off_s.pop(slot, None)
        self.maybe_crash()

    async def set_down(self, slot: str, reason: str) -> None:
        """The node is dead."""
        self.maybe_crash()
        self.lose(slot, f"{slot} set down")
        self.down.add(slot)

    async def power_down(self, slots: Collection[str], reason: str = "", *, force: bool = False) -> None:
        """Switch slots off, with `force` at once."""
        self.maybe_crash()
        for slot in slots:
            self.leaving.add(slot)
            self.drains.setdefault(slot, reason)
            if force:
                self.lose(slot, f"{slot} switched off")
                self.switch_off(slot)
            elif not self.jobs_on(slot) and slot not in self.powering:
                self.switch_off(slot)
        self.maybe_crash()

    def switch_off(self, slot: str) -> None:
        """The slot is free again after SuspendTimeout."""
        for states in (self.leaving, self.down, self.powering, self.registered):
            states.discard(slot)
        self.drains.pop(slot, None)
        self.off_s[slot] = self.clock.t_s + SUSPEND_S

    async def set_node_addrs(self, addrs: Mapping[str, str]) -> None:
        """Set the addresses of slots."""
        self.maybe_crash()
        self.addrs.update(addrs)

    async def requeue(self, job: str) -> None:
        """Put a job back. Raises Violation for one that runs, unless a cloud takes its machine back."""
        self.maybe_crash()
        found = self.queue.get(job)
        if found is None or not found.batch:
            raise SlurmError(f"job {job} has ended")
        if found.ends_s is not None and not self.is_preempted(found):
            raise Violation(f"job {job} runs, and was put back into the queue")
        self.put_back(found, self.clock.t_s + REQUEUED_WAITS_S)
        self.maybe_crash()

    async def update_job(
        self, job: str, *, wait_s: float | None = None, admin_comment: str | None = None, requeue: bool | None = None
    ) -> None:
        """Change a job that waits."""
        self.maybe_crash()
        found = self.queue.get(job)
        if found is None:
            raise SlurmError(f"job {job} has ended")
        found.comment = found.comment if admin_comment is None else admin_comment
        if wait_s is not None and not found.slots:
            self.may_wait(found, wait_s)
            found.begin_s = self.clock.t_s + wait_s

    def may_wait(self, job: Job, wait_s: float) -> None:
        """A job that cannot have its machines waits once, until the next try. Raises Violation."""
        until_s = self.clock.t_s + wait_s
        if wait_s > 0:
            if self.clock.t_s < job.given_up_until_s:
                left_s = job.given_up_until_s - self.clock.t_s
                raise Violation(f"job {job.id} was given up twice within {left_s:.0f} s")
            self.give_ups += 1
        job.given_up_until_s = until_s

    async def tell(self, job: str, message: str) -> None:
        """Show a line to who waits for the job."""
        self.maybe_crash()

    async def cancel(self, job: str) -> None:
        """End a job. Raises Violation for one that runs."""
        found = self.queue.get(job)
        if found is not None and found.ends_s is not None:
            raise Violation(f"job {job} runs, and was cancelled")
        if found is not None:
            self.forget(found)
        self.give_ups += 1

    async def own_signal(self, job: str) -> JobSignal | None:
        """No job has asked for a signal. Raises Violation where no cloud takes a machine back."""
        if not self.is_preempted(self.queue.get(job)):
            raise Violation(f"job {job} is to get a signal, and no cloud takes its machine back")
        return None

    def is_preempted(self, job: Job | None) -> bool:
        """Whether a cloud has given notice of the end of one of its machines, or of one that it had until now."""
        behind = [self.behind(slot) for slot in job.slots] if job is not None else []
        return job is None or not job.slots or any(m is None or m.id in self.notices for m in behind)

    def lose(self, slot: str, how: str) -> None:
        """The slot is no node any more, and its jobs go back to the queue. Raises Violation for one that runs."""
        machine, running = self.behind(slot), self.running_on(slot)
        if running is not None and machine is not None and machine.slurmd:
            raise Violation(f"job {running.id} was killed: {how}")
        self.clear(slot)
        self.powering.discard(slot)
        self.registered.discard(slot)

    def clear(self, slot: str) -> None:
        """Put all jobs of a slot back into the queue."""
        for job in list(self.jobs_on(slot)):
            self.put_back(job, self.clock.t_s + REQUEUED_WAITS_S)

    def put_back(self, job: Job, begin_s: float) -> None:
        """The job waits again; an allocation of somebody at a terminal ends."""
        if not job.batch:
            self.queue.pop(job.id, None)
        self.assign(job, ())
        job.ends_s, job.begin_s = None, max(job.begin_s, begin_s)

    # -- agents and clouds ----------------------------------------------------------------------------------------

    async def command(self, machine: str, verb: str, args: object, timeout_s: float) -> str:
        """Have an agent carry out a verb. Raises Violation when slurmd would stop under a job."""
        self.maybe_crash()
        if self.chance(0.05):
            return "no answer"
        found = next((m for m in self.machines.values() if m.token == machine and m.ended_s is None), None)
        if found is None:
            return "no answer"
        slot = next((s for s, address in self.addrs.items() if found.ip and address == found.ip), "")
        self.schedule()
        running = self.running_on(slot)
        if verb == "leave" and running is not None and slot in self.registered:
            raise Violation(f"slurmd stopped under job {running.id}")
        found.slurmd = verb in {"start_slurmd", "restart_slurmd"} or (found.slurmd and verb == "reload_slurmd")
        if found.slurmd and slot and slot not in self.down and slot not in self.off_s:
            self.registered.add(slot)
            self.powering.discard(slot)
        elif verb == "leave" and slot in self.registered:
            self.registered.discard(slot)
            self.down.add(slot)
            self.clear(slot)
        self.maybe_crash()
        return ""

    def _end(self, machine: SimMachine, *, by_meshd: bool) -> None:
        for slot in self.slots:
            if machine.ip and self.addrs.get(slot) == machine.ip and slot in self.registered:
                running = self.running_on(slot)
                if running is not None and machine.slurmd and by_meshd:
                    raise Violation(f"{machine.token} was ended under job {running.id}")
                self.clear(slot)
                self.registered.discard(slot)
                self.down.add(slot)
        machine.ended_s = self.clock.t_s
        machine.ended_listed_until_s = self.clock.t_s + self.rng.uniform(0, 100)
        machine.slurmd = False

    # -- time -----------------------------------------------------------------------------------------------------

    def schedule(self) -> None:
        """Slurm gives nodes to jobs: those that are up first. It starts those whose nodes are all up."""
        self.off_s = {slot: until_s for slot, until_s in self.off_s.items() if self.clock.t_s < until_s}
        for slot in [s for s in self.leaving if not self.jobs_on(s) and s not in self.powering]:
            self.switch_off(slot)
        closed = {*self.drains, *self.down, *self.leaving, *self.off_s}
        stuck: set[str] = set()
        for job in self.queue.values():
            if not job.slots and job.begin_s <= self.clock.t_s and job.partition not in stuck:
                if free := self.free_for(job, closed):
                    self.assign(job, free)
                    self.powering |= set(free) - self.registered
                elif self.in_order:
                    stuck.add(job.partition)
            if job.slots and job.ends_s is None and self.registered.issuperset(job.slots):
                job.ends_s = self.clock.t_s + job.run_s
                self.ran += 1

    def free_for(self, job: Job, closed: Collection[str]) -> list[str]:
        """The nodes that a job gets now: as many as it asks for, or none."""
        free = [s for s in self.of_partition.get(job.partition, ()) if s not in closed and self.has_room(s, job)]
        if len(free) < job.count:
            return []
        free.sort(key=lambda s: (s not in self.registered, s not in self.powering, -len(self.jobs_on(s)), s))
        return free[: job.count]

    def has_room(self, slot: str, job: Job) -> bool:
        """Whether a job fits onto a slot beside those that have it."""
        others = self.jobs_on(slot)
        if not others:
            return True
        room = self.rooms.get(job.partition)
        if room is None or job.alone or any(other.alone for other in others):
            return False
        both = [*others, job]
        return sum(one.cpus or 0 for one in both) <= room[0] and sum(one.gpus or 0 for one in both) <= room[1]

    def submit(self, count: int) -> None:
        """A job comes that asks for so many nodes."""
        self.submitted += 1
        job = Job(str(self.submitted), count, self.rng.uniform(5, 200), self.clock.t_s, batch=not self.chance(0.1))
        self.queue[job.id] = job

    def set_clock(self) -> None:
        """What was to be tried later may be tried at once then."""
        before = self.clock.shift
        super().set_clock()
        for job in self.queue.values() if self.clock.shift != before else ():
            job.given_up_until_s = 0.0

    def move_on(self, delay_s: float) -> None:
        """Let time pass, with what happens in it."""
        self.clock.t_s += delay_s
        t = self.clock.t_s
        self.set_clock()
        for job in list(self.queue.values()):
            if (job.ends_s is not None and t >= job.ends_s) or self.chance(0.02):
                self.forget(job)
        for machine in self.machines.values():
            if machine.ended_s is None and t >= machine.dies_s:
                self._end(machine, by_meshd=False)
        if self.chance(0.25):
            self.submit(self.rng.choice((1, 1, 1, 2, 3, 4)))
        self.slurm_down = self.chance(0.1)
        if self.chance(0.02):
            self.tailnet_down_until_s = t + self.rng.uniform(10, 400)
        for machine in self.machines.values():
            running = machine.offer.spot and machine.ip and machine.ended_s is None and machine.id not in self.notices
            if running and self.chance(0.02):
                self.notices[machine.id] = machine.dies_s = t + self.rng.choice((30.0, 120.0))
        self.schedule()
