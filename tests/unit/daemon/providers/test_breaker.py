"""The breaker acts before the plan: what failed since the last tick is not replaced once too often."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from meshd.config import TimingSettings
from meshd.model.cooldown import CooldownCause, CooldownKey
from meshd.model.desired import Target
from meshd.model.machine import Machine, Phase
from meshd.model.observed import Fresh
from meshd.provider_api import Offer
from tests.unit.daemon.small import Small
from tests.unit.worlds import NOW, OFFER, instance, machine, node, snapshot

OTHER = replace(OFFER, zone="r1b", usd_per_hour=3.0)


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[Small]:
    world = Small(tmp_path)
    yield world
    await world.executor.aclose(1)
    world.journal.close()


async def tick(small: Small, *offers: Offer, times: int = 1, pause_s: float = 1.0) -> None:
    """Time goes on; the cloud lists what it has."""
    for _ in range(times):
        small.clock.t_s += pause_s
        now = small.clock.now()
        listed = tuple(instance(m) for m in small.journal.machines() if m.instance_id)
        small.seen = snapshot(instances={"aws": Fresh(listed, now)}, offers={"aws": Fresh(offers or (OFFER,), now)})
        small.reconciler.tick()
        await small.settle()


def fail(small: Small, m: Machine) -> None:
    """As the node API does it when a machine may not join: between two ticks."""
    small.machine_store.move(m.name, Phase.TERMINATING, "refused", failure="no boot")


def coming(small: Small) -> list[Machine]:
    return [m for m in small.journal.machines() if not m.failure]


async def test_the_one_failure_that_is_allowed_is_not_replaced(small: Small) -> None:
    small.journal.set_target(Target("h100", 1), "", NOW)
    for launched in range(1, TimingSettings().breaker_failures + 1):
        await tick(small, times=2)
        assert len(small.cloud.launched) == launched
        (m,) = coming(small)
        fail(small, m)
    await tick(small, times=5)
    assert len(small.cloud.launched) == 3
    assert small.journal.cooldowns(small.clock.now())[CooldownKey("pool:h100")].reason == (
        "3 machines failed one after another, the last: no boot"
    )


async def test_after_the_cool_down_one_is_tried_alone_and_its_failure_doubles_it(small: Small) -> None:
    small.journal.set_target(Target("h100", 4), "", NOW)
    await tick(small, times=3)
    for m in coming(small):
        fail(small, m)
    await tick(small, times=2)
    assert (len(small.cloud.launched), coming(small)) == (4, [])
    await tick(small, pause_s=600)
    await tick(small, times=4)
    (probe,) = coming(small)
    fail(small, probe)
    await tick(small, times=3)
    assert coming(small) == []
    cooldown = small.journal.cooldowns(small.clock.now())[CooldownKey("pool:h100")]
    assert (cooldown.strikes, cooldown.cause) == (2, CooldownCause.BOOTS)
    assert (cooldown.until - small.clock.now()).total_seconds() > 1100


async def test_when_it_is_ready_the_rest_follows(small: Small) -> None:
    small.journal.set_target(Target("h100", 3), "", NOW)
    await tick(small, times=3)
    for m in coming(small):
        fail(small, m)
    await tick(small, times=2)
    await tick(small, pause_s=600)
    await tick(small, times=2)
    (probe,) = coming(small)
    ready = replace(machine(Phase.TESTING), name=probe.name, slot=probe.slot, created_at=probe.created_at,
                    instance_id=probe.instance_id, tailnet_ip="100.64.7.7")  # fmt: skip
    small.journal.put(ready, "phase", "testing", small.clock.now())
    small.slurm.set(node(ready, "IDLE"))
    small.seen = replace(small.seen, slurm=Fresh(small.slurm.seen, small.clock.now()))
    small.reconciler.tick()
    await small.settle()
    assert small.get(probe.name).phase is Phase.READY
    assert small.journal.last_cooldown(CooldownKey("pool:h100")) is None
    small.reconciler.tick()
    await small.settle()
    assert len(coming(small)) == 3


async def test_an_offer_whose_machines_fail_is_left_alone_while_the_pool_goes_on(small: Small) -> None:
    small.journal.set_target(Target("h100", 2), "", NOW)
    for index in (1, 2, 3):
        bad = machine(Phase.TERMINATING, index=index + 4, failure="no boot", created_at=NOW, launch_called_at=NOW)
        good = machine(Phase.READY, index=index, offer=OTHER, created_at=NOW, ready_at=NOW)
        for m in (bad, replace(good, phase=Phase.TERMINATING)):
            small.journal.put(m, "phase", "given", NOW)
    await tick(small, OFFER, OTHER, times=2)
    assert set(small.journal.cooldowns(small.clock.now())) == {CooldownKey.of_offer(OFFER)}
    assert {request.offer for request in small.cloud.launched} == {OTHER}
