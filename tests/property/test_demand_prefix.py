"""The plan's promise holds for demand too: any prefix of the plan done and planned again leads to the same end.

As in `test_plan_prefix` the world is ideal, and the start is anything at all. Slurm's jobs wait for their slots, and
start when all of them are up. None ends.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from meshd.model import plan as p
from meshd.model.desired import Pool, Promise
from meshd.model.machine import HOLDS_SLOT, IN_SLURM, Machine, Phase
from meshd.model.observed import Fresh, SlurmJob, SlurmNode, SlurmView, Snapshot
from meshd.plan import planner
from meshd.provider_api import Offer
from tests.property.test_plan_prefix import MIXED_OFFERS, SLOTS, Ideal, states
from tests.tiers import bounded
from tests.unit.worlds import AWS

POOL = Pool("h100", "h100", 1, SLOTS, ("aws",), from_queue=True, promise=Promise(8, 60000, 1))
OFFERS = tuple(offer for offer in MIXED_OFFERS if offer.gpus == 1 and offer.provider == AWS)
Jobs = dict[str, tuple[str, ...]]


class IdealQueue(Ideal):
    """With a Slurm whose power saving drives the slots."""

    def __init__(
        self, machines: dict[str, Machine], running: dict[str, str], gpus: int, jobs: Jobs, sold_out: tuple[Offer, ...]
    ) -> None:
        super().__init__(machines, running, gpus, pool=POOL, offers=OFFERS, sold_out=sold_out)
        self.waiting = dict(jobs)
        self.refused: set[str] = set()

    def up(self, slot: str) -> Machine | None:
        return next(
            (
                m
                for m in self.machines.values()
                if m.slot == slot and m.phase in IN_SLURM and m.slurmd_started and not m.left_slurm
            ),
            None,
        )

    def slurm(self, seen: SlurmView) -> SlurmView:
        """What `Ideal` shows, with all slots as CLOUD nodes and the jobs that wait."""
        nodes, slots_of_jobs = {}, {slot for slots in self.waiting.values() for slot in slots}
        for index in range(1, SLOTS + 1):
            slot = f"h100-{index}"
            node = seen.nodes.get(slot, SlurmNode(slot, "192.0.2.1", frozenset()))
            states = {"CLOUD", *(node.states & {"DRAIN"})}
            held = slot in slots_of_jobs or slot in self.jobs
            states.add("MIXED" if held else "IDLE")
            if self.up(slot) is None:
                states |= {"POWERING_UP", "NOT_RESPONDING"} if held else {"POWERED_DOWN"}
            nodes[slot] = replace(node, states=frozenset(states))
        waiting = tuple(SlurmJob(job, "u", "h100", "CONFIGURING", slots) for job, slots in self.waiting.items())
        return SlurmView("24.11.5", nodes, (*seen.jobs, *waiting), power_saving=True)

    def decide(self, desired: Any, machines: Any, snapshot: Snapshot, now: Any) -> p.Plan:
        assert isinstance(snapshot.slurm, Fresh)
        view = self.slurm(snapshot.slurm.value)
        settable = {m.slot: m.tailnet_ip for m in self.machines.values() if m.phase in IN_SLURM and m.tailnet_ip}
        seen = replace(snapshot, slurm=Fresh(view, now), settable_addrs=settable)
        found = planner.plan(desired, machines, seen, now)
        for one in found.refused:
            # Its job goes back to the queue, until a time that this world never sees.
            for job in one.jobs:
                self.waiting.pop(job, None)
                self.refused.add(job)
        return found

    def do(self, step: p.Step) -> None:
        super().do(step)
        if isinstance(step, p.RequestMachine) and step.by_queue:
            name = next(m.name for m in reversed(self.machines.values()) if m.slot == step.subject)
            self.machines[name] = replace(self.machines[name], by_queue=True, for_jobs=step.for_jobs)

    def carry_out(self, steps: tuple[p.Step, ...]) -> None:
        for step in steps:
            if isinstance(step, p.RequestMachine):
                assert all(m.phase not in HOLDS_SLOT for m in self.machines.values() if m.slot == step.subject)
            self.do(step)
        self.now += _TICK
        self.agents()
        for job, slots in list(self.waiting.items()):
            if all(self.up(slot) for slot in slots):
                del self.waiting[job]
                self.jobs.update(dict.fromkeys(slots, job))


_TICK = Ideal.TICK
"""How long a step takes."""


@st.composite
def queues(draw: st.DrawFn) -> tuple[dict[str, Machine], dict[str, str], int, Jobs, tuple[Offer, ...]]:
    """Machines in any phase in two places, jobs that run on some, and jobs that wait for other slots."""
    machines, running, gpus = draw(states())
    offers = {name: draw(st.sampled_from(OFFERS)) for name in machines}
    queued = {name: draw(st.booleans()) for name in machines}
    machines = {
        name: replace(m, offer=offers[name], by_queue=queued[name], for_jobs=("99",) if queued[name] else ())
        for name, m in machines.items()
    }
    free = [f"h100-{index}" for index in range(1, SLOTS + 1) if f"h100-{index}" not in running]
    leaving = {m.slot for m in machines.values() if m.phase is Phase.DRAINING or m.removal}
    free = [slot for slot in free if slot not in leaving]
    jobs: Jobs = {}
    while free and draw(st.booleans()):
        count = draw(st.integers(1, len(free)))
        jobs[str(10 + len(jobs))], free = tuple(free[:count]), free[count:]
    sold_out = tuple(draw(st.lists(st.sampled_from(OFFERS), max_size=3, unique=True)))
    return machines, running, gpus, jobs, sold_out


@settings(max_examples=bounded(150, 6000))
@given(queues(), st.integers(0, 20), st.integers(0, 4))
def test_any_prefix_leads_to_the_same_end(
    start: tuple[dict[str, Machine], dict[str, str], int, Jobs, tuple[Offer, ...]], cut: int, rounds_cut: int
) -> None:
    machines, running, gpus, jobs, sold_out = start
    ends = []
    for rounds in (0, rounds_cut):
        world = IdealQueue(machines, running, gpus, jobs, sold_out)
        for _ in range(rounds):
            world.carry_out(world.plan().steps[:cut])
        world.end()
        assert not world.waiting, "a job still waits for nodes"
        runs = set(world.jobs.values())
        assert runs | world.refused >= jobs.keys() | set(running.values())
        assert sold_out or not world.refused, "nothing was refused"
        live = [m for m in world.machines.values() if m.phase is not Phase.GONE]
        assert all(m.phase in {Phase.READY, Phase.DRAINING} for m in live)
        ends.append((runs, len(live)))
    if not sold_out:
        assert ends[0] == ends[1]
