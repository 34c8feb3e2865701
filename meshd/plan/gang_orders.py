"""Which machines are ordered with one create call: all of them, or none. PURE.

A gang is decided when its machines are requested, and the journal has its id from then on. Its call goes out for those
of them that are still wanted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from meshd.gang_id import gang_id
from meshd.model.cooldown import CooldownCause, CooldownKey
from meshd.model.desired import Desired
from meshd.model.ids import UNIQUE_LENGTH, machine_name, slot_order
from meshd.model.machine import Machine, Phase
from meshd.model.plan import Launch, RequestMachine, Step
from meshd.plan.gang import is_gang


def with_calls(desired: Desired, steps: Iterable[Step]) -> list[Step]:
    """The steps, in their order; each RequestMachine says with which others it is ordered.

    One call has machines of one offer and pool, of one gang of jobs or of one target, at most as many as the provider
    takes. RequestMachine.gang is the same for them, and "" for a machine with a call of its own.
    """
    steps = list(steps)
    calls: dict[tuple[str, str, str], list[RequestMachine]] = {}
    for step in steps:
        if isinstance(step, RequestMachine) and (key := _call_of(desired, step)) is not None:
            calls.setdefault(key, []).append(step)
    label_of = {
        one.subject: part[0].subject
        for together in calls.values()
        for part in _parts(desired, together)
        if len(part) > 1
        for one in part
    }
    return [
        replace(step, gang=label_of.get(step.subject, "")) if isinstance(step, RequestMachine) else step
        for step in steps
    ]


def _call_of(desired: Desired, step: RequestMachine) -> tuple[str, str, str] | None:
    """What the machines of one call have in common; None for a machine that is ordered alone.

    A target takes parts: where its machines could not be had together, they are ordered one by one, so that it gets
    what there is. A job cannot start on a part of its nodes.
    """
    if desired.policy.gang_max.get(step.offer.provider, 0) < 2:
        return None
    key = (step.pool, step.offer.key, step.gang)
    if step.by_queue:
        return key if step.gang else None
    pool, target = desired.pools[step.pool], desired.targets.get(step.pool)
    refused = desired.expired_cooldowns.get(CooldownKey.of_offer(step.offer))
    was_refused = refused is not None and refused.cause is CooldownCause.REFUSED
    if target is None or not is_gang(pool, target) or was_refused:
        return None
    return key


def _parts(desired: Desired, steps: Sequence[RequestMachine]) -> Iterator[list[RequestMachine]]:
    """The steps in parts that fit into one call, and whose gang has an id."""
    ordered = sorted(steps, key=lambda step: slot_order(step.subject))
    most = desired.policy.gang_max[ordered[0].offer.provider]
    for begin in range(0, len(ordered), most):
        yield from _with_id(desired.cluster, ordered[begin : begin + most])


def _with_id(cluster: str, steps: list[RequestMachine]) -> Iterator[list[RequestMachine]]:
    names = [machine_name(cluster, step.subject, "x" * UNIQUE_LENGTH) for step in steps]
    if len(steps) == 1 or gang_id(names):
        yield steps
        return
    half = len(steps) // 2  # so many gaps between their slots that the id would be too long
    yield from _with_id(cluster, steps[:half])
    yield from _with_id(cluster, steps[half:])


def launched_together(steps: Iterable[Step], machines: Mapping[str, Machine]) -> list[Step]:
    """The steps, with one Launch for all machines of a gang in the same phase, at the place of the first."""
    steps = list(steps)
    calls: dict[tuple[str, Phase], list[str]] = {}
    for step in steps:
        machine = machines.get(step.subject) if isinstance(step, Launch) else None
        if machine is not None and machine.gang:
            calls.setdefault((machine.gang, machine.phase), []).append(machine.name)
    others = {names[0]: tuple(names[1:]) for names in calls.values()}
    dropped = {name for names in others.values() for name in names}
    return [
        replace(step, others=others.get(step.subject, ())) if isinstance(step, Launch) else step
        for step in steps
        if not (isinstance(step, Launch) and step.subject in dropped)
    ]
