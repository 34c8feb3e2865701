"""The breaker acts before the plan: what failed since the last tick is not replaced once too often."""

from __future__ import annotations

import random
from pathlib import Path

from meshd.model.desired import Policy, Pool, Target
from meshd.model.machine import Phase
from tests.property.sim import Daemon, SimClock, World


async def test_the_one_failure_that_is_allowed_is_not_replaced(tmp_path: Path) -> None:
    world = World(random.Random(1), SimClock(), faults=False)
    daemon = Daemon(world, tmp_path / "journal.db", Pool("h100", "h100", 1, 6, ("cloud",)), Policy())

    def breaker(pool: str) -> None:
        daemon.records.block(f"pool:{pool}", 600, "it failed")

    daemon.reconciler._breaker = breaker
    daemon.journal.set_target(Target("h100", 1), "", world.clock.now())
    for _ in range(3):
        daemon.reconciler.tick()
        await daemon.settle()
    assert world.creates == 1
    (machine,) = daemon.journal.machines()
    # As the node desk does it when a machine may not join: between two ticks.
    daemon.records.move(machine.name, Phase.TERMINATING, "refused", failure="refused")
    for _ in range(5):
        world.move_on(1.0)
        daemon.reconciler.tick()
        await daemon.settle()
    assert world.creates == 1
    await daemon.kill()
