"""Hours in which the cheapest offer always fails, and the machines come from the next one all the same."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from meshd.config import TimingSettings
from meshd.daemon.nodes.admission import accept_join
from meshd.errors import JoinRefused
from meshd.model.desired import Policy, Target
from meshd.model.machine import Phase
from meshd.provider_api import Instance, InstanceState, Offer, ProviderName
from meshd.simulate import life
from meshd.simulate.faults import Answer, Called
from meshd.simulate.world import SimMachine, World
from tests.clocks import SimClock
from tests.property.sim import OFFERS, SMALL, START, Daemon
from tests.tiers import bounded

CHEAP, NEXT = OFFERS
NEVER_S = 1e9
ROUND_S = 5.0

POLICY = Policy(direct_pools=frozenset({"h100"}))
CAPACITY = "Server.InsufficientInstanceCapacity: there was insufficient capacity available"


def place(region: str, zone: str, usd: float, provider: str = "cloud") -> Offer:
    return replace(CHEAP, provider=ProviderName(provider), region=region, zone=zone, usd_per_hour=usd)


@dataclass
class Bad:
    """How the machines of some offers fail.

    Attributes:
        which: of these offers.
        dies_after_s: how long after it accepted the order their cloud ends them; None: never.
        words: its own then.
        listed: its listing shows the end; else only a question does.
        joins: they turn up on the tailnet but may not join.
        relayed: they join, and their path to the head stays relayed.
    """

    which: Callable[[Offer], bool]
    dies_after_s: float | None = None
    words: str = ""
    listed: bool = True
    joins: bool = False
    relayed: bool = False


class Rigged(World):
    """A quiet world in which all goes well, but for machines of the bad offers."""

    bad: Bad

    def fate(self, offer: Offer) -> Called:
        return Called(Answer.MADE, 0.0)

    def _make(self, token: str, offer: Offer, called: Called) -> SimMachine:
        made = super()._make(token, offer, called)
        made.boots, made.boot_s = True, 30.0
        if self.bad.which(offer):
            made.boots, made.relayed = self.bad.joins or self.bad.relayed, self.bad.relayed
            made.dies_s = NEVER_S if self.bad.dies_after_s is None else made.born_s + self.bad.dies_after_s
        return made

    def _instance(self, m: SimMachine) -> Instance:
        found = super()._instance(m)
        ended = found.state is InstanceState.GONE and self.bad.which(m.offer)
        return replace(found, provider=m.offer.provider, reason=self.bad.words if ended else "")

    def listing(self) -> tuple[Instance, ...]:
        return tuple(i for i in super().listing() if self.bad.listed or i.state is not InstanceState.GONE)

    def start_jobs(self, p: float) -> None:
        """No jobs: a machine that is wanted less is given back at once."""


@dataclass
class History:
    """What came of it: when enough was READY, what was rented, and what the failed ones cost."""

    ready_after_s: float | None
    rented: Counter[str]
    order: list[str]
    wasted_usd: float
    cooldowns: set[str]


async def live(
    tmp_path: Path, bad: Bad, *, gpus: int = 1, offers: tuple[Offer, ...] = OFFERS, hours: float = 24.0
) -> History:
    """Until all that is wanted is READY, or the time is over."""
    world = Rigged(random.Random(1), SimClock(START), faults=False)
    world.bad = bad
    day = Daemon(world, tmp_path / "j.db", SMALL, POLICY, offers, TimingSettings())
    day.journal.set_target(Target("h100", gpus), "x", world.clock.now())
    ready_s = None
    while world.clock.t_s < hours * 3600:
        world.move_on(ROUND_S)
        day.agents_act()
        day.reconciler.tick()
        await day.settle()
        if sum(m.phase is Phase.READY for m in day.journal.machines()) >= gpus:
            ready_s = world.clock.t_s
            break
    made = list(world.machines.values())
    failed = [m for m in made if bad.which(m.offer)]
    cost = sum(m.offer.usd_per_hour * ((m.ended_s or world.clock.t_s) - m.born_s) / 3600 for m in failed)
    cooldowns = set(day.journal.cooldowns(world.clock.now()))
    await day.kill()
    order = [m.offer.zone for m in made]
    return History(ready_s, Counter(order), order, cost, cooldowns)


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("gpus", [1, 4])
async def test_the_cheapest_takes_orders_and_ends_them(tmp_path: Path, gpus: int, listed: bool) -> None:
    history = await live(tmp_path, Bad(lambda o: o == CHEAP, 25.0, CAPACITY, listed), gpus=gpus)
    assert history.ready_after_s is not None
    assert history.ready_after_s < 300
    assert history.rented == {"r1a": gpus, "r1b": gpus}
    assert history.wasted_usd < 0.1 * gpus
    assert f"offer:{CHEAP.key}" in history.cooldowns
    assert "pool:h100" not in history.cooldowns


async def test_the_cheapest_never_joins(tmp_path: Path) -> None:
    history = await live(tmp_path, Bad(lambda o: o == CHEAP))
    assert history.ready_after_s is not None
    assert history.ready_after_s < 3 * POLICY.boot_timeout_s + 300, "three deadlines, then the next offer at once"
    assert history.cooldowns == {f"offer:{CHEAP.key}"}
    assert history.rented == {"r1a": 3, "r1b": 1}
    assert history.wasted_usd < 2.0


async def test_the_cheapest_may_not_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(machine_store, machine, peer, facts):  # type: ignore[no-untyped-def]
        if machine.offer == CHEAP:
            raise JoinRefused("another GPU", "")
        return accept_join(machine_store, machine, peer, facts)

    monkeypatch.setattr(life, "accept_join", refuse)
    history = await live(tmp_path, Bad(lambda o: o == CHEAP, joins=True))
    assert history.rented == {"r1a": 3, "r1b": 1}


async def test_the_cheapest_has_only_relayed_paths(tmp_path: Path) -> None:
    history = await live(tmp_path, Bad(lambda o: o == CHEAP, relayed=True))
    assert history.ready_after_s is not None
    assert history.ready_after_s < 3 * POLICY.test_timeout_s + 600
    assert history.rented == {"r1a": 3, "r1b": 1}
    assert history.cooldowns == {f"offer:{CHEAP.key}"}


async def test_a_region_that_is_broken_is_left_after_its_second_offer(tmp_path: Path) -> None:
    broken = tuple(place("r1", f"r1{letter}", 1 + index / 10) for index, letter in enumerate("abcdef"))
    history = await live(tmp_path, Bad(lambda o: o.region == "r1"), offers=(*broken, place("r2", "r2a", 5.0)))
    assert history.order == ["r1a", "r1a", "r1a", "r1b", "r2a"]
    assert history.ready_after_s is not None
    assert "pool:h100@cloud/r1" in history.cooldowns


async def test_when_all_fail_the_pool_stops_and_tries_one_that_failed_least(tmp_path: Path) -> None:
    history = await live(tmp_path, Bad(lambda o: True), hours=11.0)
    assert history.ready_after_s is None
    assert len(history.order) <= 10
    assert history.order[:4] == ["r1a", "r1a", "r1a", "r1b"]
    assert {"r1a", "r1b"} <= set(history.order[4:]), "not the same one again and again"
    assert history.wasted_usd < 6.0


@pytest.mark.parametrize("seed", range(bounded(6, 200)))
async def test_whatever_fails_the_one_that_works_is_found(tmp_path: Path, seed: int) -> None:
    """One good offer among many, in whatever place and at whatever price."""
    rng = random.Random(seed)
    offers = tuple(
        place(f"r{region}", f"r{region}{zone}", round(rng.uniform(1, 9), 2)) for region in (1, 2, 3) for zone in "abc"
    )
    good = rng.choice(offers)
    dies = rng.choice([(25.0, CAPACITY), (40.0, "QUOTA_EXCEEDED"), (25.0, "Client.InvalidSnapshot.NotFound")])
    bad = Bad(lambda o: o != good if dies[1] != "Client.InvalidSnapshot.NotFound" else o.region != good.region, *dies)
    history = await live(tmp_path, bad, gpus=rng.choice([1, 3]), offers=offers)
    assert history.ready_after_s is not None
    assert history.ready_after_s < 1800
    assert history.wasted_usd < 3.0
