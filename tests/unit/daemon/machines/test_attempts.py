"""Down the ladder: what a failed machine teaches is journaled before it is replaced."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from meshd.model import plan as p
from meshd.model.cooldown import CooldownCause, CooldownKey
from meshd.model.desired import Target
from meshd.model.machine import FailureCause, Machine, Phase
from meshd.model.observed import Fresh
from meshd.provider_api import Instance, InstanceState, Offer
from tests.unit.daemon.small import Small
from tests.unit.worlds import NOW, OFFER, instance, snapshot

OTHER = replace(OFFER, zone="r1b", usd_per_hour=3.0)
CAPACITY = "Server.InsufficientInstanceCapacity: none left"


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[Small]:
    world = Small(tmp_path)
    yield world
    await world.executor.aclose(1)
    world.journal.close()


async def tick(
    small: Small, *listed: Instance, pause_s: float = 1.0, offers: tuple[Offer, ...] = (OFFER, OTHER)
) -> None:
    small.clock.t_s += pause_s
    now = small.clock.now()
    small.seen = snapshot(instances={"aws": Fresh(listed, now)}, offers={"aws": Fresh(offers, now)})
    small.reconciler.tick()
    await small.settle()


def booting(small: Small) -> Machine:
    (found,) = [m for m in small.journal.machines() if m.phase is Phase.BOOTING]
    return found


async def rented(small: Small) -> Machine:
    """One machine, just accepted."""
    await tick(small)
    await tick(small)
    return booting(small)


async def test_a_listing_that_tells_the_end_blocks_the_offer_at_once(small: Small) -> None:
    small.journal.set_target(Target("h100", 1), "", NOW)
    first = await rented(small)
    await tick(small, instance(first, InstanceState.GONE, reason=CAPACITY), pause_s=20)
    cooldown = small.journal.cooldowns(small.clock.now())[CooldownKey.of_offer(OFFER)]
    assert (cooldown.cause, cooldown.reason) == (CooldownCause.ENDED, CAPACITY)
    assert (small.get(first.name).failure_cause, small.get(first.name).vendor_words) == (
        FailureCause.NO_CAPACITY, CAPACITY,
    )  # fmt: skip
    await tick(small, instance(first, InstanceState.GONE))
    await tick(small, instance(first, InstanceState.GONE))
    assert [request.offer for request in small.cloud.launched] == [OFFER, OTHER]


async def test_a_cloud_that_only_tells_when_asked(small: Small) -> None:
    small.journal.set_target(Target("h100", 1), "", NOW)
    first = await rented(small)
    small.cloud.known = {first.instance_id: instance(first, InstanceState.GONE, reason="QUOTA_EXCEEDED: 0 of H100")}
    await tick(small, pause_s=20)
    assert small.cloud.asked == [first.instance_id]
    assert small.get(first.name).failure_cause is FailureCause.QUOTA
    assert small.journal.cooldowns(small.clock.now())[CooldownKey.of_offer(OFFER)].reason == "QUOTA_EXCEEDED: 0 of H100"


async def test_an_answer_that_settles_nothing_ends_nothing(small: Small) -> None:
    small.journal.set_target(Target("h100", 1), "", NOW)
    first = await rented(small)
    await tick(small, pause_s=20)
    assert small.cloud.asked == [first.instance_id], "it says that it does not know it"
    assert booting(small).name == first.name
    small.cloud.known = {first.instance_id: instance(first, InstanceState.BOOTING)}
    await tick(small, pause_s=130)
    assert booting(small).name == first.name, "the cloud says that it is there, whatever the listing lacks"


async def test_an_order_that_was_taken_again_is_not_forgiven_before_it_is_ready(small: Small) -> None:
    small.journal.set_target(Target("h100", 1), "", NOW)
    waits = []
    for _ in range(3):
        m = await rented(small)
        await tick(small, instance(m, InstanceState.GONE, reason=CAPACITY), pause_s=20, offers=(OFFER,))
        cooldown = small.journal.cooldowns(small.clock.now())[CooldownKey.of_offer(OFFER)]
        waits.append(round((cooldown.until - small.clock.now()).total_seconds()))
        small.machine_store.move(m.name, Phase.GONE, "gone")
        small.clock.t_s += waits[-1]
    assert waits == [300, 600, 1200]


async def test_a_broken_image_blocks_its_region_for_the_pool(small: Small) -> None:
    small.journal.set_target(Target("h100", 1), "", NOW)
    far = replace(OFFER, region="r2", zone="r2a", usd_per_hour=9.0)
    first = await rented(small)
    gone = instance(first, InstanceState.GONE, reason="Client.InvalidSnapshot.NotFound")
    await tick(small, gone, pause_s=20)
    assert set(small.journal.cooldowns(small.clock.now())) == {CooldownKey("pool:h100@aws/r1")}
    for _ in range(2):
        await tick(small, gone, offers=(OFFER, OTHER, far))
    assert small.cloud.launched[-1].offer == far


async def test_what_was_learned_is_in_the_journal_before_the_failure_is(small: Small) -> None:
    """A kill between the two must not rent from the same offer again; the failure is seen anew."""
    small.journal.set_target(Target("h100", 1), "", NOW)
    m = await rented(small)
    small.cloud_steps.failed(m, FailureCause.NO_CAPACITY, CAPACITY)
    cooldown = small.journal.last_cooldown(CooldownKey.of_offer(OFFER))
    small.executor.begin(p.Move(m.name, "ended", Phase.TERMINATING, "ended", FailureCause.NO_CAPACITY, CAPACITY))
    assert small.journal.last_cooldown(CooldownKey.of_offer(OFFER)) == cooldown, "one strike"
