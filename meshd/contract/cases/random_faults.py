"""Hundreds of calls under random faults: no machine is lost, none is made twice."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from meshd.contract.cases.base import Cases
from meshd.contract.controller import ReferenceController
from meshd.contract.faults import CloudFault, FaultKind, When
from meshd.contract.rig import Rig
from meshd.contract.steps import request
from meshd.provider_api import InstanceState, Offer

SEEDS = 2
CALLS = 300
MOST = 4
#: Lists lag 45 s at most, so they can be trusted after this time.
SETTLE_S = 60.0
LAG_S = 45.0
#: Kind, operation ("*" for any), probability per call, seconds.
CHANCES: tuple[tuple[FaultKind, str, float, float], ...] = (
    (FaultKind.NO_CAPACITY, "launch", 0.06, 0),
    (FaultKind.QUOTA, "launch", 0.03, 0),
    (FaultKind.CUT_AFTER, "launch", 0.08, 0),
    (FaultKind.ERROR_AFTER, "launch", 0.08, 0),
    (FaultKind.HTML_AFTER, "launch", 0.04, 0),
    (FaultKind.THROTTLED, "*", 0.03, 3),
    (FaultKind.AUTH, "*", 0.02, 0),
    (FaultKind.ERROR_BEFORE, "*", 0.04, 0),
    (FaultKind.ERROR_AFTER, "*", 0.04, 0),
    (FaultKind.CUT_BEFORE, "*", 0.03, 0),
    (FaultKind.CUT_AFTER, "*", 0.03, 0),
    (FaultKind.HTML, "*", 0.02, 0),
    (FaultKind.UNKNOWN_STATE, "*", 0.05, 0),
    (FaultKind.UNKNOWN_FIELDS, "*", 0.1, 0),
    (FaultKind.REGRESSED, "*", 0.03, 0),
    (FaultKind.PAGE_FAILS, "list", 0.1, 0),
    (FaultKind.SMALL_PAGES, "list", 0.2, 0),
    (FaultKind.LIST_LAG, "launch", 0.2, LAG_S),
    (FaultKind.FRESH_NOT_FOUND, "launch", 0.1, LAG_S),
    (FaultKind.NO_ADDRESS, "launch", 0.05, 0),
    (FaultKind.DIES, "launch", 0.1, 200),
    (FaultKind.NEVER_ENDS, "launch", 0.05, 0),
    (FaultKind.DUPLICATE, "launch", 0.1, 0),
)


class RandomFaultCases(Cases):
    """The reference controller ends with exactly the machines that it wants, and is never told something false."""

    @staticmethod
    def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
        """One case per seed."""
        if "seed" in metafunc.fixturenames:
            metafunc.parametrize("seed", range(metafunc.config.getoption("contract_seeds", SEEDS)))

    async def test_nothing_is_lost_or_doubled_under_random_faults(self, rig: Rig, offer: Offer, seed: int) -> None:
        rng, started = random.Random(seed), datetime(2026, 1, 1, tzinfo=UTC)  # noqa: S311  no secret
        passed_s = 0.0

        async def wait(seconds: float) -> None:
            nonlocal passed_s
            passed_s += seconds
            await rig.settle()
            rig.advance(seconds)

        controller = ReferenceController(
            rig.make(),
            lambda token: request(offer, token),
            lambda: started + timedelta(seconds=passed_s),
            SETTLE_S,
        )
        self._inject_faults(rig, seed)
        while controller.calls < CALLS:
            if controller.wanted and rng.random() < 0.6:
                controller.want_one_less(rng.randrange(len(controller.wanted)))
            while len(controller.wanted) < MOST and rng.random() < 0.7:
                controller.want_one_more()
            await controller.step()
            if rng.random() < 0.6:
                await controller.sweep()
            if not _doubles(seed):
                assert not _alive(rig).keys() & controller.reported_gone, "a machine that is called gone is gone"
            await wait(rng.uniform(1, 20))
        hits = sum(rig.faults.hits(kind) for kind in FaultKind)
        assert hits > CALLS / 10, "too few faults to prove anything"

        rig.clear()
        for _ in range(40):
            await wait(SETTLE_S)
            await controller.step()
            await controller.sweep()
            if controller.settled:
                break
        wanted = Counter(one.token for one in controller.wanted)
        assert _alive(rig) == wanted
        alive = [one.token for one in await rig.make().list() if one.state is not InstanceState.GONE]
        assert Counter(alive) == wanted
        assert controller.settled
        if not _doubles(seed):
            ever = Counter(machine.token for machine in rig.machines())
            assert not [token for token, count in ever.items() if count > 1], "made twice"

    @staticmethod
    def _inject_faults(rig: Rig, seed: int) -> None:
        rig.faults.reseed(seed)
        for kind, operation, probability, seconds in CHANCES:
            if kind not in rig.unsupported and (kind is not FaultKind.DUPLICATE or _doubles(seed)):
                rig.faults.inject(CloudFault(kind, operation, When.RANDOM, probability=probability, seconds=seconds))


def _doubles(seed: int) -> bool:
    """Whether the cloud itself may make two machines for one call. If not, no name may be used twice."""
    return seed % 2 == 1


def _alive(rig: Rig) -> Counter[str]:
    return Counter(machine.token for machine in rig.machines() if machine.alive)
