"""PURE: the jobs that wait for machines of meshd: for what, until when, and why not sooner, in one sentence each.

The sentence is written into the job's AdminComment (`squeue -O admin_comment`), sent to people who wait at a terminal,
and shown by `meshctl status`. It stays the same while nothing changes: it has times of day, and no countdown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from statistics import median

from meshd.codes import DemandCode
from meshd.model.cooldown import CooldownCause, CooldownKey
from meshd.model.desired import Desired, Pool, Target
from meshd.model.ids import slot_index
from meshd.model.machine import COUNTS_AS_SUPPLY, Machine, Phase
from meshd.model.observed import SlurmJob, SlurmView
from meshd.model.plan import OpenSlots, Plan, RefusedDemand
from meshd.plaintext import counted, plain
from meshd.plan.demand_growth import ENDS_SOMEHOW
from meshd.plan.gang import group_of, place
from meshd.plan.placement import cooldown_of, misses
from meshd.plan.promise import suiting
from meshd.provider_api import Offer

WORDS_MAX = 200
"""The most characters of a sentence: AdminComment is one line of `squeue`."""
COMMENT = "meshd: "
"""How an AdminComment of meshd begins."""
SENT_BACK = f"{COMMENT}back in the queue: "
"""How that of a job begins which meshd has put back until the next try: it may start earlier. Its user's own --begin
counts."""

VM_S, POD_S = 120.0, 60.0
"""From the create call to READY, where no machine was rented yet."""

_FOR_NODES = ("Resources", "ReqNodeNotAvail", "Nodes required", "NodeDown")
"""How Slurm's reason begins when a pending job waits for nodes and for nothing else."""

_FOR_A_TURN = ("Resources", "Priority")
"""Slurm's reason for a pending job that nodes in use could serve."""

_ORDERED = frozenset({Phase.REQUESTED, Phase.LAUNCHING})


class Wait(StrEnum):
    """What a job waits for."""

    ORDER = "order"
    """Machines that are about to be ordered."""
    BOOT = "boot"
    """Machines that boot and join."""
    START = "start"
    """All its machines are READY; Slurm is about to start it."""
    REFUSED = "refused"
    """No machine can be had for it now."""


@dataclass(frozen=True, slots=True)
class BootTime:
    """How long a machine took from its create call until it was READY."""

    provider: str
    instance_type: str
    took_s: float


@dataclass(frozen=True, slots=True)
class BootTimes:
    """What is known of how long machines take until they are READY.

    Attributes:
        newest: of the last machines, newest first.
        pod_providers: the providers that rent pods.
    """

    newest: tuple[BootTime, ...] = ()
    pod_providers: frozenset[str] = field(default_factory=frozenset)

    def expected_s(self, offer: Offer) -> float:
        """The median of its type's last machines, or of its provider's; a usual value where there were none."""
        of_provider = [one for one in self.newest if one.provider == offer.provider]
        of_type = [one for one in of_provider if one.instance_type == offer.instance_type]
        known = of_type or of_provider
        if known:
            return median(one.took_s for one in known[:20])
        return POD_S if offer.provider in self.pod_providers else VM_S


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """A job that waits for machines.

    Attributes:
        nodes: how many it wants in all; 0 when that is not known.
        ready: how many of them are READY.
        until: when its machines are ready, as far as can be expected, or when it is tried again; None: not known.
        text: for people, at most WORDS_MAX characters.
        batch: sbatch submitted it, so that nobody waits at a terminal.
    """

    job: str
    user: str
    pool: str
    nodes: int
    ready: int
    wait: Wait
    until: datetime | None
    text: str
    batch: bool

    @property
    def comment(self) -> str:
        """The job's AdminComment."""
        return COMMENT + self.text


def waiting_jobs(
    desired: Desired,
    partitions: Mapping[str, str],
    machines: Iterable[Machine],
    slurm: SlurmView,
    plan: Plan,
    offers: Sequence[Offer],
    times: BootTimes,
    now: datetime,
) -> tuple[WaitingJob, ...]:
    """The jobs that wait for machines of the pools that Slurm's queue drives, by id.

    Args:
        desired: pools and cooldowns.
        partitions: the partition of each pool.
        machines: those that are not GONE.
        slurm: nodes and jobs.
        plan: what cannot be had now.
        offers: of all providers, for the reason in short.
        times: how long machines take.
        now: UTC.
    """
    pools = [pool for pool in desired.pools.values() if pool.from_queue]
    at: dict[str, Machine] = {
        m.slot: m for m in machines if m.phase in COUNTS_AS_SUPPLY and not m.removal and not m.failure
    }
    refused = {job: one for one in plan.refused for job in one.jobs}
    words: dict[tuple[str, str], str] = {}

    def why(pool: Pool, code: DemandCode, reason: str) -> str:
        if (pool.name, reason) not in words:
            short = capacity_words(desired, pool, offers, now) if code is DemandCode.NO_CAPACITY else ""
            words[pool.name, reason] = short or reason
        return words[pool.name, reason]

    found = []
    for job in slurm.jobs:
        for pool in pools:
            if job.configuring and any(slot_index(pool.name, slot) for slot in job.nodes):
                one = refused.get(job.id)
                found.append(
                    _configuring(job, pool, at, times, now, plan.held_orders)
                    if one is None
                    else _refused(job, pool, _until(one), why(pool, one.code, one.reason), now)
                )
                break
            closed = plan.open_slots.get(pool.name)
            if closed is not None and closed.code is not None and _waits_for(job, partitions[pool.name], closed):
                found.append(_refused(job, pool, closed.until, why(pool, closed.code, closed.reason), now))
                break
    return tuple(sorted(found, key=lambda one: (_number(one.job), one.job)))


def _waits_for(job: SlurmJob, partition: str, closed: OpenSlots) -> bool:
    """Whether a pending job waits for slots that cannot be powered up now."""
    if job.state != "PENDING" or partition not in job.partition.split(","):
        return False
    again = job.state_reason == "BeginTime" and job.admin_comment.startswith(SENT_BACK)
    return (again or job.state_reason.startswith(_FOR_NODES)) and (
        closed.count == 0 or job.node_count > closed.count
    )  # fmt: skip


def _until(refused: RefusedDemand) -> datetime | None:
    """When it is tried again, for people, where that is known."""
    return None if refused.code in ENDS_SOMEHOW else refused.until


def _configuring(
    job: SlurmJob,
    pool: Pool,
    at: Mapping[str, Machine],
    times: BootTimes,
    now: datetime,
    held_orders: Mapping[str, str],
) -> WaitingJob:
    slots = [slot for slot in job.nodes if slot_index(pool.name, slot)]
    there = [at[slot] for slot in slots if slot in at]
    ready = [m for m in there if m.phase is Phase.READY]
    coming = [m for m in there if m.phase is not Phase.READY]
    missing = len(slots) - len(there)
    if missing:
        of = f"{missing} of {len(slots)} machines" if there else counted(len(slots), "machine")
        verb = "is" if of.startswith("1 ") and not there else "are"
        return _waiting(job, pool, len(ready), Wait.ORDER, None, f"{of} {verb} about to be ordered")
    if not coming:
        text = "all its machines are ready: Slurm is about to start it"
        return _waiting(job, pool, len(ready), Wait.START, None, text)
    held = [m for m in coming if m.name in held_orders]
    if held:
        of = f"{len(held)} of {len(slots)} machines" if len(held) < len(slots) else counted(len(slots), "machine")
        verb = "waits" if len(slots) == 1 else "wait"
        text = f"{of} {verb} to be ordered: {held_orders[held[0].name]}"
        return _waiting(job, pool, len(ready), Wait.ORDER, None, text)
    ends = [_ready_at(machine, times) for machine in coming]
    until, usual_s = max(ends, key=lambda one: one[0])
    of = f"{len(coming)} of {len(slots)} machines" if ready else counted(len(slots), "machine")
    one = len(coming) == 1
    ordered = all(m.phase in _ORDERED for m in coming)
    verb = ("is ordered" if one else "are ordered") if ordered else ("boots" if one else "boot")
    where = _where(coming)
    if until <= now:
        text = f"{of} {verb} at {where}, for longer than the usual {usual_s:.0f} s"
        return _waiting(job, pool, len(ready), Wait.BOOT, None, text)
    text = f"{of} {verb} at {where}, ready about {moment(until, now)} ({usual_s:.0f} s)"
    return _waiting(job, pool, len(ready), Wait.BOOT, until, text)


def _ready_at(machine: Machine, times: BootTimes) -> tuple[datetime, float]:
    """When a machine will be READY, and how many seconds machines like it take."""
    usual_s = times.expected_s(machine.offer)
    return (machine.launch_called_at or machine.created_at) + timedelta(seconds=usual_s), usual_s


def _where(machines: Sequence[Machine]) -> str:
    places = sorted({place(group_of(machine.offer)) for machine in machines})
    return places[0] if len(places) == 1 else f"{places[0]} and {counted(len(places) - 1, 'other place')}"


def _refused(job: SlurmJob, pool: Pool, until: datetime | None, why: str, now: datetime) -> WaitingJob:
    what = pool.gpu or "machine"
    when = f"before {moment(until, now)}" if until is not None else "now"
    return _waiting(job, pool, 0, Wait.REFUSED, until, f"no {what} can be had {when}: {why}")


def _waiting(job: SlurmJob, pool: Pool, ready: int, wait: Wait, until: datetime | None, text: str) -> WaitingJob:
    return WaitingJob(
        job=job.id, user=job.user, pool=pool.name, nodes=job.node_count or len(job.nodes), ready=ready, wait=wait,
        until=until, text=plain(text, WORDS_MAX - len(COMMENT)), batch=job.batch,
    )  # fmt: skip


def _number(job: str) -> int:
    head = job.partition("_")[0]
    return int(head) if head.isdigit() else 0


def comments(waiting: Iterable[WaitingJob], slurm: SlurmView) -> dict[str, str]:
    """By job, the AdminComment to write now, those first whose machines come; "" for one that runs or waits for a turn.

    A comment that somebody else wrote stays, and so does that of a job which waits for its time: it says by it whether
    meshd has put the job back (`SENT_BACK`). That is written when it is put back, and so it may be, although this view
    still shows it CONFIGURING.
    """
    said = {one.job: one for one in waiting if one.wait is not Wait.START}
    found: list[tuple[bool, str, str]] = []
    for job in slurm.jobs:
        one = said.get(job.id)
        refused = one is not None and one.wait is Wait.REFUSED
        if job.state_reason == "BeginTime" or (refused and job.configuring):
            continue
        over = job.state == "RUNNING" or (job.state == "PENDING" and job.state_reason in _FOR_A_TURN)
        wanted = one.comment if one else "" if over else job.admin_comment
        own = not job.admin_comment or job.admin_comment.startswith(COMMENT)
        if own and wanted != job.admin_comment:
            found.append((refused, job.id, wanted))
    return {job: comment for _, job, comment in sorted(found, key=lambda row: row[0])}


def moment(at: datetime, now: datetime) -> str:
    """A time for people: "12:31 UTC", with the day where it is another one."""
    return f"{at:%H:%M} UTC" if at.date() == now.date() else f"{at:%Y-%m-%d %H:%M} UTC"


def capacity_words(desired: Desired, pool: Pool, offers: Sequence[Offer], now: datetime) -> str:
    """Who refused, in short: "aws has none in 3 zones, machines of lambda failed"; "" when nobody did."""
    wanted, found = Target(pool.name, 0), {}
    suit = suiting(offers, pool)
    for provider in dict.fromkeys((*pool.providers, *(o.provider for o in suit))):
        mine = [offer for offer in suit if offer.provider == provider]
        whole = desired.cooldowns.get(CooldownKey.of_provider(provider))
        if mine and whole is not None and whole.until > now and whole.cause is not CooldownCause.PAUSE:
            found[provider] = f"{provider} is not asked before {moment(whole.until, now)}"
            continue
        held = [(o, cooldown_of(o, desired.cooldowns, now, pool.name)) for o in mine]
        failed = [o for o, one in held if one is not None and one.cause is CooldownCause.BOOTS]
        none = [o for o, one in held if (one is not None and o not in failed) or o.available is False]
        parts = [f"{provider} has none in {_places(none)}"] if none else []
        parts += [f"machines of {provider} failed in {_places(failed)}"] if failed else []
        if parts:
            found[provider] = ", ".join(parts)
    limit = pool.max_usd_per_gpu_hour
    by_price = limit is not None and any(
        [miss.cure for miss in misses(o, pool, wanted)] == [f"pools.{pool.name}.max_usd_per_gpu_hour"] for o in offers
    )
    if found and by_price:
        found["limit"] = f"limit {limit:g} USD per {'machine' if pool.cpu_only else 'GPU'}-hour"
    return ", ".join(found.values())


def _places(offers: Sequence[Offer]) -> str:
    zones, regions = {o.zone for o in offers if o.zone}, {o.region for o in offers if not o.zone}
    if len(zones | regions) == 1:
        return next(iter(zones | regions))
    parts = [counted(len(zones), "zone")] if zones else []
    return " and ".join(parts + ([counted(len(regions), "region")] if regions else []))
