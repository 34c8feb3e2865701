"""The engine over five clouds with random faults ends with exactly the wanted machines: none leaked, none doubled."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from deploy.sandbox.clouds.ledger import ENDS_WITHIN, End, RentedMachine
from deploy.sandbox.clouds.server import BILLING
from meshd.model.budget import MICROS
from meshd.model.desired import Target
from meshd.model.machine import Machine, Phase
from tests.contract.five_clouds import CLOUDS, POOLS, Engine, FiveClouds
from tests.tiers import bounded

ROUNDS = 30
QUIET_ROUNDS_MAX = 120
QUIET_S = 45.0
OFFERS_EVERY = 8
NOTICED_AFTER_S = 600.0
"""How long, on average, a failing cloud may hide that a machine has ended."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each seed is a history."""
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(bounded(1, 50)))


def _set_target(engine: Engine, pool: str, gpus: int) -> None:
    target = Target(pool, gpus, spread=True)
    engine.journal.set_target(target, f"{pool} has target {gpus}", engine.clouds.clock.now())


def _ready(engine: Engine) -> list[str]:
    return [m.name for m in engine.journal.machines() if m.phase is Phase.READY]


def _never_doubled(clouds: FiveClouds) -> None:
    ever = Counter(machine.token for machine in clouds.machines())
    assert not [token for token, count in ever.items() if count > 1], "made twice"


async def test_the_wanted_machines_run_after_any_history(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    async with FiveClouds(seed) as clouds:
        engine = Engine(clouds, tmp_path)
        await engine.start()
        clouds.inject_faults()
        for count in range(ROUNDS):
            for pool in POOLS:
                if count == 0 or dice.random() < 0.1:
                    _set_target(engine, pool, dice.randrange(3))
            if dice.random() < 0.15:
                clouds.lose_one(dice)
            clouds.clock.advance(dice.uniform(2, 25))
            await engine.round(offers=count % OFFERS_EVERY == 0)
            _never_doubled(clouds)
            if dice.random() < 0.05:
                await engine.kill()
                engine = Engine(clouds, tmp_path)
                await engine.start()
        assert min(clouds.fault_hits().values()) > ROUNDS / 10, "too little went wrong to prove anything"

        clouds.clear_faults()
        wish = {pool: dice.randrange(1, 3) for pool in POOLS}
        for pool, gpus in wish.items():
            _set_target(engine, pool, gpus)
        for count in range(QUIET_ROUNDS_MAX):
            clouds.clock.advance(QUIET_S)
            await engine.round(offers=count % OFFERS_EVERY == 0)
            alive = Counter(machine.token for machine in clouds.alive())
            if alive == Counter(_ready(engine)) and alive.total() == len(engine.journal.machines()) == sum(
                wish.values()
            ):
                break

        _never_doubled(clouds)
        kept = engine.journal.machines()
        ever = [*engine.journal.history(10_000), *kept]
        assert Counter(m.pool for m in kept if m.phase is Phase.READY) == wish
        assert Counter(_ready(engine)) == Counter(machine.token for machine in clouds.alive()), "leaked, or not there"
        assert {m.token: m.usd_per_hour for m in clouds.alive()} == pytest.approx(
            {m.name: m.usd_per_hour for m in kept}
        )
        assert {machine.token for machine in clouds.machines()} <= {m.name for m in ever}
        assert {m.provider for m in kept} == set(CLOUDS)
        _billed(clouds, engine)
        await engine.kill()


def _billed(clouds: FiveClouds, engine: Engine) -> None:
    """The ledger against the bills of the clouds.

    Nothing is told too cheap. Where all is clear, both are the same within a hundredth, or the two seconds to which a
    cloud tells its launch and its end. It may be more where a create call had no clear answer, where the answer to the
    call that ended the machine was lost, and where it ended by itself: each until it was noticed.
    """
    now = clouds.clock.now()
    ours: Counter[str] = Counter()
    for life in engine.ledger.lives(now - timedelta(days=365), now):
        ours[life.machine] += life.cost(life.since, life.billed_until(now))
    records: dict[str, Machine] = {
        machine.name: machine for machine in [*engine.journal.history(10_000), *engine.journal.machines()]
    }
    late = may_be_late = 0.0
    for cloud, ledger in clouds.ledgers.items():
        for machine in ledger.everything():
            billed = machine.billed_usd(now, BILLING[cloud]) * MICROS
            second = machine.usd_per_hour / 3600 * MICROS
            assert ours[machine.token] >= billed - 2 * second, f"{machine.token} is told too cheap"
            if _clear(machine, records[machine.token]):
                assert ours[machine.token] == pytest.approx(billed, rel=0.01, abs=2 * second), machine.token
            else:
                late += ours[machine.token] - billed
                may_be_late += NOTICED_AFTER_S * second
    assert late <= may_be_late


def _clear(machine: RentedMachine, record: Machine) -> bool:
    """Whether meshd knows from the answers of the cloud when the machine began and ended."""
    if record.create_unclear_at is not None or record.create_repeated_at is not None:
        return False
    if machine.end_asked_at is None or record.terminate_called_at is None:
        return machine.end is None
    answered = record.terminate_called_at - machine.end_asked_at < timedelta(seconds=1)
    lasted = (machine.ended_at or record.terminate_called_at) - machine.end_asked_at
    return machine.end is End.ASKED and answered and lasted < ENDS_WITHIN / 2
