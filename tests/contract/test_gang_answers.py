"""The engine after wrong answers to the create call of a gang: all machines in one place, none lost, none left over."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from meshd.contract.cases.gang_answers import WRONG_ANSWERS
from meshd.contract.faults import CloudFault, FaultKind
from meshd.model.desired import Target
from meshd.model.machine import Phase
from tests.contract.five_clouds import Engine, FiveClouds
from tests.contract.rigs import RIGS

GPUS = 4
ROUNDS_MAX = 80
ROUND_S = 15.0
CASES = [(cloud, kind) for cloud in ("aws", "gce") for kind in WRONG_ANSWERS if kind not in RIGS[cloud].unsupported]


@pytest.mark.parametrize(("cloud", "kind"), CASES)
async def test_a_wrong_answer_leaves_a_whole_gang_in_one_place_and_nothing_else(
    cloud: str, kind: FaultKind, tmp_path: Path
) -> None:
    async with FiveClouds(0) as clouds:
        engine = Engine(clouds, tmp_path)
        await engine.start()
        ledger, faults = clouds.ledgers[cloud], clouds.server.clouds[cloud].faults
        await _wanted(clouds, engine, cloud, 1)
        faults.inject(CloudFault(kind))
        await _wanted(clouds, engine, cloud, GPUS)
        assert faults.hits(kind) == 1
        assert len({machine.region for machine in clouds.alive()}) == 1
        assert max(Counter(machine.token for machine in ledger.everything()).values()) == 1, "made twice"
        await engine.kill()


async def _wanted(clouds: FiveClouds, engine: Engine, pool: str, gpus: int) -> None:
    """Scale the pool, and go on until it has all its machines, and no cloud has any other."""
    engine.journal.set_target(Target(pool, gpus), f"{gpus} are wanted", clouds.clock.now())
    for count in range(ROUNDS_MAX):
        clouds.clock.advance(ROUND_S)
        await engine.round(offers=count % 8 == 0)
        there = Counter((m.name, m.phase) for m in engine.journal.machines())
        if len(there) == gpus and there == Counter((machine.token, Phase.READY) for machine in clouds.alive()):
            return
    raise AssertionError(f"{there}, and the clouds have {[machine.token for machine in clouds.alive()]}")
