"""While meshd is frozen no plan rents or ends anything, from any state; after the thaw all comes to the same end."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from meshd.model import plan as p
from meshd.model.budget import Budget, BudgetLimits, Spent
from meshd.model.desired import Desired, Policy, Pool, Target
from meshd.model.freeze import Freeze
from meshd.model.machine import Machine, Phase, Removal, UnfitReason
from meshd.model.observed import Fresh, Observation, SlurmJob, SlurmView, Snapshot, Unavailable
from meshd.plan.planner import plan
from meshd.provider_api import Instance, InstanceId, InstanceState
from tests.property.test_plan_prefix import Ideal, states
from tests.tiers import bounded
from tests.unit.worlds import AWS, NOW, ago, instance, machine, node, peer, slurm, snapshot, tailnet

FREEZE = Freeze(ago(60), "root", "the cloud lies")
RENTS_OR_ENDS = (p.RequestMachine, p.Launch, p.Remove, p.Replace, p.Terminate, p.TerminateOrphan, p.RemoveDevice)
SLOTS = 5


def is_held(step: p.Step) -> bool:
    return isinstance(step, RENTS_OR_ENDS) or (isinstance(step, p.Leave) and not step.dead)


@st.composite
def anything(draw: st.DrawFn) -> tuple[Desired, list[Machine], Snapshot]:
    """Machines in any phase with anything noted, clouds and Slurm that say anything, a budget that is used up."""
    machines, nodes, listed, jobs = [], [], [], []
    queue = draw(st.booleans())
    for index in range(1, SLOTS + 1):
        phase = draw(st.sampled_from([None, *Phase]))
        if phase is None:
            continue
        m = machine(phase, index=index, age_s=draw(st.sampled_from([10.0, 1000.0, 5000.0])))
        m = replace(
            m,
            removal=draw(st.sampled_from([None, None, *Removal])),
            failure=draw(st.sampled_from(["", "", "broken"])),
            by_queue=queue and draw(st.booleans()),
            heartbeat_at=draw(st.sampled_from([m.heartbeat_at, ago(4000)])),
            left_slurm=draw(st.booleans()),
            create_unclear_at=draw(st.sampled_from([None, ago(3500)])),
            terminate_called_at=draw(st.sampled_from([None, ago(1000)])),
            unfit_reason=draw(st.sampled_from([None, UnfitReason.DOWN])),
            baking=draw(st.integers(0, 9)) == 0,
        )
        m = replace(m, unfit_since=ago(2000) if m.unfit_reason else None)
        machines.append(m)
        if draw(st.booleans()):
            listed.append(instance(m, draw(st.sampled_from(list(InstanceState)))))
        state = draw(
            st.sampled_from(["IDLE", "ALLOCATED", "DOWN", "IDLE+DRAIN", "IDLE+POWERING_UP", "IDLE+POWERED_DOWN"])
        )
        cloud = {"CLOUD"} if queue else set()
        nodes.append(node(m, *state.split("+"), *cloud))
        if draw(st.booleans()):
            jobs.append(SlurmJob(str(index), "u", "h100", draw(st.sampled_from(["RUNNING", "CONFIGURING"])), (m.slot,)))
    if draw(st.booleans()):  # one that nobody knows
        listed.append(Instance(AWS, InstanceId("i-x"), "lab-h100-5-zzzzzz", InstanceState.RUNNING, "r1", "g.1"))
    seen: Observation[SlurmView] = Unavailable("down", ago(100))
    if draw(st.booleans()):
        view = slurm(*nodes)
        seen = Fresh(replace(view, jobs=tuple(jobs), power_saving=queue), NOW, ago(9000))
    offers = snapshot(
        instances={"aws": Fresh(tuple(listed), NOW)}, slurm=seen,
        tailnet=Fresh(tailnet(*(peer(m) for m in machines if m.tailnet_ip)), NOW, ago(9000)),
    )  # fmt: skip
    budget = Budget()
    if draw(st.booleans()):
        budget = Budget({"": BudgetLimits(usd_per_day=1, kill_at=1.0)}, {"": Spent(9_000_000, 9_000_000)}, at=NOW)
    pool = Pool("h100", "h100", 1, SLOTS, ("aws",), from_queue=queue, min_gpus=draw(st.integers(0, 2)))
    target = Target("h100", draw(st.integers(0, 9)), at=NOW)
    policy = Policy(may_change_devices=True, idempotent_launch=frozenset(draw(st.sampled_from([{"aws"}, set()]))))
    return Desired("lab", {"h100": pool}, {"h100": target}, policy, budget=budget), machines, offers


@settings(max_examples=bounded(300, 20_000))
@given(anything())
def test_no_plan_rents_or_ends_anything_while_meshd_is_frozen(start: tuple[Desired, list[Machine], Snapshot]) -> None:
    desired, machines, seen = start
    first_seen = {(AWS, "i-x"): ago(9000)}
    found = plan(replace(desired, freeze=FREEZE), machines, seen, NOW, first_seen=first_seen)
    assert not [step for step in found.steps if is_held(step)]
    for one in found.open_slots.values():
        assert one.count == 0 and FREEZE.words in one.reason and one.until is None
    for refused in found.refused:
        assert refused.code == "frozen" and FREEZE.reason in refused.reason
    free = plan(desired, machines, seen, NOW, first_seen=first_seen)
    known = {(type(s), s.subject) for s in free.steps if not is_held(s)}
    for step in found.steps:
        moved = isinstance(step, p.Move) and step.to is Phase.GONE
        behind = any(is_held(one) and one.subject == step.subject for one in free.steps)
        assert (type(step), step.subject) in known or moved or behind, "a freeze lets nothing new happen"


@settings(max_examples=bounded(60, 3000))
@given(states(), st.integers(0, 6), st.integers(1, 6))
def test_after_a_thaw_all_comes_to_the_same_end(
    start: tuple[dict[str, Machine], dict[str, str], int], before: int, frozen: int
) -> None:
    whole, held = Ideal(*start), Ideal(*start)
    for _ in range(before):
        held.carry_out(held.plan().steps)
    held.desired = replace(held.desired, freeze=FREEZE)
    for _ in range(frozen):
        live = {name for name, m in held.machines.items() if m.instance_id and m.phase is not Phase.GONE}
        steps = held.plan().steps
        assert not [step for step in steps if is_held(step)]
        held.carry_out(steps)
        gone = {name for name in live if held.machines[name].phase is Phase.GONE}
        assert all(held.machines[name].terminate_called_at is not None for name in gone), "ended before the freeze"
    held.desired = replace(held.desired, freeze=None)
    assert whole.end() == held.end()


def test_what_is_ordered_joins_and_what_is_not_ordered_is_taken_back() -> None:
    coming, waiting, unclear = (
        machine(Phase.BOOTING),
        machine(Phase.REQUESTED, index=2),
        machine(Phase.LAUNCHING, index=3),
    )
    desired = Desired("lab", {"h100": Pool("h100", "h100", 1, 5, ("aws",))}, {"h100": Target("h100", 0)}, freeze=FREEZE)
    seen = snapshot(
        instances={"aws": Fresh((instance(coming), instance(unclear, id=InstanceId("i-found"))), NOW)},
        tailnet=Fresh(tailnet(replace(peer(coming), tailnet_ip="100.64.0.9")), NOW),
    )
    found = plan(desired, [coming, waiting, unclear], seen, NOW)
    assert [(type(s), s.subject) for s in found.steps] == [
        (p.Move, waiting.name), (p.RecordPeer, coming.name), (p.Adopt, unclear.name)
    ]  # fmt: skip
    assert timedelta() < NOW - FREEZE.at and FREEZE.words in found.steps[0].reason
