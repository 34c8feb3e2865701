"""Histories in a simulated world: clouds that lie, machines that die, kill -9. Every promise is checked on the way."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from meshd.config import TimingSettings
from meshd.model.desired import Desired, Policy, Pool, Target
from meshd.model.machine import FailureCause, Phase, Removal, UnfitReason
from meshd.model.plan import Move
from meshd.plan.fitness import unfit
from meshd.plan.plan_input import ClusterView
from meshd.provider_api import Offer, ProviderCapabilities
from meshd.simulate.clock import SimClock
from meshd.simulate.faults import Violation
from meshd.simulate.life import Life
from meshd.simulate.world import CLOUD, EFFECT_MAX_S, LAG_MAX_S, LAUNCH_TIMEOUT_S, World
from tests.live import live_settings

START = datetime(2026, 1, 1, tzinfo=UTC)
OFFERS = tuple(
    Offer(CLOUD, "r1", zone, "gpu.1", "h100-sxm", 1, 80, 8, 65536, price)
    for zone, price in (("r1a", 2.0), ("r1b", 2.5))
)
MIXED_OFFERS = tuple(
    Offer(CLOUD, zone[:2], zone, f"gpu.{gpus}", "h100-sxm", gpus, 80, 8, 65536, price)
    for zone, gpus, price in (("r1a", 1, 2.0), ("r1b", 1, 2.5), ("r1a", 2, 3.5), ("r2a", 1, 1.9), ("r2a", 2, 4.5))
)
"""Two places, two shapes."""

SMALL = Pool("h100", "h100", 1, 6, ("cloud",))
ROUND_MAX_S = 25.0
"""The longest time that passes between two ticks."""
COOLDOWN_MAX = timedelta(minutes=30)
"""More than anything here cools down for."""


TIMING = TimingSettings(
    no_capacity_cooldown_s=30, no_capacity_cooldown_max_s=120, breaker_cooldown_s=20, breaker_failures=2,
    launch_timeout_s=LAUNCH_TIMEOUT_S,
)  # fmt: skip
LIVE = live_settings(timing=TIMING)


def policy_of(world: World, policy: Policy) -> Policy:
    """The policy, with what the world's cloud can do."""
    able = world.capabilities
    return replace(
        policy,
        launch_timeout_s=LAUNCH_TIMEOUT_S,
        idempotent_launch=frozenset({CLOUD} if able.idempotent_launch else ()),
        gang_max={CLOUD: able.gang_max} if able.gang_max else {},
    )


class Checked(Life):
    """One life of meshd with one pool, whose promises are checked."""

    pool: Pool
    policy: Policy

    def desired(self) -> Desired:
        now = self.world.clock.now()
        return Desired(
            "lab", {self.pool.name: self.pool}, self.journal.targets(), self.policy, self.journal.cooldowns(now),
            self.journal.expired_cooldowns(now), freeze=self.freezes.current, restored=self.restores.current(),
        )  # fmt: skip

    def freeze_or_thaw(self, does: bool) -> None:
        """Whether somebody does one of them now."""
        if does:
            (self.thaw if self.world.frozen else self.freeze)()

    def check_patience(self) -> None:
        """No machine is given up for a deadline that is not over, and nothing cools down for long, by any clock."""
        now_s, tick = self.world.clock.t_s, self.reconciler.last
        live = {m.name: m for m in self.journal.machines()}
        self.in_phase_s = {
            name: (m.phase, began_s if phase is m.phase else now_s)
            for name, m in live.items()
            for phase, began_s in (self.in_phase_s.get(name, (m.phase, now_s)),)
        }
        least_s = {Phase.BOOTING: self.policy.boot_timeout_s, Phase.JOINING: self.policy.join_timeout_s}
        for step in tick.plan.steps if tick is not None and self.world.leaps else ():
            phase, began_s = self.in_phase_s.get(step.subject, (Phase.GONE, 0.0))
            late = isinstance(step, Move) and step.cause in {FailureCause.TAILNET, FailureCause.AGENT}
            if late and phase in least_s and now_s - began_s < least_s[phase] - ROUND_MAX_S:
                raise Violation(f"{step.subject} is given up after {now_s - began_s:.0f} s: {step.reason}")
        now = self.world.clock.now()
        for key, cooldown in self.journal.cooldowns(now).items():
            if (left := cooldown.until - now) > COOLDOWN_MAX:
                raise Violation(f"{key} cools down for {left}")

    def people_act(self) -> None:
        """Somebody removes a machine, whatever it is doing, or opens a node that is drained."""
        for slot, node in self.world.nodes.items():
            if "DRAIN" in node.states and self.world.chance(0.05):
                self.world.nodes[slot] = replace(node, states=node.states - {"DRAIN"}, reason="")
        machines = [m for m in self.journal.machines() if m.phase not in {Phase.TERMINATING, Phase.LOST}]
        if machines and self.world.chance(0.05):
            self.machine_store.change(
                self.world.rng.choice(machines).name, "remove", "said root", removal=Removal.BY_USER
            )


class Daemon(Checked):
    """The pool is driven by hand."""

    def __init__(
        self, world: World, path: Path, pool: Pool, policy: Policy, offers: tuple[Offer, ...] = OFFERS,
        timing: TimingSettings | None = None,
    ) -> None:  # fmt: skip
        self.pool, self.policy = pool, policy_of(world, policy)
        super().__init__(world, path, live_settings(timing=timing) if timing else LIVE, {CLOUD: offers})


@dataclass(frozen=True)
class Setting:
    """What a history is about.

    Attributes:
        sells_out: now and then all offers of a place have nothing for a while.
        fails: the share of machines that never boot.
        restless: how often somebody sets another target.
        idempotent: a create call that is repeated makes no second machine.
        sickens: how often Slurm finds fault with a node.
        relays: how often a path is relayed, in a pool that demands direct ones; 0: any path will do.
        gang_max: the most machines of one create call; 0: each has its own.
        leaps: how often somebody sets the head's clock.
        loses: how often the journal is lost with a kill.
    """

    pool: Pool = SMALL
    offers: tuple[Offer, ...] = OFFERS
    spread: bool = True
    sells_out: bool = False
    fails: float = 0.1
    restless: float = 0.15
    boot_timeout_s: float = 200
    idempotent: bool = False
    sickens: float = 0.0
    relays: float = 0.0
    gang_max: int = 0
    leaps: float = 0.0
    loses: float = 0.1


async def live_through(seed: int, directory: Path, rounds: int = 60, setting: Setting | None = None) -> World:
    """One history: chaos, then none; every promise is checked on the way and at the end."""
    Violation.seen.clear()
    rng, places = random.Random(seed), random.Random(-seed)
    about = setting or Setting()
    world = World(
        rng, SimClock(START), ProviderCapabilities(idempotent_launch=about.idempotent, gang_max=about.gang_max),
        fails=about.fails, lies=random.Random(-1 - seed),
    )  # fmt: skip
    world.sickens, world.relays, world.fates = about.sickens, about.relays, random.Random(-2 - seed)
    world.leaps, world.hands = about.leaps, random.Random(-4 - seed)
    policy = Policy(
        boot_timeout_s=about.boot_timeout_s, join_timeout_s=200, configure_timeout_s=150, test_timeout_s=150,
        listing_lag_s=LAG_MAX_S + 5, launch_settle_s=EFFECT_MAX_S, orphan_grace_s=120, replace_unfit_after_s=60,
        replace_cooldown_s=20, direct_pools=frozenset({"h100"} if about.relays else ()),
    )  # fmt: skip
    path = directory / f"{seed}.db"
    daemon = Daemon(world, path, about.pool, policy, about.offers)
    target = 0
    for round_ in range(rounds + 200):
        if round_ == rounds:
            world.faults = False
            target = rng.randrange(0, 7)
            daemon.journal.set_target(Target("h100", target, spread=about.spread), "no more chaos", world.clock.now())
        elif round_ < rounds and rng.random() < about.restless:
            another = Target("h100", rng.randrange(0, 7), spread=about.spread)
            daemon.journal.set_target(another, "chaos", world.clock.now())
        world.move_on(rng.uniform(1, ROUND_MAX_S))
        if about.sells_out and places.random() < 0.3:
            place = places.choice([o.region for o in about.offers])
            world.sold_out = {o.key for o in about.offers if o.region == place} if world.faults else set()
        daemon.agents_act()
        daemon.people_act()
        daemon.reconciler.tick()
        daemon.check_patience()
        await daemon.settle()
        assert not Violation.seen, (seed, round_, Violation.seen)
        if round_ > rounds + 30 and _converged(daemon, world, target) and not _ailing(daemon):
            break
        if world.crashed or world.chance(0.05):
            await daemon.kill()
            if world.chance(about.loses):
                world.journal_lost = True
                for file in directory.glob(f"{path.name}*"):
                    file.unlink()
            daemon = Daemon(world, path, about.pool, policy, about.offers)
    alive = [m for m in world.machines.values() if m.ended_s is None]
    known = {m.instance_id: m for m in daemon.journal.machines()}
    ailing = _ailing(daemon)
    converged, warnings = _converged(daemon, world, target), daemon.reconciler.last.plan.warnings  # type: ignore[union-attr]
    await daemon.kill()
    assert {m.id for m in alive} <= set(known), "a machine runs that the journal does not know"
    assert not about.sickens or not ailing, (seed, target, ailing, world.ill)
    assert converged, (seed, target, [(m.name, m.phase, m.reason) for m in known.values()], alive, warnings)
    return world


def _ailing(daemon: Daemon) -> list[tuple[str, UnfitReason]]:
    """The nodes that are not fit, and that nobody holds on purpose."""
    cluster_view = ClusterView.of(daemon.snapshot(), daemon.policy, daemon.world.clock.now())
    found = [(m, unfit(m, cluster_view)) for m in daemon.journal.machines() if m.phase is Phase.READY]
    return [(m.slot, verdict.why) for m, verdict in found if verdict is not None and not verdict.deliberate]


def _converged(daemon: Daemon, world: World, target: int) -> bool:
    """All that is there is READY and wanted, and it is enough: with one machine less it would not be."""
    machines = daemon.journal.machines()
    alive = {m.id for m in world.machines.values() if m.ended_s is None}
    have, least = sum(m.gpus for m in machines), min((m.gpus for m in machines), default=0)
    at_rest = all(m.phase is Phase.READY for m in machines) and alive == {m.instance_id for m in machines}
    return at_rest and have >= target and (not machines or have - least < target)
