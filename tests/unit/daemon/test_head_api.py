"""What people ask for, against the real journal, loop and steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from meshd.api import endpoints as e
from meshd.api import schema as s
from meshd.api.auth import Actor
from meshd.api.faults import NotReady, Unknown
from meshd.codes import CheckName, ProblemCode, RefusalCode, WarningCode
from meshd.config import PoolSettings
from meshd.daemon.head_api.doctor import Doctor
from meshd.daemon.head_api.service import HeadService
from meshd.daemon.nodes.wiring import NodeReporter
from meshd.daemon.observe import report as source_report
from meshd.daemon.observe.agent_reports import NodeLogs
from meshd.daemon.observe.report import SourceReporter
from meshd.daemon.observe.slurm_ping import SlurmPing
from meshd.daemon.observe.source import Refresh, Source
from meshd.daemon.prices.files import PriceFiles
from meshd.daemon.prices.prices import Prices
from meshd.daemon.prices.service import PriceService
from meshd.daemon.providers import report as provider_report
from meshd.daemon.reporting import Check, Report
from meshd.errors import AuthFailed, NoCapacity, QuotaExceeded, TailnetError, Transient, Uncertain
from meshd.model.cooldown import Cooldown, CooldownKey
from meshd.model.desired import Target
from meshd.model.ids import MachineName
from meshd.model.machine import Machine, Phase, Removal, UnfitReason
from meshd.model.observed import Fresh, Snapshot
from meshd.provider_api import Offer, PriceSource
from tests.codes import refused
from tests.live import live_settings
from tests.node_room import node_parts
from tests.property.rotation_sim import Life, begin_tailnet
from tests.unit.daemon.munge_lab import MungeLab as MungeLab
from tests.unit.daemon.small import Cloud, HandClock, Small
from tests.unit.daemon.standins import LogAgent
from tests.unit.worlds import GONE_DARK, NOW, OFFER, ago, around, instance, machine, node, peer, snapshot, tailnet

ROOT = Actor(uid=0, gid=0, pid=1, user="root", may_write=True)


class Files:
    """Slurm's files, all well."""

    def view(self) -> s.PublishView:
        return s.PublishView()


class NoDoctor:
    async def __call__(self) -> list[s.CheckRow]:
        return []


async def nothing(_provider: str) -> None:
    """No cloud to read here."""


WITHOUT_API: Any = SimpleNamespace(api=None)


class World(Small):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.next: Snapshot | None = None
        self.agent = LogAgent()
        self.dead_key = ""
        files = PriceFiles(directory / "prices")
        prices = Prices({}, files, self.clock, live=live_settings(), read_offers=nothing, journal=self.journal)
        rotation = Life(begin_tailnet(1, directory / "keys", 0), directory / "keys").service
        nodes = node_parts(self.machine_store)
        live = live_settings(pools={"h100": PoolSettings(partition="gpu")})
        ping = SlurmPing(self.slurm_answers, lambda: None, self.clock)
        price_service = PriceService(prices, lambda: self.seen.offers, self.desired, self.clock)
        sources: Any = SimpleNamespace(
            slurm=SimpleNamespace(read_once=self.look_at_slurm), key=SimpleNamespace(read_once=self.look_at_key)
        )
        report = Report(
            SourceReporter(lambda: self.seen, self.journal, ping), self.reconciler, price_service,
            NodeReporter(live, self.machine_store, nodes, self.desired, lambda: self.seen, WITHOUT_API),
        )  # fmt: skip
        self.service = HeadService(
            live, self.machine_store, self.machines, slurm=self.slurm, slurm_files=Files(), slurm_ping=ping,
            tailnet=cast("Any", SimpleNamespace(table=SimpleNamespace(version="1.102"))), sources=sources,
            snapshot=lambda: self.seen, desired=self.desired, report=report,
            reload=lambda: s.ReloadView(reloaded=True), doctor=NoDoctor(), read_offers=self.read_offers,
            logs=NodeLogs(self.agent, self.clock), prices=price_service, auth_key=rotation,
            munge_key=MungeLab(directory / "munge").service, node_tokens=nodes.token_service,
        )  # fmt: skip
        self.head = self.service.handlers()

    async def slurm_answers(self) -> bool:
        return True

    async def look_at_slurm(self) -> None:
        self.seen = self.next or self.seen

    async def look_at_key(self) -> None:
        self.seen = replace(self.seen, dead_key=self.dead_key)

    async def read_offers(self) -> None:
        self.seen = self.next or self.seen


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    made.reconciler.tick()
    yield made
    await made.executor.aclose(1)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    made.journal.close()


async def test_scale_knows_of_a_key_that_has_just_died(world: World) -> None:
    """Nothing is rented with it, and who asks is told at once."""
    world.dead_key = "the auth key k1 is expired or revoked"
    answer = await world.head.call(e.SCALE, s.ScaleRequest(gpus=2), ROOT)
    assert answer.plan.steps == []
    assert [finding.code for finding in answer.findings] == [WarningCode.AUTH_KEY_DEAD]
    assert world.journal.machines() == []


async def test_scale_journals_the_target_and_lifts_what_held_the_pool_back(world: World) -> None:
    for key in (
        CooldownKey("pool:h100"),
        CooldownKey("pool:h100@aws/r1"),
        CooldownKey("pool:h100x"),
        CooldownKey("pool:h100x@aws"),
        CooldownKey("provider:aws"),
    ):
        world.journal.set_cooldown(Cooldown(key, NOW + timedelta(hours=1), "why"), NOW)
    answer = await world.head.call(e.SCALE, s.ScaleRequest(gpus=2), ROOT)
    assert answer.target_id is not None
    assert [row.action for row in answer.plan.steps] == ["request_machine"] * 2
    assert world.journal.targets()["h100"].gpus == 2
    assert not world.journal.targets()["h100"].spread
    assert not {CooldownKey("pool:h100"), CooldownKey("pool:h100@aws/r1")} & set(world.journal.cooldowns(NOW))
    assert {CooldownKey("pool:h100x"), CooldownKey("pool:h100x@aws")} <= set(world.journal.cooldowns(NOW)), (
        "another pool's breaker stays"
    )
    await world.head.call(e.SCALE, s.ScaleRequest(gpus=2, spread=True), ROOT)
    assert world.journal.targets()["h100"].spread


async def test_a_dry_run_changes_nothing(world: World) -> None:
    before = world.journal.last_event_id()
    answer = await world.head.call(e.SCALE, s.ScaleRequest(gpus=2, dry_run=True), ROOT)
    assert (answer.target_id, len(answer.plan.steps)) == (None, 2)
    assert world.journal.last_event_id() == before
    assert not world.journal.targets()


async def test_a_look_starts_no_step(world: World) -> None:
    """The target is set and no tick has come yet: whatever is only looked at leaves it so."""
    world.journal.set_target(Target("h100", 2), "said", NOW)
    before, last = world.journal.last_event_id(), world.reconciler.last
    dry_run = await world.head.call(e.SCALE, s.ScaleRequest(gpus=2, dry_run=True), ROOT)
    plan = await world.head.call(e.PLAN)
    preview = await world.head.call(e.PREVIEW, s.ScaleRequest(gpus=2))
    await world.head.call(e.OFFERS, s.OffersQuery(refresh=True))
    assert [answer.adds for answer in (dry_run.plan, plan, preview)] == [2, 2, 2]
    assert (world.journal.machines(), world.journal.last_event_id()) == ([], before)
    assert (world.cloud.launched, world.executor.in_flight) == ([], 0)
    assert world.reconciler.last is last


async def test_what_cannot_be_is_refused(world: World) -> None:
    with refused(RefusalCode.NO_ROOM):
        await world.head.call(e.SCALE, s.ScaleRequest(gpus=9), ROOT)
    with refused(RefusalCode.NO_SUCH_POOL):
        await world.head.call(e.SCALE, s.ScaleRequest(gpus=1, pool="a100"), ROOT)
    with refused(RefusalCode.OUTSIDE_OF_POOL):
        await world.head.call(e.SCALE, s.ScaleRequest(gpus=1, provider="gce"), ROOT)
    assert not world.journal.targets()


async def test_a_machine_keeps_the_price_that_it_was_rented_with(world: World) -> None:
    old = replace(OFFER, price_as_of=NOW - timedelta(days=40), price_source=PriceSource.SHIPPED)
    world.pool = replace(world.pool, max_usd_per_gpu_hour=3.0)
    world.seen = snapshot(offers={"aws": Fresh((old,), NOW)})
    world.reconciler.tick()
    answer = await world.head.call(e.SCALE, s.ScaleRequest(gpus=1), ROOT)
    (finding,) = answer.findings
    assert finding.code == WarningCode.PRICES_STALE
    assert "2026-01-20" in finding.text and "meshctl prices refresh aws" in finding.cure
    world.reconciler.tick()
    await world.settle()
    (rented,) = world.journal.machines()
    requested = world.journal.events(-1, 100, rented.name)[0]
    assert requested.text.endswith("; 2 USD/h, a price of 2026-01-20")

    world.journal.put(replace(rented, phase=Phase.BOOTING, instance_id="i-1", launched_at=NOW), "phase", "given", NOW)
    dearer = replace(OFFER, usd_per_hour=4.0, price_as_of=NOW)
    world.seen = snapshot(offers={"aws": Fresh((dearer,), NOW)})
    world.reconciler.tick()
    world.clock.t_s += 3600
    (row,) = (await world.head.call(e.NODES)).nodes
    status = await world.head.call(e.STATUS)
    assert (row.usd_per_hour, status.spend.usd_per_hour) == (2.0, 2.0)
    assert status.spend.usd_so_far == pytest.approx(2.0, rel=0.01)
    assert [p.severity for p in status.problems if p.code == ProblemCode.PRICES_STALE] == ["warning"]


async def test_before_the_first_tick_nothing_is_promised(tmp_path: Path) -> None:
    early = World(tmp_path)
    with pytest.raises(NotReady):
        await early.head.call(e.SCALE, s.ScaleRequest(gpus=1), ROOT)
    assert (await early.head.call(e.STATUS)).tick_at is None
    early.journal.close()


async def test_remove_says_who_and_stays_removed(world: World) -> None:
    m = world.journal.put(machine(Phase.DRAINING, removal=Removal.SCALE_DOWN), "phase", "given", NOW)
    world.journal.set_target(Target("h100", 1), "said", NOW)
    await world.head.call(e.REMOVE, s.RemoveRequest(machine=m.slot), ROOT)
    assert world.get(m.name).removal is Removal.BY_USER
    world.seen = around(m, "IDLE", "DRAIN")
    world.slurm.seen = world.seen.slurm.value  # type: ignore[union-attr]
    world.reconciler.tick()
    await world.settle()
    assert world.get(m.name).phase is Phase.DRAINING, "the target does not bring it back"
    await world.head.call(e.REMOVE, s.RemoveRequest(machine=m.name, force=True), ROOT)
    await world.head.call(e.REMOVE, s.RemoveRequest(machine=m.name), ROOT)
    assert world.get(m.name).removal is Removal.FORCED, "a later, gentler word does not call force back"


async def test_force_names_the_jobs(world: World) -> None:
    m = world.journal.put(machine(Phase.READY), "phase", "given", NOW)
    world.seen = around(m, "ALLOCATED", jobs={m.slot: "7"})
    world.reconciler.tick()
    gentle = await world.head.call(e.REMOVE, s.RemoveRequest(machine=m.name), ROOT)
    assert (gentle.jobs, gentle.warnings) == (["7"], [])
    forced = await world.head.call(e.REMOVE, s.RemoveRequest(machine=m.name, force=True), ROOT)
    assert "job 7 loses the node" in forced.warnings[0]


async def test_scale_sees_a_job_that_began_since_slurm_was_read_last(world: World) -> None:
    m = world.journal.put(machine(Phase.READY), "phase", "given", NOW)
    world.seen = around(m, "IDLE")
    world.reconciler.tick()
    world.next = around(m, "ALLOCATED", jobs={m.slot: "7"})
    answer = await world.head.call(e.SCALE, s.ScaleRequest(gpus=0), ROOT)
    assert [(one.slot, one.jobs) for one in answer.waiting_for_jobs] == [(m.slot, ["7"])]


async def test_what_is_gone_or_going_is_told(world: World) -> None:
    gone = world.journal.put(machine(Phase.GONE, gone_at=NOW), "phase", "given", NOW)
    going = world.journal.put(machine(Phase.TERMINATING, index=2), "phase", "given", NOW)
    with refused(RefusalCode.MACHINE_GONE):
        await world.head.call(e.REMOVE, s.RemoveRequest(machine=gone.name), ROOT)
    assert "already" in (await world.head.call(e.REMOVE, s.RemoveRequest(machine=going.name), ROOT)).text
    with refused(RefusalCode.NO_SUCH_MACHINE):
        await world.head.call(e.REMOVE, s.RemoveRequest(machine="lab-none-1-abcdef"), ROOT)
    with refused(RefusalCode.NOT_IN_SLURM):
        await world.head.call(e.DRAIN, s.DrainRequest(machine=going.name), ROOT)


async def test_a_slot_without_a_machine_is_no_unknown_name(world: World) -> None:
    with refused(RefusalCode.SLOT_EMPTY) as empty:
        await world.head.call(e.DRAIN, s.DrainRequest(machine="h100-8"), ROOT)
    assert "meshctl explain h100-8" in empty.value.cure
    live = world.journal.put(machine(Phase.READY), "phase", "given", NOW)
    with refused(RefusalCode.NO_SUCH_MACHINE) as near:
        await world.head.call(e.REMOVE, s.RemoveRequest(machine="h10-1"), ROOT)
    assert live.slot in near.value.cure
    gone = world.journal.put(machine(Phase.GONE, index=3, gone_at=NOW), "phase", "given", NOW)
    seen = await world.head.call(e.EVENTS, s.EventsQuery(limit=9, machine=(gone.slot,)))
    assert [event.machine for event in seen.events] == [gone.name], "its last machine's story can still be read"


async def test_machines_are_counted_where_there_are_no_gpus(world: World) -> None:
    assert (await world.head.call(e.SCALE, s.ScaleRequest(gpus=1, dry_run=True), ROOT)).unit == "GPU"
    world.pool = replace(world.pool, gpu="", gpus_per_node=0)
    assert (await world.head.call(e.SCALE, s.ScaleRequest(gpus=1, dry_run=True), ROOT)).unit == "machine"
    assert (await world.head.call(e.STATUS)).pools[0].unit == "machine"
    assert (await world.head.call(e.EXPLAIN, s.ExplainQuery(subject="h100"))).unit == "machine"


async def test_a_problem_names_its_pool_once(world: World) -> None:
    await world.head.call(e.SCALE, s.ScaleRequest(gpus=2, max_usd_per_gpu_hour=0.01), ROOT)
    world.reconciler.tick()
    (found,) = [problem for problem in world.service.problems() if problem.pool == "h100"]
    assert found.text.startswith("2 GPUs wanted, 0 can be had") and "h100:" not in found.text


async def test_undrain_does_not_call_back_what_leaves(world: World) -> None:
    m = world.journal.put(machine(Phase.DRAINING, removal=Removal.SCALE_DOWN), "phase", "given", NOW)
    with refused(RefusalCode.MACHINE_LEAVES):
        await world.head.call(e.UNDRAIN, s.DrainRequest(machine=m.name), ROOT)


async def test_events_are_waited_for(world: World) -> None:
    last = world.journal.last_event_id()
    waiting = asyncio.create_task(world.head.call(e.EVENTS, s.EventsQuery(after_id=last, limit=10, wait_s=30)))
    await asyncio.sleep(0)
    world.journal.event(NOW, "test", "news")
    found = await asyncio.wait_for(waiting, 5)
    assert [e.text for e in found.events] == ["news"]


async def test_problems_tell_of_sources_and_of_machines_that_nobody_watches(world: World) -> None:
    world.journal.put(machine(Phase.READY, provider="gce"), "phase", "given", NOW)
    world.journal.put(machine(Phase.LOST, index=2, instance_id=""), "phase", "given", NOW)
    world.seen = snapshot(slurm=GONE_DARK, instances={"aws": GONE_DARK})
    world.reconciler.tick()
    found = {(problem.code, problem.machine) for problem in world.service.problems()}
    assert found >= {
        (ProblemCode.SLURM_UNREADABLE, ""),
        (ProblemCode.PROVIDER_UNREADABLE, ""),
        (ProblemCode.PROVIDER_NOT_ENABLED, ""),
        (ProblemCode.MACHINE_LOST, machine(Phase.LOST, index=2).name),
    }


# -- offers and explanations ------------------------------------------------------------------------------------------

CHEAP = replace(OFFER, zone="r1b", usd_per_hour=1.5, price_as_of=ago(60), capacity_hint="High", available=True)


async def test_offers_with_their_age_cool_down_and_the_source_that_fails(world: World) -> None:
    world.journal.set_cooldown(Cooldown(CooldownKey.of_offer(OFFER), NOW + timedelta(minutes=5), "sold out"), NOW)
    world.seen = snapshot(offers={"aws": Fresh((OFFER, CHEAP), ago(30)), "gce": GONE_DARK})
    world.reconciler.tick()
    view = await world.head.call(e.OFFERS, s.OffersQuery(gpu="H100"))
    assert [(o.offer, o.price_age_s, o.available, o.capacity_hint) for o in view.offers] == [
        (CHEAP.key, 60.0, True, "High")
    ]
    assert (view.total, view.matching, view.left_out) == (2, 2, {"cooling down": 1})
    assert [(one.name, one.ok, one.reason) for one in view.sources] == [
        ("offers:aws", True, ""), ("offers:gce", False, "does not answer"),
    ]  # fmt: skip
    assert (view.gpus, view.regions) == (["h100-sxm"], ["r1", "r1a", "r1b"])
    everything = await world.head.call(e.OFFERS, s.OffersQuery(all=True))
    assert (everything.offers[1].offer, everything.offers[1].blocked_reason) == (OFFER.key, "sold out")
    none = await world.head.call(e.OFFERS, s.OffersQuery(region=("r9",)))
    assert [(row.field, row.count, row.offer.offer) for row in none.near] == [("region", 2, CHEAP.key)]


async def test_offers_are_read_anew_on_demand(world: World) -> None:
    world.next = snapshot(offers={"aws": Fresh((CHEAP,), NOW)})
    assert [o.offer for o in (await world.head.call(e.OFFERS, s.OffersQuery())).offers] == [OFFER.key]
    assert [o.offer for o in (await world.head.call(e.OFFERS, s.OffersQuery(refresh=True))).offers] == [CHEAP.key]


class SlowCloud:
    """Offers that come when a test lets them."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.reads = 0

    async def offers(self) -> tuple[Offer, ...]:
        self.reads += 1
        await self.go.wait()
        return (OFFER,)


async def test_a_refresh_is_shared_bounded_and_not_repeated_at_once() -> None:
    clock, cloud = HandClock(), SlowCloud()
    source = Source(
        "offers:aws", cloud.offers, clock, timeout_s=60, interval_s=lambda: 300.0, changed=lambda: None
    )  # fmt: skip
    refresh = Refresh([source], clock, timeout_s=0.05)
    await asyncio.gather(refresh(), refresh())
    assert (cloud.reads, isinstance(source.current, Fresh)) == (1, False), "nobody waits longer than is promised"
    cloud.go.set()
    await refresh()
    assert (cloud.reads, isinstance(source.current, Fresh)) == (1, True), "the round went on"
    await refresh()
    assert cloud.reads == 1
    clock.t_s += 10
    await refresh()
    assert cloud.reads == 2


async def test_the_story_of_a_ladder(world: World) -> None:
    """Three offers without capacity, quota on the fourth, connection cut after the effect on the fifth."""
    rungs = [replace(OFFER, zone=f"r1{letter}", usd_per_hour=2 + 0.1 * n) for n, letter in enumerate("abcdef")]
    world.seen = snapshot(offers={"aws": Fresh(tuple(rungs), NOW)})
    world.cloud.errors += [NoCapacity(f"InsufficientInstanceCapacity in r1{letter}") for letter in "abc"]
    world.cloud.errors += [QuotaExceeded("VcpuLimitExceeded"), Uncertain("connection cut")]
    await world.head.call(e.SCALE, s.ScaleRequest(gpus=1), ROOT)
    for _ in range(12):
        world.reconciler.tick()
        await world.settle()
    unclear = await world.head.call(e.EXPLAIN, s.ExplainQuery(subject="h100-1"))
    assert [(r.outcome, r.offer.split("/")[1]) for r in unclear.rungs] == [
        ("no_capacity", "r1a"), ("no_capacity", "r1b"), ("no_capacity", "r1c"), ("quota", "r1d"), ("unclear", "r1e"),
    ]  # fmt: skip
    assert unclear.rungs[1].words == "InsufficientInstanceCapacity in r1b"
    assert "not clear (connection cut)" in unclear.why
    made = world.journal.machines()[0]
    world.clock.t_s += 30
    at = world.clock.now()
    world.seen = replace(world.seen, instances={"aws": Fresh((instance(made, id="i-1"),), at)})
    world.reconciler.tick()
    await world.settle()
    view = await world.head.call(e.EXPLAIN, s.ExplainQuery(subject=made.name))
    assert (view.slot, view.machine, view.phase, view.target_gpus) == ("h100-1", made.name, "booting", 1)
    assert view.rungs[-1].outcome == "adopted"
    assert len({r.machine for r in view.rungs}) == 5
    assert [row.offer.split("/")[1] for row in view.next_rungs if not row.note] == ["r1e", "r1f"]
    assert all(row.note for row in view.next_rungs if row.offer.split("/")[1] in ("r1a", "r1d"))
    assert view.events[-1].machine == made.name
    whole = await world.head.call(e.EXPLAIN, s.ExplainQuery(subject="h100"))
    assert [r.outcome for r in whole.rungs] == [r.outcome for r in view.rungs]
    assert whole.why == "1 GPU wanted: 0 ready, 1 on their way"
    assert whole.next_rungs == view.next_rungs
    assert {(e.kind, e.machine) for e in whole.events} >= {("phase", made.name), ("target", "")}
    assert {e.pool for e in whole.events} == {"h100"}
    assert whole.events[-1] == view.events[-1], "the newest come last"
    world.journal.put(replace(world.get(made.name), phase=Phase.READY), "phase", "given", NOW)
    assert (await world.head.call(e.EXPLAIN, s.ExplainQuery(subject="h100"))).next_rungs == [], (
        "nothing is looked for any more"
    )


async def test_why_nothing_is_rented(world: World) -> None:
    async def why(subject: str) -> str:
        world.reconciler.tick()
        return (await world.head.call(e.EXPLAIN, s.ExplainQuery(subject=subject))).why

    assert "has no target" in await why("h100-2")
    assert "has no target" in await why("h100")
    world.journal.set_target(Target("h100", 1), "said", NOW)
    world.journal.put(machine(Phase.READY), "phase", "given", NOW)
    assert "no machine is wanted" in await why("h100-2")
    world.journal.set_target(Target("h100", 3), "said", NOW)
    world.journal.set_cooldown(Cooldown(CooldownKey("pool:h100"), NOW + timedelta(minutes=5), "3 machines failed"), NOW)
    assert "2 GPUs of the pool missing, and nothing is rented for it: no new machines" in await why("h100-2")
    assert "3 machines failed" in await why("h100")
    world.journal.lift_cooldowns([CooldownKey("pool:h100")])
    assert await why("h100-2") == f"a machine is about to be rented for it: {OFFER.key}"
    await world.settle()


async def test_a_gone_machine_names_who_has_its_slot_now(world: World) -> None:
    old = world.journal.put(machine(Phase.GONE, gone_at=NOW, failure="did not boot"), "failure", "gone", NOW)
    new = machine(Phase.BOOTING, name=MachineName("lab-h100-1-zzzzzz"), instance_id="i-2")
    world.journal.put(new, "phase", "given", NOW)
    view = await world.head.call(e.EXPLAIN, s.ExplainQuery(subject=old.name))
    assert (view.machine, view.phase) == (old.name, "gone")
    assert "did not boot" in view.why
    assert f"went on with {new.name}" in view.why
    assert (await world.head.call(e.EXPLAIN, s.ExplainQuery(subject="h100-1"))).machine == new.name


async def test_unknown_names_are_answered_with_near_ones(world: World) -> None:
    with pytest.raises(Unknown) as caught:
        await world.head.call(e.EXPLAIN, s.ExplainQuery(subject="h10-1"))
    assert "h100-1" in caught.value.cure
    with pytest.raises(Unknown) as caught:
        await world.head.call(e.EXPLAIN, s.ExplainQuery(subject="zzz"))
    assert "h100" in caught.value.cure
    with pytest.raises(Unknown):
        await world.head.call(e.EXPLAIN, s.ExplainQuery(subject="h100-9"))  # the pool has eight slots


# -- doctor -----------------------------------------------------------------------------------------------------------


class BrokenCloud(Cloud):
    async def check(self) -> str:
        raise KeyError("account")


class PoorCloud(Cloud):
    async def check(self) -> str:
        raise AuthFailed("user meshd may not: ec2:RunInstances", provider="aws", operation="check")


class SickCloud(Cloud):
    async def check(self) -> str:
        raise Transient("HTTP 503", provider="aws", operation="check")


async def test_a_cloud_that_is_ill_is_no_wrong_credential() -> None:
    cloud: Any = SickCloud()
    row = await provider_report.check(cloud)
    assert (row.status, row.code) == ("fail", ProblemCode.PROVIDER_UNREADABLE)


async def test_a_missing_permission_has_a_cure_of_its_own() -> None:
    cloud: Any = PoorCloud()
    row = await provider_report.check(cloud)
    assert (row.name, row.status, row.code) == ("provider aws", "fail", ProblemCode.PROVIDER_REFUSES)
    assert "ec2:RunInstances" in row.text
    assert "docs/providers.md" in row.cure and "/etc/meshd/credentials/aws" in row.cure


async def no_key() -> s.CheckRow:
    raise TailnetError("no auth key: set auth_key_file")


async def test_every_check_has_its_row_whatever_breaks() -> None:
    def rows(seen: Snapshot | None) -> Doctor:
        cloud: Any = BrokenCloud()
        checks = (
            *source_report.checks(lambda: seen, tuple),
            Check(CheckName.AUTH_KEY, no_key, reads=True),
            *provider_report.checks({"aws": cloud}),
        )
        return Doctor(lambda: checks)

    async def codes(seen: Snapshot | None) -> dict[str, str]:
        return {row.name: row.code for row in await rows(seen)()}

    found = {row.name: row for row in await rows(snapshot())()}
    assert [found[name].status for name in ("slurm", "tailnet", "trust in hosts")] == ["ok"] * 3
    assert found["auth key"].code == ProblemCode.CHECK_FAILED
    assert (found["provider aws"].status, found["provider aws"].code) == ("fail", ProblemCode.MESHD_FAULT)
    dark = await codes(snapshot(slurm=GONE_DARK, tailnet=GONE_DARK))
    assert dark["slurm"] == ProblemCode.SLURM_UNREADABLE
    assert dark["tailnet"] == ProblemCode.TAILNET_UNREADABLE
    assert (await codes(None)).keys() == found.keys()


async def test_a_limit_in_all_that_is_too_low_is_told_before_anything_is_rented(world: World) -> None:
    answer = await world.head.call(e.SCALE, s.ScaleRequest(gpus=4, max_usd_per_hour=5.0, dry_run=True), ROOT)
    assert answer.plan.adds == 2
    assert [(finding.code, finding.subject) for finding in answer.findings] == [(WarningCode.LIMIT_IN_ALL, "h100")]


@pytest.mark.parametrize(("said", "reason"), [("", "drained by root"), ("meshd: x", "drained by root: meshd: x")])
async def test_a_drain_by_a_person_survives_acceptance(world: World, said: str, reason: str) -> None:
    """The node was drained while it was TESTING: it is not accepted before it is opened again."""
    m = world.journal.put(machine(Phase.TESTING), "phase", "given", NOW)
    world.slurm.set(node(m, "IDLE"))
    await world.head.call(e.DRAIN, s.DrainRequest(machine=m.name, reason=said), ROOT)
    assert world.slurm.seen.nodes[m.slot].reason == reason
    await look_around(world, m)
    assert (world.get(m.name).phase, world.get(m.name).unfit_reason) == (Phase.TESTING, UnfitReason.BY_PERSON)
    assert world.slurm.seen.nodes[m.slot].drained
    (problem,) = [problem for problem in world.service.problems() if problem.machine == m.name]
    assert (problem.code, problem.severity, problem.blocking) == (ProblemCode.NODE_UNFIT, "info", True)
    assert f"meshctl undrain {m.slot}" in problem.cure
    await world.head.call(e.UNDRAIN, s.DrainRequest(machine=m.name), ROOT)
    assert not world.slurm.seen.nodes[m.slot].drained
    await look_around(world, m)
    assert world.get(m.name).phase is Phase.READY


async def test_an_unfit_node_is_diagnosed(world: World) -> None:
    """Slurm's reason, what the agent reports, the tailnet, slurmd's log, what follows, and what to do."""
    m = machine(Phase.READY, tailnet_id=f"n-{machine(Phase.READY).name}")
    world.journal.put(m, "phase", "given", NOW)
    agent = world.agent
    world.slurm.set(node(m, "IDLE"))
    await look_around(world, m)
    world.journal.note(replace(world.get(m.name), heartbeat_at=world.clock.now()))
    told = await world.head.call(e.EXPLAIN, s.ExplainQuery(subject=m.slot))
    assert told.health is not None
    assert (told.health.unfit, told.health.tailnet, agent.asked) == ("", "online", [])
    drained = node(m, "IDLE", "DRAIN", reason="Kill task failed", reason_by="root", reason_at=NOW)
    world.slurm.set(drained)
    agent.text = "error: could not kill step\n"
    await look_around(world, m)
    world.journal.note(replace(world.get(m.name), heartbeat_at=world.clock.now()))
    told = await world.head.call(e.EXPLAIN, s.ExplainQuery(subject=m.slot))
    health = told.health
    assert health is not None
    assert (health.unfit, health.slurm_reason, health.slurm_reason_by) == ("drained", "Kill task failed", "root")
    assert health.log == ["error: could not kill step"]
    assert "Kill task failed" in told.why
    assert health.next.startswith("meshd replaces it") or "no target" in health.next
    nodes = await world.head.call(e.NODES)
    assert [(row.unfit, row.slurm_reason) for row in nodes.nodes] == [("drained", "Kill task failed")]
    status = await world.head.call(e.STATUS)
    assert [(pool.ready_gpus, pool.unfit_gpus, pool.unfit) for pool in status.pools] == [(0, 1, {"drained": 1})]


async def look_around(world: World, m: Machine) -> None:
    """Every source is read, and what follows from it is done."""
    world.clock.t_s += 60
    now = world.clock.now()
    world.seen = replace(around(m), slurm=Fresh(world.slurm.seen, now), tailnet=Fresh(tailnet(peer(m)), now))
    world.reconciler.tick()
    await world.settle()


async def test_a_slot_whose_machine_is_ending_has_a_machine(world: World) -> None:
    ending = world.journal.put(machine(Phase.TERMINATING), "phase", "given", NOW)
    world.reconciler.tick()
    told = await world.head.call(e.EXPLAIN, s.ExplainQuery(subject=ending.slot))
    assert (told.machine, told.phase) == (ending.name, "terminating")
    after = replace(machine(Phase.BOOTING), name=MachineName("lab-h100-1-zzzzzz"), created_at=NOW, instance_id="")
    world.journal.put(after, "phase", "given", NOW)
    told = await world.head.call(e.EXPLAIN, s.ExplainQuery(subject=ending.slot))
    assert (told.machine, told.phase) == (after.name, "booting")
    assert ending.name in told.why


async def test_a_dry_run_of_a_removal_changes_nothing(world: World) -> None:
    m = world.journal.put(machine(Phase.READY), "phase", "given", NOW)
    before = world.journal.last_event_id()
    answer = await world.head.call(e.REMOVE, s.RemoveRequest(machine=m.slot, dry_run=True), ROOT)
    assert (answer.machine, world.get(m.name).removal, world.journal.last_event_id()) == (m.name, None, before)


async def test_events_are_filtered_and_names_that_do_not_exist_are_refused(world: World) -> None:
    m = world.journal.put(machine(Phase.READY), "phase", "one", NOW - timedelta(hours=2))
    world.journal.event(NOW - timedelta(hours=1), "prices", "two")
    world.journal.event(NOW, "block", "three", pool="h100")
    world.journal.event(NOW, "odd", "four")

    async def texts(**query: object) -> list[str]:
        view = await world.head.call(e.EVENTS, s.EventsQuery.model_validate(query))
        return [event.text for event in view.events]

    assert await texts() == ["one", "two", "three", "four"]
    assert await texts(since=NOW - timedelta(minutes=90)) == ["two", "three", "four"]
    assert await texts(kind=["prices", "odd"]) == ["two", "four"]
    assert await texts(pool="h100") == ["one", "three"]
    assert await texts(machine=[m.slot, m.name], after_id=0) == ["one"]
    assert await texts(kind="block", pool="h100", since=NOW) == ["three"]
    for wrong in ({"kind": "prcies"}, {"pool": "h10"}, {"machine": "h100-77"}):
        with pytest.raises(Unknown):
            await texts(**wrong)


async def test_more_gpus_alone_keep_the_options_and_status_shows_them(world: World) -> None:
    first = await world.head.call(e.SCALE, s.ScaleRequest(gpus=1, spread=True, max_usd_per_gpu_hour=9), ROOT)
    assert first.options == ["--spread", "--max-price 9"]
    after = await world.head.call(e.SCALE, s.ScaleRequest(gpus=2), ROOT)
    target = world.journal.targets()["h100"]
    assert (target.gpus, target.spread, target.max_usd_per_gpu_hour) == (2, True, 9)
    (pool,) = (await world.head.call(e.STATUS)).pools
    assert pool.options == after.options == first.options
    assert (await world.head.call(e.SCALE, s.ScaleRequest(gpus=2, reset=True, dry_run=True), ROOT)).options == []
    await world.head.call(e.SCALE, s.ScaleRequest(gpus=2, spread=False, max_usd_per_gpu_hour=None), ROOT)
    assert (await world.head.call(e.STATUS)).pools[0].options == []
