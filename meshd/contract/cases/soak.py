"""Hundreds of calls under faults that strike by chance: nothing is lost, nothing is made twice."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from meshd.contract.caller import HonestCaller
from meshd.contract.cases.base import Cases
from meshd.contract.faults import Fault, Kind, When
from meshd.contract.rig import Rig
from meshd.contract.steps import request
from meshd.provider_api import InstanceState, Offer

SEEDS = 2
CALLS = 300
MOST = 4
#: Lists lag 45 s at most, so after this long they can be trusted.
DOUBT_S = 60.0
LAG_S = 45.0
#: How often each fault strikes, and what. "*": any call.
CHANCES: tuple[tuple[Kind, str, float, float], ...] = (
    (Kind.NO_CAPACITY, "launch", 0.06, 0),
    (Kind.QUOTA, "launch", 0.03, 0),
    (Kind.CUT_AFTER, "launch", 0.08, 0),
    (Kind.ERROR_AFTER, "launch", 0.08, 0),
    (Kind.HTML_AFTER, "launch", 0.04, 0),
    (Kind.THROTTLED, "*", 0.03, 3),
    (Kind.AUTH, "*", 0.02, 0),
    (Kind.ERROR_BEFORE, "*", 0.04, 0),
    (Kind.ERROR_AFTER, "*", 0.04, 0),
    (Kind.CUT_BEFORE, "*", 0.03, 0),
    (Kind.CUT_AFTER, "*", 0.03, 0),
    (Kind.HTML, "*", 0.02, 0),
    (Kind.UNKNOWN_STATE, "*", 0.05, 0),
    (Kind.UNKNOWN_FIELDS, "*", 0.1, 0),
    (Kind.REGRESSED, "*", 0.03, 0),
    (Kind.PAGE_FAILS, "list", 0.1, 0),
    (Kind.SMALL_PAGES, "list", 0.2, 0),
    (Kind.LIST_LAG, "launch", 0.2, LAG_S),
    (Kind.FRESH_NOT_FOUND, "launch", 0.1, LAG_S),
    (Kind.NO_ADDRESS, "launch", 0.05, 0),
    (Kind.DIES, "launch", 0.1, 200),
    (Kind.NEVER_ENDS, "launch", 0.05, 0),
    (Kind.DUPLICATE, "launch", 0.1, 0),
)


class SoakCases(Cases):
    """An honest caller ends with exactly the machines that it wants, and is told the truth on the way."""

    @staticmethod
    def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
        """As many seeds as were asked for."""
        if "seed" in metafunc.fixturenames:
            metafunc.parametrize("seed", range(metafunc.config.getoption("contract_seeds", SEEDS)))

    async def test_nothing_is_lost_or_doubled_under_random_faults(self, rig: Rig, offer: Offer, seed: int) -> None:
        dice, started = random.Random(seed), datetime(2026, 1, 1, tzinfo=UTC)  # noqa: S311  no secret
        passed_s = 0.0

        async def wait(seconds: float) -> None:
            nonlocal passed_s
            passed_s += seconds
            await rig.settle()
            rig.advance(seconds)

        caller = HonestCaller(
            rig.make(),
            lambda token: request(offer, token),
            lambda: started + timedelta(seconds=passed_s),
            DOUBT_S,
        )
        self._order_faults(rig, seed)
        while caller.calls < CALLS:
            if caller.slots and dice.random() < 0.6:
                caller.want_one_less(dice.randrange(len(caller.slots)))
            while len(caller.slots) < MOST and dice.random() < 0.7:
                caller.want_one_more()
            await caller.turn()
            if dice.random() < 0.6:
                await caller.sweep()
            if not _doubles(seed):
                assert not _alive(rig).keys() & caller.told_gone, "what is called gone must be"
            await wait(dice.uniform(1, 20))
        struck = sum(rig.faults.struck(kind) for kind in Kind)
        assert struck > CALLS / 10, "too little went wrong to prove anything"

        rig.clear()
        for _ in range(40):
            await wait(DOUBT_S)
            await caller.turn()
            await caller.sweep()
            if caller.settled:
                break
        wanted = Counter(slot.token for slot in caller.slots)
        assert _alive(rig) == wanted
        alive = [one.token for one in await rig.make().list() if one.state is not InstanceState.GONE]
        assert Counter(alive) == wanted
        assert caller.settled
        if not _doubles(seed):
            ever = Counter(machine.token for machine in rig.machines())
            assert not [token for token, count in ever.items() if count > 1], "made twice"

    @staticmethod
    def _order_faults(rig: Rig, seed: int) -> None:
        rig.faults.reseed(seed)
        for kind, operation, probability, seconds in CHANCES:
            if kind not in rig.cannot and (kind is not Kind.DUPLICATE or _doubles(seed)):
                rig.faults.inject(Fault(kind, operation, When.RANDOM, probability=probability, seconds=seconds))


def _doubles(seed: int) -> bool:
    """Whether the cloud itself may make two machines out of one call; else there never are two of one name."""
    return seed % 2 == 1


def _alive(rig: Rig) -> Counter[str]:
    return Counter(machine.token for machine in rig.machines() if machine.alive)
