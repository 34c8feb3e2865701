"""How long a plan takes when Slurm powers up 1,000 slots at once: for one job, for a thousand, and beside 1,000 nodes.

The catalogue is that of `cover`: 5,000 offers. What is measured is the whole plan, as a tick makes it.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from statistics import median

from meshd.model.budget import Budget, BudgetLimits
from meshd.model.cooldown import Cooldown, CooldownKey
from meshd.model.desired import Desired, Pool, Promise, Target
from meshd.model.ids import MachineName, PoolName, SlotName, slot_name
from meshd.model.machine import Machine, Phase
from meshd.model.observed import Fresh, SlurmJob, SlurmNode, SlurmView, Snapshot, TailnetView
from meshd.model.plan import Plan, RequestMachine
from meshd.plan.planner import plan
from meshd.provider_api import Instance, InstanceId, InstanceState, Offer
from tests.bench.cover import PROVIDERS, catalogue
from tests.bench.report import Row, report

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SLOTS = 1000
TARGET_MS = 200.0
POOL = Pool("h100", "h100", 1, 2 * SLOTS, PROVIDERS, from_queue=True, promise=Promise(8, 60000, 1))


def ready(index: int, offer: Offer) -> Machine:
    """A node that was there before."""
    slot, at = slot_name("h100", index), NOW - timedelta(hours=1)
    return Machine(
        MachineName(f"lab-{slot}-aaaaaa"), PoolName("h100"), SlotName(slot), offer.provider, offer, Phase.READY, at, at,
        instance_id=f"i-{index}", tailnet_ip=f"100.64.{index // 250}.{index % 250 + 1}", launch_attempts=1,
        line_published=True, slurmd_started=True, heartbeat_at=NOW, ready_at=at,
    )  # fmt: skip


def snapshot(offers: list[Offer], machines: list[Machine], jobs: tuple[SlurmJob, ...]) -> Snapshot:
    """Every source answers: Slurm powers up what the jobs have."""
    at = {m.slot: m for m in machines}
    nodes = {}
    for index in range(1, POOL.max_nodes + 1):
        name = slot_name("h100", index)
        if name in at:
            nodes[name] = SlurmNode(name, at[name].tailnet_ip, frozenset({"IDLE", "CLOUD"}))
        else:
            nodes[name] = SlurmNode(name, "192.0.2.1", frozenset({"IDLE", "CLOUD", "POWERED_DOWN"}))
    for job in jobs:
        for slot in job.nodes:
            nodes[SlotName(slot)] = SlurmNode(slot, "192.0.2.1", frozenset({"MIXED", "CLOUD", "POWERING_UP"}))
    listed = {p: tuple(_listed(m) for m in machines if m.provider == p) for p in PROVIDERS}
    return Snapshot(
        instances={p: Fresh(found, NOW) for p, found in listed.items()},
        offers={p: Fresh(tuple(o for o in offers if o.provider == p), NOW) for p in PROVIDERS},
        tailnet=Fresh(TailnetView("100.64.0.1", "head", True, (), {}), NOW),
        slurm=Fresh(SlurmView("24.11.5", nodes, jobs, power_saving=True), NOW),
        node_addrs={m.slot: m.tailnet_ip for m in machines},
    )


def _listed(machine: Machine) -> Instance:
    return Instance(
        machine.offer.provider, InstanceId(machine.instance_id), machine.name, InstanceState.RUNNING,
        machine.offer.region, machine.offer.instance_type,
    )  # fmt: skip


def main() -> None:
    """Measure and report."""
    offers = catalogue(5000, seed=1)
    slots = [slot_name("h100", SLOTS + index) for index in range(1, SLOTS + 1)]
    one = (SlurmJob("1", "u", "h100", "CONFIGURING", tuple(slots)),)
    many = tuple(SlurmJob(str(i), "u", "h100", "CONFIGURING", (slot,)) for i, slot in enumerate(slots))
    gangs = tuple(
        SlurmJob(str(i), "u", "h100", "CONFIGURING", tuple(slots[i : i + 4])) for i in range(0, len(slots), 4)
    )
    cold = {
        key: Cooldown(key, NOW + timedelta(seconds=60), "sold out")
        for key in (CooldownKey.of_offer(offer) for offer in offers)
    }
    nodes = [ready(index, offers[0]) for index in range(1, SLOTS + 1)]
    budget = Budget({"": BudgetLimits(usd_per_hour=1e6, usd_per_month=1e9)}, {}, NOW)
    desired = Desired("lab", {"h100": POOL}, {})
    limited = replace(desired, pools={"h100": replace(POOL, max_usd_per_hour=100.0)})
    rows = []
    for what, jobs, machines, wanted, rented in (
        ("one job", one, [], desired, SLOTS),
        ("250 jobs of four nodes", gangs, [], desired, SLOTS),
        ("1,000 jobs", many, [], desired, SLOTS),
        ("1,000 jobs, beside 1,000 nodes and a target", many, nodes,
         replace(desired, targets={"h100": Target("h100", SLOTS, at=NOW)}), SLOTS),
        ("1,000 jobs, budgets", many, [], replace(desired, budget=budget), SLOTS),
        ("1,000 jobs, and every offer cools down", many, [], replace(desired, cooldowns=cold), 0),
        ("250 jobs of four nodes, under a limit for 25", gangs, [], limited, None),
    ):  # fmt: skip
        seen, taken = snapshot(offers, machines, jobs), []
        found = Plan()
        for _ in range(7):
            started = time.process_time()
            found = plan(wanted, machines, seen, NOW)
            taken.append((time.process_time() - started) * 1000)
        asked = sum(isinstance(step, RequestMachine) for step in found.steps)
        if (rented is not None and asked != rented) or (rented == 0 and not found.refused):
            sys.exit(f"{what}: {asked} machines were asked for and {len(found.refused)} refused: it measures nothing")
        rows.append(Row(f"1,000 slots at once: {what}", median(taken), "ms", TARGET_MS))
    report("demand", rows, {"offers": len(offers), "slots": SLOTS})


if __name__ == "__main__":
    main()
