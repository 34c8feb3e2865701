"""Waiting for a target: how far it is, told by what the daemon shows, and when waiting has no sense any more."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from meshd.api import endpoints
from meshd.api.schema import EventsQuery, NodeRow, ScaleAnswer, StatusView
from meshd.cli.client import Head
from meshd.cli.exits import UnreachableError
from meshd.cli.ladder import Ladder
from meshd.model.words import counted
from meshd.runtime.clock import Clock

ON_THE_WAY = frozenset({"requested", "launching", "booting", "joining", "configuring", "testing"})
LEAVING = frozenset({"draining", "terminating", "lost"})

POLL_S = 2.0
RETRY_S = 0.5
SILENCE_MAX_S = 120.0


class Outcome(StrEnum):
    """How the waiting ended, or that it goes on."""

    WAITING = "waiting"
    REACHED = "reached"
    GAVE_UP = "gave_up"
    TIMED_OUT = "timed_out"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True)
class Verdict:
    """An outcome and its reason for people."""

    outcome: Outcome
    reason: str = ""
    cure: str = ""


class Progress(Protocol):
    """Shows how it goes."""

    def update(self, nodes: Sequence[NodeRow], status: StatusView, elapsed_s: float) -> None:
        """What is now."""
        ...

    def note(self, text: str) -> None:
        """Something that people should know."""
        ...


@dataclass(frozen=True, slots=True)
class Watched:
    """The end of a watch."""

    verdict: Verdict
    nodes: list[NodeRow]
    elapsed_s: float
    gained: bool


def judge(answer: ScaleAnswer, status: StatusView, nodes: Sequence[NodeRow], lost_before: frozenset[str]) -> Verdict:
    """Whether the target is reached. `nodes` are the pool's; `lost_before` were LOST when the waiting began."""
    if status.tick_at is None or status.tick_at < answer.at:
        return Verdict(Outcome.WAITING, "meshd has not looked yet")
    pool = next((p for p in status.pools if p.name == answer.pool), None)
    if pool is None:
        return Verdict(Outcome.SUPERSEDED, f"pool {answer.pool} is not in meshd's settings any more")
    if answer.target_id is not None and pool.target_id is not None and pool.target_id != answer.target_id:
        other = counted(pool.target_gpus, pool.unit)
        return Verdict(Outcome.SUPERSEDED, f"somebody set another target for pool {pool.name}: {other}")
    lost = [n for n in nodes if n.phase == "lost" and n.machine not in lost_before]
    if lost:
        first = lost[0]
        return Verdict(
            Outcome.GAVE_UP,
            f"{first.provider} does not end {first.machine}: {first.reason or 'no reason given'}",
            f"end it in {first.provider}'s console: it costs ${first.usd_per_hour:.2f} per hour",
        )
    if _there(answer, nodes):
        return Verdict(Outcome.REACHED)
    for problem in status.problems:
        if problem.blocking and problem.pool == answer.pool:
            return Verdict(Outcome.GAVE_UP, problem.text, problem.cure)
    return Verdict(Outcome.WAITING, _missing(answer, nodes))


def _units(node: NodeRow) -> int:
    """A CPU-only machine counts as one."""
    return node.gpus or 1


def _fit(node: NodeRow) -> bool:
    """It can take jobs. One that is drained, refused by Slurm or silent does not count."""
    return node.phase == "ready" and not node.failure and not node.unfit


def _there(answer: ScaleAnswer, nodes: Sequence[NodeRow]) -> bool:
    ready = [_units(n) for n in nodes if _fit(n)]
    surplus = sum(ready) - answer.gpus
    if surplus < 0 or any(n.phase in ON_THE_WAY for n in nodes):
        return False
    if any(units <= surplus for units in ready):
        return False  # one more can be given back
    shrinks = answer.gpus < answer.gpus_before or bool(answer.plan.removes)
    return not (shrinks and any(n.phase in LEAVING - {"lost"} for n in nodes))


def _missing(answer: ScaleAnswer, nodes: Sequence[NodeRow]) -> str:
    busy = [f"{n.slot} waits for job {', '.join(n.jobs)}" for n in nodes if n.phase == "draining" and n.jobs]
    if busy:
        return "; ".join(busy)
    ready = sum(_units(n) for n in nodes if _fit(n))
    unfit = "".join(f"; {n.slot} is not fit: {n.unfit_text}" for n in nodes if n.phase == "ready" and n.unfit)
    return f"{ready} of {counted(answer.gpus, answer.unit)} ready{unfit}"


async def watch(head: Head, answer: ScaleAnswer, progress: Progress, *, timeout_s: float, clock: Clock) -> Watched:
    """Follow a change until it is done, given up or out of time. The daemon may restart meanwhile.

    Raises:
        CliError: the daemon stays unreachable, or denies.
    """
    began = clock.monotonic_s()
    heard = began
    last_id = answer.last_event_id
    verdict = Verdict(Outcome.WAITING, "meshd has not answered yet")
    nodes: list[NodeRow] = []
    ladder = Ladder()
    lost_before: frozenset[str] | None = None
    while True:
        now = clock.monotonic_s()
        left_s = timeout_s - (now - began)
        if left_s <= 0:
            verdict = Verdict(Outcome.TIMED_OUT, verdict.reason)
            return Watched(verdict, nodes, now - began, _gained(answer, nodes))
        try:
            view, status = await head.call(endpoints.NODES), await head.call(endpoints.STATUS)
            heard = clock.monotonic_s()
            nodes = [n for n in view.nodes if n.pool == answer.pool]
            if lost_before is None:
                lost_before = frozenset(n.machine for n in nodes if n.phase == "lost")
            progress.update(nodes, status, heard - began)
            verdict = judge(answer, status, nodes, lost_before)
            if verdict.outcome is not Outcome.WAITING:
                return Watched(verdict, nodes, heard - began, _gained(answer, nodes))
            events = await head.call(
                endpoints.EVENTS, EventsQuery(after_id=last_id, wait_s=max(min(POLL_S, left_s), 0.05), limit=500)
            )
            for line in ladder.lines([event for event in events.events if event.pool in ("", answer.pool)]):
                progress.note(line)
            last_id = max(last_id, events.last_id)
            if events.events:
                await asyncio.sleep(0.1)  # a burst of events is one look
        except UnreachableError:
            if clock.monotonic_s() - heard > SILENCE_MAX_S:
                raise
            progress.note("meshd does not answer; it may be restarting")
            await clock.sleep(RETRY_S)


def _gained(answer: ScaleAnswer, nodes: Sequence[NodeRow]) -> bool:
    """Part of what was asked for is there."""
    ready = sum(_units(n) for n in nodes if n.phase == "ready")
    if answer.gpus >= answer.gpus_before:
        return ready > answer.gpus_before
    return ready < answer.gpus_before
