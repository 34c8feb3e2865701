"""`scale --wait`: waits until a pool reaches its target, or until it is clear that it will not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rich.console import Group, RenderableType

from meshd.api import endpoints
from meshd.api.schema import EventRow, EventsQuery, NodeRow, ScaleAnswer, StatusView
from meshd.cli.client import HeadClient
from meshd.cli.errors import UnreachableError
from meshd.cli.progress import Progress
from meshd.cli.render.table import Table
from meshd.cli.render.terminal import clean_text, phase
from meshd.plaintext import age, counted, usd
from meshd.runtime.clock import Clock

STARTING = frozenset({"requested", "launching", "booting", "joining", "configuring", "testing"})
_RENTED = STARTING - {"requested", "launching"}
LEAVING = frozenset({"draining", "terminating", "lost"})

POLL_S = 2.0
RETRY_S = 0.5
SILENCE_MAX_S = 120.0
"""The wait ends with an error when meshd has not answered for this long."""


class WaitOutcome(StrEnum):
    """How the wait ended; WAITING while it goes on. The words are in `-o json`."""

    WAITING = "waiting"
    REACHED = "reached"
    GAVE_UP = "gave_up"
    TIMED_OUT = "timed_out"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True)
class Assessment:
    """An outcome, its reason, and what the user can do."""

    outcome: WaitOutcome
    reason: str = ""
    cure: str = ""


@dataclass(frozen=True, slots=True)
class PoolState:
    """What one round read: the pool's nodes, and the status."""

    nodes: list[NodeRow]
    status: StatusView


@dataclass(frozen=True, slots=True)
class WaitResult:
    """How the wait ended. `gained`: a part of the change was made."""

    assessment: Assessment
    nodes: list[NodeRow]
    elapsed_s: float
    gained: bool


def assess(answer: ScaleAnswer, state: PoolState, lost_before: frozenset[str]) -> Assessment:
    """Whether the pool has reached its target.

    Args:
        answer: to the request that set the target.
        state: what was read last.
        lost_before: the machines that were LOST when the wait began. They do not end it.
    """
    status, nodes = state.status, state.nodes
    if status.tick_at is None or status.tick_at < answer.at:
        return Assessment(WaitOutcome.WAITING, "meshd has not seen the new target yet")
    pool = next((p for p in status.pools if p.name == answer.pool), None)
    if pool is None:
        return Assessment(WaitOutcome.SUPERSEDED, f"pool {answer.pool} is no longer in meshd's settings")
    if answer.target_id is not None and pool.target_id is not None and pool.target_id != answer.target_id:
        other = counted(pool.target_gpus, pool.unit)
        return Assessment(WaitOutcome.SUPERSEDED, f"somebody set another target for pool {pool.name}: {other}")
    lost = [n for n in nodes if n.phase == "lost" and n.machine not in lost_before]
    if lost:
        first = lost[0]
        return Assessment(
            WaitOutcome.GAVE_UP,
            f"{first.provider} does not end {first.machine}: {first.reason or 'no reason given'}",
            f"end it in {first.provider}'s console: it costs ${first.usd_per_hour:.2f} per hour",
        )
    if _reached(answer, nodes):
        return Assessment(WaitOutcome.REACHED)
    for problem in status.problems:
        if problem.blocking and problem.pool == answer.pool:
            return Assessment(WaitOutcome.GAVE_UP, problem.text, problem.cure)
    return Assessment(WaitOutcome.WAITING, _missing(answer, nodes))


def _units(node: NodeRow) -> int:
    """A machine without GPUs counts as one."""
    return node.gpus or 1


def _fit(node: NodeRow) -> bool:
    """Whether the node can take jobs: not if it is drained, refused by Slurm, or silent."""
    return node.phase == "ready" and not node.failure and not node.unfit


def _reached(answer: ScaleAnswer, nodes: Sequence[NodeRow]) -> bool:
    ready = [_units(n) for n in nodes if _fit(n)]
    surplus = sum(ready) - answer.gpus
    if surplus < 0 or any(n.phase in STARTING for n in nodes):
        return False
    if any(units <= surplus for units in ready):
        return False  # meshd will give one more back
    shrinks = answer.gpus < answer.gpus_before or bool(answer.plan.removes)
    return not (shrinks and any(n.phase in LEAVING - {"lost"} for n in nodes))


def _missing(answer: ScaleAnswer, nodes: Sequence[NodeRow]) -> str:
    busy = [f"{n.slot} waits for job {', '.join(n.jobs)}" for n in nodes if n.phase == "draining" and n.jobs]
    if busy:
        return "; ".join(busy)
    ready = sum(_units(n) for n in nodes if _fit(n))
    unfit = "".join(f"; {n.slot} is not fit: {n.unfit_text}" for n in nodes if n.phase == "ready" and n.unfit)
    return f"{ready} of {counted(answer.gpus, answer.unit)} ready{unfit}"


async def wait_for_target(
    head: HeadClient, answer: ScaleAnswer, progress: Progress[PoolState], *, timeout_s: float, clock: Clock
) -> WaitResult:
    """Wait until the target is reached, cannot be reached, or time is up. The daemon may restart meanwhile.

    Raises:
        CliError: the daemon does not answer for SILENCE_MAX_S, or denies access.
    """
    began = clock.monotonic_s()
    answered = began
    last_id = answer.last_event_id
    assessment = Assessment(WaitOutcome.WAITING, "meshd has not answered yet")
    nodes: list[NodeRow] = []
    attempts = Attempts()
    lost_before: frozenset[str] | None = None
    while True:
        now = clock.monotonic_s()
        left_s = timeout_s - (now - began)
        if left_s <= 0:
            timed_out = Assessment(WaitOutcome.TIMED_OUT, assessment.reason)
            return WaitResult(timed_out, nodes, now - began, gained(answer, nodes))
        try:
            view, status = await head.call(endpoints.NODES), await head.call(endpoints.STATUS)
            answered = clock.monotonic_s()
            nodes = [n for n in view.nodes if n.pool == answer.pool]
            if lost_before is None:
                lost_before = frozenset(n.machine for n in nodes if n.phase == "lost")
            state = PoolState(nodes, status)
            progress.update(state, answered - began)
            assessment = assess(answer, state, lost_before)
            over = assessment.outcome is not WaitOutcome.WAITING
            wait_s = 0.0 if over else max(min(POLL_S, left_s), 0.05)
            events = await head.call(endpoints.EVENTS, EventsQuery(after_id=last_id, wait_s=wait_s, limit=500))
            for line in attempts.lines([event for event in events.events if event.pool in ("", answer.pool)]):
                progress.note(line)
            last_id = max(last_id, events.last_id)
            if over:
                for line in attempts.lines([]):
                    progress.note(line)
                return WaitResult(assessment, nodes, answered - began, gained(answer, nodes))
            if events.events:
                await asyncio.sleep(0.1)  # read once for a burst of events
        except UnreachableError:
            if clock.monotonic_s() - answered > SILENCE_MAX_S:
                raise
            progress.note("meshd does not answer; it may be restarting")
            await clock.sleep(RETRY_S)


def gained(answer: ScaleAnswer, nodes: Sequence[NodeRow]) -> bool:
    """Whether a part of the change was made. Machines on their way count: they are rented."""
    ready = sum(_units(n) for n in nodes if n.phase == "ready")
    if answer.gpus >= answer.gpus_before:
        return ready + sum(_units(n) for n in nodes if n.phase in _RENTED) > answer.gpus_before
    return ready < answer.gpus_before


_REFUSALS = {
    "no_capacity": "no capacity at",
    "not_found": "no longer on offer:",
    "quota_exceeded": "over the quota at",
    "auth_failed": "credential refused by",
}


class Attempts:
    """Turns events into one line for each offer that a slot tried. It takes every event once, in order."""

    def __init__(self) -> None:
        self._refused: dict[str, EventRow] = {}

    def lines(self, events: Sequence[EventRow]) -> list[str]:
        """The lines for these events.

        A refusal and the next offer share a line. So a refusal waits for one more call; if the slot has tried no other
        offer by then, the refusal gets a line of its own, with the cloud's message.
        """
        waiting = set(self._refused)
        lines = [line for event in events for line in self._line(event)]
        for slot in sorted(waiting & self._refused.keys()):
            event = self._refused.pop(slot)
            lines.append(f"{slot}: {event.text}")
        return lines

    def _line(self, event: EventRow) -> list[str]:
        slot, offer = str(event.fields.get("slot") or ""), str(event.fields.get("offer") or "")
        if event.kind == "failure" and event.fields.get("refusal") and slot:
            self._refused[slot] = event
        elif event.kind == "unclear" and slot:
            return [f"{slot}: it is not clear whether {offer} was rented; meshd looks the machine up by name"]
        elif event.kind == "phase" and event.fields.get("phase") == "requested" and slot in self._refused:
            refused = self._refused.pop(slot)
            why = _REFUSALS.get(str(refused.fields["refusal"]), "refused by")
            return [f"{slot}: {why} {refused.fields.get('offer')}, trying {offer}"]
        elif event.kind in {"failure", "problem"}:
            return [f"{event.machine or event.pool or 'meshd'}: {event.text}"]
        return []


class PhaseChanges:
    """Turns views of a pool into one line for each machine that entered a phase, failed, or is gone."""

    def __init__(self) -> None:
        self._phases: dict[str, str] = {}
        self._failures: dict[str, str] = {}

    def __call__(self, state: PoolState) -> Iterator[str]:
        """The lines for what changed since the last call."""
        for node in state.nodes:
            before = self._phases.get(node.machine)
            if before != node.phase:
                arrow = f"{before} -> {node.phase}" if before else node.phase
                why = f" ({_why(node)})" if _why(node) else ""
                yield f"{node.machine}: {arrow}{why}"
            elif node.failure and self._failures.get(node.machine) != node.failure:
                yield f"{node.machine}: {node.failure}"
            self._failures[node.machine] = node.failure
        for name in set(self._phases) - {node.machine for node in state.nodes}:
            yield f"{name}: gone"
        self._phases = {node.machine: node.phase for node in state.nodes}


def draw(answer: ScaleAnswer, state: PoolState, elapsed_s: float) -> RenderableType:
    """A summary line and a table of the pool's machines."""
    ready = sum(_units(node) for node in state.nodes if node.phase == "ready")
    summary = (
        f"pool {answer.pool}: {ready} of {counted(answer.gpus, answer.unit)} ready, {age(elapsed_s)} elapsed, "
        f"{usd(sum(node.usd_per_hour for node in state.nodes))} per hour"
    )
    rows = [
        (node.machine, phase(node.phase), age((state.status.at - node.since).total_seconds()), _why(node))
        for node in state.nodes
    ]
    machines = [Table(("MACHINE", "PHASE", "FOR", "WHY"), rows)] if rows else []
    return Group(clean_text(summary, "bold"), *machines)


def _why(node: NodeRow) -> str:
    if node.phase == "draining" and node.jobs:
        return f"waits for job {', '.join(node.jobs)}"
    return node.failure or node.reason
