"""Slurm's side of a pool that its queue drives, in plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from meshd.model import plan as p
from meshd.model.budget import Budget
from meshd.model.cooldown import Cooldown, CooldownCause, CooldownKey
from meshd.model.desired import Desired, Policy, Pool, Promise, Target
from meshd.model.freeze import Freeze
from meshd.model.host import Host
from meshd.model.machine import Machine, Phase
from meshd.model.observed import Fresh, SlurmJob, SlurmNode, SlurmView, Unavailable
from meshd.plan.planner import plan
from meshd.provider_api import Offer, ProviderName
from tests.unit.worlds import NOW, OFFER, instance, machine, snapshot

POOL = Pool("h100", "h100", 1, 8, ("aws", "gce"), from_queue=True, promise=Promise(8, 60000, 1))
HERE = OFFER
NEXT = replace(OFFER, zone="r1b", usd_per_hour=2.5)
"""Of the same place."""
THERE = replace(OFFER, provider=ProviderName("gce"), region="r2", zone="r2a", instance_type="g.2", usd_per_hour=3.0)
"""Dearer, and elsewhere."""

POWERING_UP = frozenset({"MIXED", "CLOUD", "POWERING_UP", "NOT_RESPONDING"})


def job(number: int, *slots: int, state: str = "CONFIGURING") -> SlurmJob:
    return SlurmJob(str(number), "u", "h100", state, tuple(f"h100-{slot}" for slot in slots))


def view(
    *jobs: SlurmJob, machines: Sequence[Machine] = (), states: Mapping[int, set[str]] | None = None, slots: int = 8
) -> SlurmView:
    """The slots of jobs that wait power up; nodes of READY machines are up; the others are free."""
    at = {m.slot: m for m in machines}
    nodes = {}
    for index in range(1, slots + 1):
        name = f"h100-{index}"
        m = at.get(name)  # type: ignore[call-overload]
        up = m is not None and m.phase in {Phase.READY, Phase.DRAINING}
        held = [j for j in jobs if name in j.nodes]
        shown = {"MIXED"} if held else {"IDLE"}
        if not up:
            shown |= {"CLOUD", "POWERING_UP", "NOT_RESPONDING"} if held else {"CLOUD", "POWERED_DOWN"}
        shown = (states or {}).get(index, shown)
        nodes[name] = SlurmNode(name, m.tailnet_ip if m and m.tailnet_ip else "192.0.2.1", frozenset(shown))
    return SlurmView("24.11.5", nodes, jobs, power_saving=True)


def by_queue(phase: Phase, index: int, *jobs: int, offer: Offer = HERE, **changes: Any) -> Machine:
    """A machine that was rented for jobs."""
    made = machine(phase, index=index, by_queue=True, for_jobs=tuple(map(str, jobs)), offer=offer, **changes)
    return replace(made, provider=offer.provider, region=offer.region)


def cooling(*offers: Offer, s: float = 60, cause: CooldownCause = CooldownCause.REFUSED) -> dict[CooldownKey, Cooldown]:
    until = NOW + timedelta(seconds=s)
    keys = [CooldownKey.of_offer(offer) for offer in offers]
    return {key: Cooldown(key, until, "sold out, said the cloud", cause=cause) for key in keys}


def decided(
    slurm: SlurmView | None, *machines: Machine, offers: Sequence[Offer] = (HERE, NEXT, THERE), pool: Pool = POOL,
    gpus: int | None = None, cooldowns: Mapping[CooldownKey, Cooldown] | None = None,
    expired: Mapping[CooldownKey, Cooldown] | None = None, target: Mapping[str, Any] | None = None,
    budget: Budget | None = None, freeze: Freeze | None = None, unread: Mapping[str, Unavailable] | None = None,
    hosts: tuple[Host, ...] = (), **parts: Any,
) -> p.Plan:  # fmt: skip
    rented = [m for m in machines if m.instance_id]
    clouds = {"aws", "gce"}
    whole = {
        "instances": {c: Fresh(tuple(instance(m, provider=c) for m in rented if m.provider == c), NOW) for c in clouds},
        "offers": {c: Fresh(tuple(o for o in offers if o.provider == c), NOW) for c in clouds} | dict(unread or {}),
    }
    whole["slurm"] = Fresh(slurm, NOW) if slurm is not None else Unavailable("away", NOW)  # type: ignore[assignment]
    seen = snapshot(**{**whole, **parts})
    targets = {} if gpus is None else {"h100": Target("h100", gpus, **(target or {}))}
    desired = Desired(
        "lab", {"h100": pool}, targets, Policy(gang_max={"aws": 500, "gce": 1000}), cooldowns=cooldowns or {},
        expired_cooldowns=expired or {}, budget=budget or Budget(), hosts=hosts,
        freeze=freeze,
    )  # fmt: skip
    return plan(desired, machines, seen, NOW)


def requests(found: p.Plan) -> list[p.RequestMachine]:
    return [step for step in found.steps if isinstance(step, p.RequestMachine)]


def rents(found: p.Plan) -> list[tuple[str, str]]:
    return [(step.subject, step.offer.key) for step in requests(found)]


def removed(found: p.Plan) -> set[str]:
    return {step.subject for step in found.steps if isinstance(step, p.Remove)}
