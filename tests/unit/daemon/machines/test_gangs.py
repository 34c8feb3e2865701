"""One create call for a gang: what becomes of it becomes of all its machines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from meshd.errors import AuthFailed, NoCapacity, RateLimited, Uncertain
from meshd.gang_id import gang_machines
from meshd.model.cooldown import CooldownKey
from meshd.model.machine import Machine, Phase, Removal
from meshd.model.plan import AdoptOrphan, Launch, RequestMachine
from meshd.provider_api import (
    CLUSTER_TAG,
    GANG_TAG,
    GangRequest,
    Instance,
    InstanceState,
    LaunchRequest,
)
from tests.unit.daemon.small import Cloud, GangCloud, Small
from tests.unit.worlds import OFFER


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[Small]:
    world = Small(tmp_path)
    world.cloud = world.providers["aws"] = GangCloud()
    yield world
    await world.executor.aclose(1)
    world.journal.close()


def requested(small: Small, *slots: int, gang: str = "h100-1", by_queue: bool = False) -> list[Machine]:
    """Machines as a plan has them requested."""
    steps = [RequestMachine(f"h100-{n}", "wanted", "h100", OFFER, by_queue=by_queue, gang=gang) for n in slots]
    small.executor.request(steps)
    return small.journal.machines()


async def ordered(small: Small, machines: Sequence[Machine]) -> list[Machine]:
    """The same machines after the call that rents them."""
    small.executor.begin(Launch(machines[0].name, "wanted", tuple(m.name for m in machines[1:])))
    await small.settle()
    return [small.get(machine.name) for machine in machines]


def cloud(small: Small) -> GangCloud:
    assert isinstance(small.cloud, GangCloud)
    return small.cloud


async def test_machines_of_a_gang_have_one_ending_and_its_id(small: Small) -> None:
    machines = requested(small, 1, 2, 3, 7)
    assert {m.gang for m in machines} == {machines[0].gang}
    assert gang_machines(machines[0].gang) == tuple(m.name for m in machines)
    (single,) = requested(small, 9, gang="")[4:]
    assert single.gang == ""


async def test_one_call_makes_all(small: Small) -> None:
    machines = await ordered(small, requested(small, 1, 2, 3))
    (call,) = cloud(small).gangs
    assert call.tokens == tuple(m.name for m in machines)
    assert call.tags == {CLUSTER_TAG: "lab", GANG_TAG: machines[0].gang}
    assert {(m.phase, m.instance_id == f"i-{m.name}", m.launch_attempts) for m in machines} == {
        (Phase.BOOTING, True, 1)
    }
    assert cloud(small).launched == []


async def test_a_refusal_is_one_cooldown_and_the_end_of_all(small: Small) -> None:
    cloud(small).errors = [NoCapacity("sold out")]
    machines = await ordered(small, requested(small, 1, 2, 3, by_queue=True))
    assert {(m.phase, m.refusal, m.instance_id) for m in machines} == {(Phase.GONE, "no_capacity", "")}
    cooldown = small.journal.last_cooldown(CooldownKey.of_offer(OFFER))
    assert cooldown is not None
    assert cooldown.strikes == 1
    assert (cooldown.until - small.clock.now()).total_seconds() == 300


async def test_a_targets_gang_that_is_refused_cools_the_offer_for_a_moment_only(small: Small) -> None:
    cloud(small).errors = [NoCapacity("sold out")]
    await ordered(small, requested(small, 1, 2, 3))
    cooldown = small.journal.last_cooldown(CooldownKey.of_offer(OFFER))
    assert cooldown is not None
    assert (cooldown.until - small.clock.now()).total_seconds() == 30


@pytest.mark.parametrize("error", [RateLimited("slow down"), RateLimited("slow down", retry_after_s=7.0)])
async def test_a_rate_limit_puts_all_back_into_the_queue(small: Small, error: RateLimited) -> None:
    cloud(small).errors = [error]
    before = requested(small, 1, 2, 3)
    machines = await ordered(small, before)
    assert {(m.phase, m.launch_attempts) for m in machines} == {(Phase.REQUESTED, 0)}
    assert [m.gang for m in machines] == [m.gang for m in before]


async def test_an_unclear_answer_is_unclear_for_all_and_the_same_call_settles_it(small: Small) -> None:
    cloud(small).errors = [Uncertain("cut")]
    machines = await ordered(small, requested(small, 1, 2, 3))
    assert {(m.phase, m.create_unclear_at is not None) for m in machines} == {(Phase.LAUNCHING, True)}
    machines = await ordered(small, machines)
    assert {m.phase for m in machines} == {Phase.BOOTING}
    first, second = cloud(small).gangs
    assert first == second


async def test_the_call_of_a_gang_of_which_one_was_found_is_the_same_call(small: Small) -> None:
    cloud(small).errors = [Uncertain("cut")]
    machines = await ordered(small, requested(small, 1, 2, 3))
    small.machine_store.move(machines[1].name, Phase.BOOTING, "its cloud lists it", instance_id="i-listed")
    rest = await ordered(small, [machines[0], machines[2]])
    assert {m.phase for m in rest} == {Phase.BOOTING}
    first, second = cloud(small).gangs
    assert first == second, "else a cloud would make a second gang"
    assert small.get(machines[1].name).instance_id == "i-listed"


async def test_a_refusal_of_the_repeated_call_leaves_all_unclear(small: Small) -> None:
    cloud(small).errors = [Uncertain("cut"), AuthFailed("no more")]
    machines = await ordered(small, requested(small, 1, 2))
    machines = await ordered(small, machines)
    assert {(m.phase, m.refusal) for m in machines} == {(Phase.LAUNCHING, "auth_failed")}


async def test_an_answer_without_some_of_the_machines_is_unclear(small: Small) -> None:
    made = cloud(small).launch_gang

    async def a_part(request: GangRequest) -> Sequence[Instance]:
        return (await made(request))[:2]

    cloud(small).launch_gang = a_part  # type: ignore[method-assign]
    machines = await ordered(small, requested(small, 1, 2, 3))
    assert {(m.phase, m.create_unclear_at is not None) for m in machines} == {(Phase.LAUNCHING, True)}


async def test_an_answer_with_one_instance_under_two_names_is_unclear(small: Small) -> None:
    made = cloud(small).launch_gang

    async def doubled(request: GangRequest) -> Sequence[Instance]:
        first, *others, last = await made(request)
        return [first, *others, replace(last, id=first.id)]

    cloud(small).launch_gang = doubled  # type: ignore[method-assign]
    machines = await ordered(small, requested(small, 1, 2, 3))
    assert {(m.phase, m.instance_id) for m in machines} == {(Phase.LAUNCHING, "")}, "ending one would end two"


@pytest.mark.parametrize("gone", [False, True])
async def test_an_answer_with_another_machines_instance_is_unclear(small: Small, *, gone: bool) -> None:
    (other,) = await ordered(small, requested(small, 9, gang=""))
    for phase in (Phase.TERMINATING, Phase.GONE) if gone else ():
        small.machine_store.move(other.name, phase, "it has ended")
    made = cloud(small).launch_gang

    async def anothers(request: GangRequest) -> Sequence[Instance]:
        return [replace(one, id=other.instance_id) if n == 0 else one for n, one in enumerate(await made(request))]

    cloud(small).launch_gang = anothers  # type: ignore[method-assign]
    machines = await ordered(small, requested(small, 1, 2, 3, gang="h100-1")[-3:])
    assert {(m.phase, m.create_unclear_at is not None) for m in machines} == {(Phase.LAUNCHING, True)}


@pytest.mark.parametrize("token", ["lab-h100-7-zzzzzz", ""])
async def test_the_answer_to_a_single_call_may_lack_the_name_but_has_no_other(small: Small, token: str) -> None:
    made = small.cloud.launch

    async def renamed(request: LaunchRequest) -> Instance:
        return replace(await made(request), token=token)

    small.cloud.launch = renamed  # type: ignore[method-assign]
    (one,) = await ordered(small, requested(small, 1, gang=""))
    assert one.phase is (Phase.LAUNCHING if token else Phase.BOOTING)


async def test_a_gang_that_loses_a_machine_before_its_call_is_another_gang(small: Small) -> None:
    machines = requested(small, 1, 2, 3)
    small.machine_store.change(machines[1].name, "remove", "said root", removal=Removal.SCALE_DOWN)  # type: ignore[arg-type]
    after = await ordered(small, machines)
    assert [m.phase for m in after] == [Phase.BOOTING, Phase.GONE, Phase.BOOTING]
    (call,) = cloud(small).gangs
    assert call.tokens == (machines[0].name, machines[2].name)
    assert call.id == after[0].gang == after[2].gang != machines[0].gang


async def test_what_is_left_of_a_gang_is_ordered_as_one_machine(small: Small) -> None:
    machines = requested(small, 1, 2)
    small.machine_store.move(machines[1].name, Phase.GONE, "no longer needed")
    (one,) = await ordered(small, machines[:1])
    assert (one.phase, one.gang) == (Phase.BOOTING, "")
    assert [request.token for request in cloud(small).launched] == [one.name]


async def test_a_provider_that_cannot_rents_them_one_by_one(small: Small) -> None:
    machines = requested(small, 1, 2, 3)
    small.cloud = small.providers["aws"] = Cloud()
    after = await ordered(small, machines)
    assert {(m.phase, m.gang) for m in after} == {(Phase.BOOTING, "")}
    assert [request.token for request in small.cloud.launched] == [m.name for m in machines]


async def test_all_machines_of_a_call_in_flight_are_busy(small: Small) -> None:
    machines = requested(small, 1, 2, 3)
    small.executor.begin(Launch(machines[0].name, "wanted", tuple(m.name for m in machines[1:])))
    assert {m.name for m in machines} <= small.executor.busy
    assert small.executor.in_flight == 1
    await small.settle()
    assert not small.executor.busy


async def test_a_crash_between_the_journal_and_the_call_leaves_the_same_call_to_repeat(small: Small) -> None:
    class Killed(BaseException):
        pass

    async def killed(request: GangRequest) -> Sequence[Instance]:
        raise Killed

    kept, cloud(small).launch_gang = cloud(small).launch_gang, killed  # type: ignore[method-assign]
    machines = requested(small, 1, 2, 3)
    with pytest.raises(Killed):
        await small.cloud_steps.launch(Launch(machines[0].name, "wanted", tuple(m.name for m in machines[1:])))
    machines = [small.get(m.name) for m in machines]
    assert {(m.phase, m.instance_id) for m in machines} == {(Phase.LAUNCHING, "")}
    cloud(small).launch_gang = kept  # type: ignore[method-assign]
    after = await ordered(small, machines)
    assert {m.phase for m in after} == {Phase.BOOTING}
    assert gang_machines(after[0].gang) == tuple(m.name for m in machines)


async def test_no_machine_is_found_again_into_a_slot_that_has_one_by_now(small: Small) -> None:
    (holder,) = await ordered(small, requested(small, 1, gang=""))
    found = Instance("aws", "i-late", "lab-h100-1-zzzzzz", InstanceState.RUNNING, "r1", "g.1")
    await small.cloud_steps.adopt_orphan(AdoptOrphan(found.token, "ours", found, OFFER, "h100", "h100-1"))
    assert [machine.name for machine in small.journal.machines()] == [holder.name]
