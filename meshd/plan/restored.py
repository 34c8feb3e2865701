"""After an older journal was restored: until a cloud was listed, nothing is rented in its place or ended there. PURE.

The journal does not know what was rented since it was written. A listing shows that; what a pool lacks is known once
all clouds were listed that it may have machines in. Until then the pool rents nothing, in no cloud: what it seems to
lack may be there. Of a cloud that was not listed no machine is ended, and none is taken for one that never was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import TypeVar

from meshd.model.desired import Desired, Policy
from meshd.model.machine import Machine, Phase
from meshd.model.observed import Snapshot
from meshd.model.plan import Launch, Move, Replace, RequestMachine, Step, TerminateOrphan
from meshd.model.restored import Restored
from meshd.plan.plan_input import believed
from meshd.plan.step_effects import Effect, effect_of

S = TypeVar("S", bound=Step)


def cure(clouds: Iterable[str]) -> str:
    """What a person can do; `clouds` are those that are waited for."""
    commands = ", ".join(f"`meshctl thaw --provider {cloud}`" for cloud in sorted(clouds))
    return f"let meshd list it again: `meshctl doctor` says what is wrong. To go on without its machines: {commands}"


def listed_since(restored: Restored, snapshot: Snapshot, policy: Policy, now: datetime) -> frozenset[str]:
    """The clouds that are listed now, late enough after the restore that all that was rented before is shown."""
    since = min(restored.at, now) + timedelta(seconds=policy.listing_lag_s)
    return frozenset(
        cloud
        for cloud in restored.unlisted
        if (seen := snapshot.instances.get(cloud)) is not None and believed(seen, policy, now) and seen.at >= since
    )


def unheld(desired: Desired, machines: Mapping[str, Machine], steps: Iterable[S]) -> list[S]:
    """The steps without those that have to wait for a listing. `machines` are those of the plan, by name."""
    restored = desired.restored
    if restored is None:
        return list(steps)
    return [step for step in steps if not _held(restored, machines.get(step.subject), step)]


def _held(restored: Restored, machine: Machine | None, step: Step) -> bool:
    if isinstance(step, RequestMachine):  # a host is nobody else's, and known: it may come
        return step.pool in restored.pools and not step.offer.slot
    if isinstance(step, TerminateOrphan):
        return step.instance.provider in restored.unlisted
    if machine is None:
        return False
    if isinstance(step, Launch):
        return machine.provider in restored.unlisted or (
            machine.pool in restored.pools and not (machine.baking or machine.offer.slot)
        )
    if isinstance(step, Replace) and machine.pool in restored.pools:
        return True  # nothing would be rented in its place
    ends = effect_of(step) is Effect.ENDS
    # An order may have been sent, and a machine may be there: only a listing says that it never was or is gone.
    gone = isinstance(step, Move) and step.to is Phase.GONE
    return (ends or gone) and machine.provider in restored.unlisted
