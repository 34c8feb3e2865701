"""The plan's promise: from any state, any prefix of it done and planned again leads to the same end.

The world here is ideal (what is asked for happens at once) and the start is anything at all.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from meshd.model import plan as p
from meshd.model.cooldown import Cooldown, CooldownCause, CooldownKey
from meshd.model.desired import Desired, Policy, Pool, Target
from meshd.model.host import Host
from meshd.model.machine import HOLDS_SLOT, IN_SLURM, Machine, Phase, Removal
from meshd.model.observed import AgentReport, Fresh, Snapshot
from meshd.model.path import MeasuredPath, PathKind
from meshd.plan.planner import plan
from meshd.plan.scale import supply_gpus
from meshd.provider_api import InstanceState, Offer, ProviderName
from tests.tiers import bounded
from tests.unit.worlds import AWS, FACTS, NOW, OFFER, ago, host, instance, machine, node, peer, slurm, snapshot, tailnet

SLOTS = 5
POOL = Pool("h100", "h100", 1, SLOTS, ("aws",))
PODS = ProviderName("pods")
MIXED = Pool("h100", "h100", 1, SLOTS, ("aws", PODS), gpus_per_node_max=3, pod_providers=frozenset({PODS}))
MIXED_OFFERS = tuple(
    replace(
        OFFER, provider=provider, region=zone[:2], zone=zone, instance_type=f"g.{gpus}", gpus=gpus, usd_per_hour=usd
    )
    for provider, zone, gpus, usd in (
        (AWS, "r1a", 1, 2.0), (AWS, "r1b", 1, 2.5), (AWS, "r1a", 2, 3.0), (AWS, "r2a", 1, 1.5), (AWS, "r2a", 3, 6.0),
        (AWS, "r3a", 2, 3.0), (PODS, "p1a", 1, 1.5), (PODS, "p1a", 2, 2.5), (PODS, "p2a", 3, 6.5),
    )
)  # fmt: skip
"""Several shapes in three places, and pods in two."""

ROUNDS = 60


ILLS: dict[str, tuple[frozenset[str], str, bool]] = {
    "drained": (frozenset({"DRAIN"}), "Kill task failed", False),
    "invalid": (frozenset({"DRAIN", "INVALID_REG"}), "Low RealMemory (reported:1 < 99% of configured:2)", False),
    "rebooted": (frozenset({"DOWN"}), "Node unexpectedly rebooted", True),
    "person": (frozenset({"DRAIN"}), "drained by alice: mine", False),
}
"""What may ail a node: Slurm's states and reason, and whether a restart of its slurmd mends it."""


class Ideal:
    """Clouds, tailnet, Slurm and agents that do at once what is asked of them, and forget nothing."""

    TICK = timedelta(seconds=20)

    def __init__(
        self, machines: dict[str, Machine], jobs: dict[str, str], gpus: int, *, pool: Pool = POOL,
        offers: tuple[Offer, ...] = (OFFER,), sold_out: tuple[Offer, ...] = (),
        ills: dict[str, str] | None = None, relayed_s: int | None = None, hosts: tuple[Host, ...] = (), **target: Any,
    ) -> None:  # fmt: skip
        self.machines = dict(machines)
        self.offers, self.sold_out = offers, sold_out
        self.hosts = {host.name: host for host in hosts}
        self.cooldowns: dict[CooldownKey, Cooldown] = {}
        self.jobs = dict(jobs)
        self.drained: set[str] = {m.slot for m in machines.values() if m.phase is Phase.DRAINING}
        self.ills: dict[str, str] = dict(ills or {})
        self.now = NOW
        self.made = self.addresses = 0
        direct = frozenset({"h100"} if relayed_s is not None else ())
        self.direct_at = NOW + timedelta(seconds=relayed_s or 0)
        policy = Policy(direct_pools=direct, gang_max={"aws": 2})
        self.desired = Desired("lab", {"h100": pool}, {"h100": Target("h100", gpus, **target)}, policy)

    def plan(self) -> p.Plan:
        live = [m for m in self.machines.values() if m.phase is not Phase.GONE]
        rented = [m for m in live if m.instance_id]
        line = {m.slot: m for m in live if m.phase in IN_SLURM and m.tailnet_ip and not m.left_slurm}
        nodes = []
        for slot, m in line.items():
            base = "ALLOCATED" if slot in self.jobs else "IDLE" if m.slurmd_started else "DOWN"
            if m.name in self.ills and slot not in self.drained:
                states, reason, _ = ILLS[self.ills[m.name]]
                nodes.append(node(m, *({base} - {"DOWN"} if "DOWN" not in states else ()), *states, reason=reason))
                nodes[-1] = replace(nodes[-1], reason_by="slurm")
                continue
            ours = slot in self.drained
            nodes.append(node(m, base, *(["DRAIN"] if ours else []), reason="meshd: leaves" if ours else ""))
        ended = {m.name for m in rented if m.terminate_called_at is not None}
        listed = [
            instance(m, InstanceState.GONE if m.name in ended else InstanceState.RUNNING, provider=m.offer.provider)
            for m in rented
        ]
        clouds = {"aws", "static", *(offer.provider for offer in self.offers)}
        seen = snapshot(
            instances={c: Fresh(tuple(i for i in listed if i.provider == c), self.now) for c in clouds},
            offers={c: Fresh(tuple(o for o in self.offers if o.provider == c), self.now) for c in clouds},
            tailnet=Fresh(tailnet(*(peer(m) for m in rented if m.name not in ended)), self.now),
            slurm=Fresh(slurm(*nodes, jobs={s: j for s, j in self.jobs.items() if s in line}), self.now),
            node_addrs={slot: m.tailnet_ip for slot, m in line.items()},
            reports={m.name: AgentReport(at=self.now, head_path=self.path()) for m in line.values()},
        )
        cooldowns = {key: cooldown for key, cooldown in self.cooldowns.items() if cooldown.until > self.now}
        self.hosts = {name: replace(h, seen_at=self.now if h.seen_at else None) for name, h in self.hosts.items()}
        desired = replace(self.desired, cooldowns=cooldowns, hosts=tuple(self.hosts.values()))
        return self.decide(desired, list(self.machines.values()), seen, self.now)

    def decide(self, desired: Desired, machines: list[Machine], seen: Snapshot, now: datetime) -> p.Plan:
        return plan(desired, machines, seen, now)

    def path(self) -> MeasuredPath:
        """Every machine's path to the head: relayed at first, and direct some time later."""
        kind = PathKind.DIRECT if self.now >= self.direct_at else PathKind.DERP
        return MeasuredPath(kind, "fra", 0.05, self.now)

    def do(self, step: p.Step) -> None:
        if isinstance(step, p.RequestMachine):
            self.made += 1
            new = machine(Phase.REQUESTED, created_at=self.now, name=f"lab-{step.subject}-new{self.made:03}")
            gang = f"{step.gang} {self.now}" if step.gang else ""
            new = replace(
                new, slot=step.subject, phase_since=self.now, offer=step.offer, provider=step.offer.provider, gang=gang
            )  # fmt: skip
            self.machines[new.name] = new
            return
        if isinstance(step, p.Launch) and step.others:  # one call for all of them
            for name in step.machines:
                self.do(replace(step, subject=name, others=()))
            return
        m = self.machines[step.subject]
        if isinstance(step, p.Launch):
            m = m.moved(Phase.LAUNCHING, self.now, "asked")
            if m.offer in self.sold_out:
                key = CooldownKey.of_offer(m.offer)
                self.cooldowns[key] = Cooldown(key, self.now + timedelta(days=1), "sold out")
                self.machines[m.name] = m.moved(Phase.GONE, self.now, "sold out")
                return
        if isinstance(step, p.Leave):
            assert m.slot not in self.jobs, f"{m.name} left Slurm under job {self.jobs[m.slot]}"
        if isinstance(step, p.Replace):
            assert m.slot not in self.jobs, f"{m.name} was given up under job {self.jobs[m.slot]}"
            assert self.ills.get(m.name) not in {None, "person"}, f"{m.name} is not one to be replaced"
            key = f"replace:{step.pool}"
            self.cooldowns[key] = Cooldown(key, self.now + timedelta(seconds=600), "one was", 1, CooldownCause.UNFIT)
        if isinstance(step, p.RestartSlurmd) and ILLS[self.ills[m.name]][2]:
            del self.ills[m.name]
        if not isinstance(step, p.RecordFitness | p.RestartSlurmd | p.Replace):
            (self.drained.add if isinstance(step, p.Drain) else self.drained.discard)(m.slot)
        if m.provider == "static" and isinstance(step, p.Launch | p.Terminate):
            name = m.offer.instance_type
            self.hosts[name] = replace(self.hosts[name], machine=m.name if isinstance(step, p.Launch) else "")
        to, changes = self.outcome(step, m)
        m = m.moved(to, self.now, step.reason) if to else m
        self.machines[m.name] = replace(m, **changes)

    def outcome(self, step: p.Step, m: Machine) -> tuple[Phase | None, dict[str, Any]]:
        """The phase that follows, None for the same, and what else the record then says."""
        if isinstance(step, p.Move):
            return step.to, {"failure": step.failure or m.failure}
        bought = {"instance_id": f"i-{m.name}", "launch_called_at": self.now, "launch_attempts": 1}
        asked = {"terminate_called_at": self.now}
        table: dict[type[p.Step], tuple[Phase | None, dict[str, Any]]] = {
            p.Launch: (Phase.BOOTING, bought),
            p.RecordPeer: (Phase.JOINING, {}),
            p.RecordDevice: (None, {"device_gone_since": self.now}),
            p.RecordFitness: (None, self.verdict(step)),
            p.RestartSlurmd: (None, {"slurmd_restarted_at": self.now}),
            p.ReloadSlurmd: (None, {"slurmd_reloaded_at": self.now}),
            p.Undrain: (None, {}),
            p.RequeueLostJobs: (None, {}),
            p.Replace: (Phase.DRAINING, {"failure": step.reason}),
            p.RecordPublished: (None, {"line_published": True}),
            p.StartSlurmd: (None if m.phase is Phase.TESTING else Phase.TESTING, {"slurmd_started": True}),
            p.MarkReady: (Phase.READY, {}),
            p.Remove: (None, {"removal": getattr(step, "removal", None)}),
            p.CancelRemoval: (Phase.READY if m.phase is Phase.DRAINING else None, {"removal": None}),
            p.Drain: (None, {}),
            p.Leave: (None, {"left_slurm": True}),
            p.Terminate: (None, asked),
        }
        return table[type(step)]

    @staticmethod
    def verdict(step: p.Step) -> dict[str, Any]:
        """What the record then says of the node's fitness."""
        if not isinstance(step, p.RecordFitness):
            return {}
        return {"unfit_reason": step.unfit_reason, "unfit_since": step.since if step.unfit_reason else None}

    def agents(self) -> None:
        """Agents speak; those on the tailnet join and prove munge."""
        for m in list(self.machines.values()):
            if m.phase is Phase.JOINING:
                self.addresses += 1
                address = f"100.64.1.{self.addresses}"
                m = m.moved(Phase.CONFIGURING, self.now, "joined")
                m = replace(m, tailnet_ip=address, facts=FACTS, munge_ok=True, heartbeat_at=self.now)
            if m.heartbeat_at is not None:
                m = replace(m, heartbeat_at=self.now)
            self.machines[m.name] = m

    def carry_out(self, steps: tuple[p.Step, ...]) -> None:
        held = Counter(m.slot for m in self.machines.values() if m.phase in HOLDS_SLOT)
        for step in steps:
            self.do(step)
            supply = supply_gpus(list(self.machines.values()))
            if isinstance(step, p.RequestMachine):
                pool, target = self.desired.pools["h100"], self.desired.targets["h100"]
                kinds = {"never": {False}, "only": {True}}.get(target.pods or pool.pods, {False, True})
                assert (step.offer.provider == PODS) in kinds, "the pool does not allow it"
                bound = next((h.name for h in self.hosts.values() if h.slot == step.subject), "")
                assert bound in {"", step.offer.instance_type}, "the slot is a host's"
                most = self.desired.targets["h100"].gpus + step.offer.gpus - 1
                assert step.offer.standing or supply <= most, "more was rented than wanted"
                assert not held[step.subject], "the slot is another's"
        taken = Counter(m.slot for m in self.machines.values() if m.phase in HOLDS_SLOT)
        assert all(count <= max(1, held[slot]) for slot, count in taken.items())
        self.now += self.TICK
        self.agents()

    def end(self) -> tuple[int, int, int]:
        """(READY, all that live, jobs) once nothing is left to do."""
        self.agents()
        for _ in range(ROUNDS):
            steps = self.plan().steps
            if not steps and self.now >= self.direct_at:
                break
            assert len({s.subject for s in steps}) == len(steps), "a machine has at most one step at a time"
            self.carry_out(steps)
        else:
            raise AssertionError(f"it never comes to rest: {self.plan().steps}")
        live = [m for m in self.machines.values() if m.phase is not Phase.GONE]
        return sum(m.phase is Phase.READY for m in live), len(live), len(self.jobs)


PHASES = [phase for phase in Phase if phase not in {Phase.LAUNCHING, Phase.GONE, Phase.LOST}]


@st.composite
def states(draw: st.DrawFn) -> tuple[dict[str, Machine], dict[str, str], int]:
    machines: dict[str, Machine] = {}
    jobs: dict[str, str] = {}
    for index in range(1, SLOTS + 1):
        phase = draw(st.sampled_from([None, *PHASES]))
        if phase is None:
            continue
        m = machine(phase, index=index, created_at=ago(draw(st.integers(200, 800))))
        m = replace(m, removal=draw(st.sampled_from([None, None, Removal.SCALE_DOWN, Removal.BY_USER])))
        if phase is Phase.DRAINING and not m.removal:
            m = replace(m, failure="broken")
        if phase is Phase.CONFIGURING:
            m = replace(m, munge_ok=True)
        if m.slurmd_started and draw(st.booleans()):
            jobs[m.slot] = str(index)
        machines[m.name] = m
    return machines, jobs, draw(st.integers(0, SLOTS + 1))


@settings(max_examples=bounded(100, 6000))
@given(states(), st.integers(0, 20), st.integers(0, 4))
def test_any_prefix_leads_to_the_same_end(
    start: tuple[dict[str, Machine], dict[str, str], int], cut: int, rounds_cut: int
) -> None:
    whole, cut_off = Ideal(*start), Ideal(*start)
    for _ in range(rounds_cut):
        cut_off.carry_out(cut_off.plan().steps[:cut])
    ready, live, jobs = whole.end()
    again_ready, again_live, again_jobs = cut_off.end()
    assert jobs == again_jobs == len(start[1]), "no job was ended"
    assert again_ready == ready
    assert again_live == live
    waiting = live - ready  # machines that wait for their jobs
    assert ready == min(start[2], SLOTS - sum(m.phase in HOLDS_SLOT for m in whole.machines.values()) + ready)
    assert waiting <= len(start[1])


@settings(max_examples=bounded(60, 3000))
@given(states(), st.sampled_from([0, 40, 160]), st.integers(0, 20), st.integers(0, 4))
def test_so_it_does_where_paths_must_be_direct(
    start: tuple[dict[str, Machine], dict[str, str], int], relayed_s: int, cut: int, rounds_cut: int
) -> None:
    whole, cut_off = Ideal(*start, relayed_s=relayed_s), Ideal(*start, relayed_s=relayed_s)
    for _ in range(rounds_cut):
        cut_off.carry_out(cut_off.plan().steps[:cut])
    assert whole.end() == cut_off.end()


@settings(max_examples=bounded(200, 4000))
@given(states())
def test_a_plan_only_makes_moves_that_are_allowed(start: tuple[dict[str, Machine], dict[str, str], int]) -> None:
    world = Ideal(*start)
    for step in world.plan().steps:
        world.do(step)  # Machine.moved raises IllegalMove


@settings(max_examples=bounded(200, 4000))
@given(states())
def test_no_machine_with_a_job_is_told_to_leave(start: tuple[dict[str, Machine], dict[str, str], int]) -> None:
    world = Ideal(*start)
    for step in world.plan().steps:
        m = world.machines.get(step.subject)
        if m is not None and m.slot in world.jobs:
            assert not isinstance(step, p.Leave)
            assert not isinstance(step, p.Terminate) or m.phase is Phase.TERMINATING


@st.composite
def mixed(draw: st.DrawFn) -> tuple[dict[str, Machine], dict[str, str], int, dict[str, Any]]:
    """Machines of several shapes in several places, some offers that turn out to be sold out."""
    machines, jobs, gpus = draw(states())
    offers = {name: draw(st.sampled_from(MIXED_OFFERS)) for name in machines}
    machines = {name: replace(m, offer=offers[name], provider=offers[name].provider) for name, m in machines.items()}
    how: dict[str, Any] = {
        "sold_out": tuple(draw(st.lists(st.sampled_from(MIXED_OFFERS), max_size=4, unique=True))),
        "spread": draw(st.booleans()),
        "pods": draw(st.sampled_from(["", "never", "allow", "only"])),
        "overshoot_max_gpus": draw(st.sampled_from([None, None, 0, 1])),
        "max_usd_per_hour": draw(st.sampled_from([None, None, 8.0])),
        "at": draw(st.sampled_from([None, ago(500), ago(100)])),
    }
    return machines, jobs, gpus * 2, how


@settings(max_examples=bounded(150, 8000))
@given(mixed(), st.integers(0, 20), st.integers(0, 4))
def test_with_shapes_places_pods_and_refusals_too(
    start: tuple[dict[str, Machine], dict[str, str], int, dict[str, Any]], cut: int, rounds_cut: int
) -> None:
    machines, jobs, gpus, how = start
    whole, cut_off = (Ideal(machines, jobs, gpus, pool=MIXED, offers=MIXED_OFFERS, **how) for _ in range(2))
    for _ in range(rounds_cut):
        cut_off.carry_out(cut_off.plan().steps[:cut])
    for world in (whole, cut_off):
        ready, _, running = world.end()
        assert running == len(jobs), "no job was ended"
        have = supply_gpus(list(world.machines.values()))
        assert ready == len([m for m in world.machines.values() if m.phase is Phase.READY])
        assert have >= gpus or world.plan().warnings, "it says why it has too little"
        if not how["spread"] and not any(m.phase is not Phase.GONE for m in machines.values()):
            assert len({(m.provider, m.offer.region) for m in world.machines.values() if m.phase is Phase.READY}) <= 1
    whole_supply, cut_supply = (
        sorted(m.offer.usd_per_hour for m in world.machines.values() if m.phase is Phase.READY)
        for world in (whole, cut_off)
    )
    # What was rented before a refusal stays: it takes slots and money, or keeps a gang where it is. So the end depends
    # on when the refusal comes.
    if not how["sold_out"] and supply_gpus(list(machines.values())) <= gpus and (how["spread"] or not machines):
        assert sum(whole_supply) == sum(cut_supply)


@st.composite
def ailing(draw: st.DrawFn) -> tuple[dict[str, Machine], dict[str, str], int, dict[str, str]]:
    """Machines of which some ail."""
    machines, jobs, gpus = draw(states())
    ills = {}
    for name, m in machines.items():
        ill = draw(st.sampled_from([None, *ILLS]))
        if m.phase is Phase.READY and ill is not None:
            ills[name] = ill
            if ill == "rebooted":
                jobs.pop(m.slot, None)  # Slurm ends the jobs of a node that it holds DOWN
    return machines, jobs, gpus, ills


@settings(max_examples=bounded(100, 6000))
@given(ailing(), st.integers(0, 20), st.integers(0, 4))
def test_unfit_nodes_are_replaced_and_any_prefix_leads_there(
    start: tuple[dict[str, Machine], dict[str, str], int, dict[str, str]], cut: int, rounds_cut: int
) -> None:
    """Nothing is left that ails but what a person holds, what a job is on, and what nobody wants to be replaced."""
    machines, jobs, gpus, ills = start
    ends = []
    for rounds in (0, rounds_cut):
        world = Ideal(machines, jobs, gpus, ills=ills)
        for _ in range(rounds):
            world.carry_out(world.plan().steps[:cut])
        for _ in range(3 * SLOTS):
            ready, live, running = world.end()
            assert running == len(jobs), "no job was ended"
            world.now += timedelta(seconds=700)  # whatever waits for its time, has had it
            world.agents()
        assert not world.plan().steps
        ends.append((ready, live))
        ailing = [m for m in world.machines.values() if m.phase is Phase.READY and m.name in world.ills]
        whole = supply_gpus(list(world.machines.values())) >= gpus
        for m in ailing:
            assert world.ills[m.name] == "person" or m.slot in jobs or not whole
    assert ends[0] == ends[1]


OWNED = replace(POOL, providers=("static", "aws"))


@st.composite
def owned(draw: st.DrawFn) -> tuple[dict[str, Machine], dict[str, str], int, tuple[Host, ...]]:
    """Hosts that are there, away or asleep, beside rented machines in the other slots."""
    machines, jobs, gpus = draw(states())
    count = draw(st.integers(1, 3))
    hosts = tuple(
        host(index, there=draw(st.booleans()), sleeps=draw(st.booleans())) for index in range(1, count + 1)
    )  # fmt: skip
    bound = {h.slot for h in hosts}
    rented = {name: m for name, m in machines.items() if m.slot not in bound}
    return rented, {slot: job for slot, job in jobs.items() if slot not in bound}, gpus, hosts


@settings(max_examples=bounded(150, 6000))
@given(owned(), st.integers(0, 20), st.integers(0, 4))
def test_hosts_are_taken_first_and_any_prefix_leads_there(
    start: tuple[dict[str, Machine], dict[str, str], int, tuple[Host, ...]], cut: int, rounds_cut: int
) -> None:
    machines, jobs, gpus, hosts = start
    ends = []
    for rounds in (0, rounds_cut):
        world = Ideal(machines, jobs, gpus, pool=OWNED, hosts=hosts)
        for _ in range(rounds):
            world.carry_out(world.plan().steps[:cut])
        ready, live, running = world.end()
        assert running == len(jobs), "no job was ended"
        nodes = {m.slot for m in world.machines.values() if m.phase is Phase.READY and m.provider == "static"}
        always = {h.slot for h in hosts if h.seen_at is not None and not h.can_sleep}
        assert always <= nodes, "a host that is there and never sleeps is a node"
        away = {h.slot for h in hosts if h.seen_at is None and not h.can_sleep}
        assert not away & nodes
        assert {h.machine for h in world.hosts.values() if h.machine} == {
            m.name for m in world.machines.values() if m.phase is not Phase.GONE and m.provider == "static"
        }
        room = SLOTS - len(away) - sum(
            m.phase in HOLDS_SLOT and m.phase is not Phase.READY for m in world.machines.values()
        )  # fmt: skip
        assert ready == max(min(gpus, room), len(always)), "hosts count for the target"
        ends.append((ready, live, len(always)))
    assert ends[0] == ends[1]


@settings(max_examples=bounded(60, 2000))
@given(st.integers(0, SLOTS), st.integers(0, SLOTS))
def test_a_host_that_is_there_stays_whatever_the_target(before: int, after: int) -> None:
    world = Ideal({}, {}, before, pool=OWNED, hosts=(host(1), host(2, sleeps=True)))
    world.end()
    world.desired = replace(world.desired, targets={"h100": Target("h100", after)})
    ready, _, _ = world.end()
    nodes = {m.slot for m in world.machines.values() if m.phase is Phase.READY and m.provider == "static"}
    assert ready == max(1, after)
    assert "h100-1" in nodes
    assert ("h100-2" in nodes) <= (before >= 2 or after >= 2)
    if after >= 2 and before <= 1:
        assert "h100-2" in nodes, "the sleeping host is woken before anything is rented"
