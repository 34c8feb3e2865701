"""Orders wait for their turn with a cloud that limits calls, and can be taken back meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from meshd.errors import RateLimited, Transient
from meshd.model.cooldown import Cooldown, CooldownCause, CooldownKey
from meshd.model.desired import Pool, Target
from meshd.model.machine import Phase
from meshd.model.observed import Fresh
from meshd.provider_api import Instance, LaunchRequest, ProviderCapabilities
from tests.clocks import LoopClock, in_loop_time
from tests.unit.daemon.small import Cloud, Small
from tests.unit.daemon.standins import Bucket
from tests.unit.worlds import OFFER, instance, snapshot


class Limited(Cloud):
    """Takes orders as fast as its bucket lets it, each answered after a time."""

    def __init__(self, bucket: Bucket, answer_s: float = 0.1) -> None:
        super().__init__()
        self.bucket, self.answer_s = bucket, answer_s
        self.refused = 0
        self.at_once = self.most_at_once = 0
        self.sent_s: list[float] = []

    async def launch(self, request: LaunchRequest) -> Instance:
        now_s = asyncio.get_running_loop().time()
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            fine = self.bucket.take(now_s)
            await asyncio.sleep(self.answer_s)
        finally:
            self.at_once -= 1
        if not fine:
            self.refused += 1
            raise RateLimited("RequestLimitExceeded")
        self.sent_s.append(now_s)
        return await super().launch(request)


class Rented:
    """A pool of many machines, in the time of the loop."""

    def __init__(self, tmp_path: Path, cloud: Cloud, machines: int, at_once: int = 64) -> None:
        self.small = Small(tmp_path, clock=LoopClock(), at_once=at_once)
        self.small.pool = Pool("h100", "h100", 1, 1000, ("aws",))
        self.small.cloud = self.small.providers["aws"] = cloud
        self.machines = machines

    def want(self, machines: int) -> None:
        self.small.journal.set_target(Target("h100", machines), "x", self.small.clock.now())

    async def live(self, seconds: float) -> None:
        """Ticks as the daemon has them: at each wake, at most every second here, and every 5 s."""
        small, until_s = self.small, self.small.clock.monotonic_s() + seconds
        while (now_s := small.clock.monotonic_s()) < until_s:
            now = small.clock.now()
            listed = tuple(instance(m) for m in small.journal.machines() if m.instance_id)
            small.seen = snapshot(instances={"aws": Fresh(listed, now)}, offers={"aws": Fresh((OFFER,), now)})
            small.reconciler.tick()
            await asyncio.sleep(min(1.0, until_s - now_s))

    def count(self, phase: Phase) -> int:
        return sum(m.phase is phase for m in self.small.journal.machines())

    async def end(self) -> None:
        await self.small.executor.aclose(1)
        self.small.journal.close()


@in_loop_time
async def test_two_hundred_orders_go_at_the_clouds_rate(tmp_path: Path) -> None:
    cloud = Limited(Bucket(5, 2.0))
    world = Rented(tmp_path, cloud, 200)
    world.want(200)
    await world.live(90.0)
    assert world.count(Phase.BOOTING) >= 0.9 * (5 + 2.0 * 90)
    assert cloud.refused <= 30
    await world.end()


@in_loop_time
async def test_a_cloud_without_a_limit_has_many_at_once(tmp_path: Path) -> None:
    cloud = Limited(Bucket(10**6, 0), answer_s=0.2)
    world = Rented(tmp_path, cloud, 300)
    world.want(300)
    await world.live(6.0)
    assert (len(cloud.sent_s), cloud.most_at_once) == (300, 64)
    assert cloud.sent_s[-1] - cloud.sent_s[0] < 2.5
    await world.end()


@in_loop_time
async def test_orders_that_wait_can_be_taken_back(tmp_path: Path) -> None:
    cloud = Limited(Bucket(5, 0.1))
    world = Rented(tmp_path, cloud, 100)
    world.want(100)
    await world.live(5.0)
    made = world.count(Phase.BOOTING)
    assert 5 <= made < 15
    world.want(0)
    await world.live(60.0)
    assert len(cloud.launched) <= made + 1, "one may have been on its way"
    assert world.count(Phase.REQUESTED) == 0
    await world.end()


@in_loop_time
async def test_a_pause_holds_what_waits_for_its_turn(tmp_path: Path) -> None:
    """Learned after the orders were planned, and before their turn."""
    cloud = Limited(Bucket(10**6, 0), answer_s=1.0)
    world = Rented(tmp_path, cloud, 20, at_once=4)
    world.want(20)
    await world.live(1.5)
    sent = len(cloud.sent_s)
    until = world.small.clock.now()
    cooldown = Cooldown(CooldownKey("provider:aws"), until + timedelta(seconds=30), "busy", 1, CooldownCause.PAUSE)
    world.small.journal.set_cooldown(cooldown, until)
    await world.live(25.0)
    assert len(cloud.sent_s) <= sent + 4, "those under way"
    await world.live(40.0)
    assert world.count(Phase.BOOTING) == 20
    await world.end()


@in_loop_time
async def test_a_cloud_that_stumbles_is_left_alone_by_all_that_wait(tmp_path: Path) -> None:
    class Stumbles(Limited):
        async def launch(self, request: LaunchRequest) -> Instance:
            self.refused += 1
            await asyncio.sleep(0.1)
            raise Transient("503")

    cloud = Stumbles(Bucket(1, 1))
    world = Rented(tmp_path, cloud, 100)
    world.want(100)
    await world.live(9.0)
    assert cloud.refused <= 10
    await world.end()


@in_loop_time
async def test_a_spacing_that_the_adapter_knows_is_kept(tmp_path: Path) -> None:
    cloud = Limited(Bucket(1, 1 / 12))
    cloud.capabilities = replace(ProviderCapabilities(), launch_spacing_s=12.5)
    world = Rented(tmp_path, cloud, 8)
    world.want(8)
    await world.live(100.0)
    assert (len(cloud.sent_s), cloud.refused) == (8, 0)
    await world.end()
