"""What agents of spot machines say of their cloud's notices: journaled, and the offer cools down."""

from __future__ import annotations

from datetime import timedelta

from meshd.api.node_schema import PollIn
from meshd.codes import EventKind
from meshd.daemon.machine_store import MachineStore
from meshd.daemon.machines.cooldowns import Cooldowns
from meshd.model.machine import FailureCause, Machine
from meshd.model.observed import AgentReport
from meshd.plan.preemption import end_told, words

SOONER = timedelta(seconds=5)
"""A notice that tells the same end has another time each time it is read."""

CLOUDS = frozenset({"aws", "gce"})
"""Whose metadata service tells it."""


def spot_cloud(machine: Machine) -> str:
    """The cloud whose notices its agent is to read; "" for none."""
    return machine.provider if machine.offer.spot and machine.provider in CLOUDS else ""


def kinds(report: PollIn) -> tuple[str, ...]:
    """The kinds of the notices, each once."""
    return tuple(sorted({one.kind for one in report.spot_notices or ()}))


def take(
    store: MachineStore, cooldowns: Cooldowns, machine: Machine, report: PollIn, last: AgentReport | None
) -> Machine:
    """Take in what the agent says now.

    Args:
        store: the machines.
        cooldowns: writes that of the offer.
        machine: the record.
        report: from its agent.
        last: what it said before; None since meshd's start.

    Returns:
        The newest record. A machine that is no spot machine, or whose agent reads no notices, stays as it is.
    """
    if report.spot_notices is None or not machine.offer.spot:
        return machine
    now = store.now()
    ends_at = end_told([(one.kind, one.ends_in_s) for one in report.spot_notices], now)
    if ends_at is not None and machine.preempted_at is None:
        text = words(ends_at)
        cooldowns.failed(machine, FailureCause.PREEMPTED, text)
        return store.node_change(machine.name, EventKind.SPOT_NOTICE, text, preempted_at=ends_at)
    if ends_at is not None and machine.preempted_at is not None and ends_at < machine.preempted_at - SOONER:
        return store.node_change(machine.name, EventKind.SPOT_NOTICE, words(ends_at), preempted_at=ends_at)
    if ends_at is None and machine.preempted_at is not None:
        text = "its cloud has withdrawn the notice"
        return store.node_change(
            machine.name, EventKind.SPOT_NOTICE, text, preempted_at=None, jobs_signalled_at=None
        )  # fmt: skip
    if "rebalance" in kinds(report) and (last is None or "rebalance" not in last.spot_notices):
        text = "its cloud says that it may soon take it back (rebalance recommendation); nothing is done for that"
        store.node_event(machine.name, EventKind.SPOT_NOTICE, text)
    return machine
