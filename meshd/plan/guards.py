"""The guards: how many machines are ordered in a time, how many nodes leave at once, and what is asked first. PURE.

Orders go out in the order in which they were decided, so each has its turn. Those for one job go together: it cannot
start on a part of its nodes. More of them than a whole interval allows go out in parts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from meshd.codes import WarningCode
from meshd.model.guards import Guards
from meshd.model.host import PROVIDER
from meshd.model.machine import Machine, Phase
from meshd.model.observed import SlurmView
from meshd.model.plan import Warn
from meshd.plaintext import counted

SUBJECT = "guards"
"""The subject of the warning that orders wait."""


def ordered_at(machine: Machine) -> datetime | None:
    """When the order went out that has made, or may have made, this machine; None when none has.

    An order that its cloud refused clearly has made nothing, and an owned machine is not rented.
    """
    at = machine.launch_first_called_at
    if at is None or machine.provider == PROVIDER or machine.phase is Phase.REQUESTED:
        return None
    made = machine.phase is not Phase.GONE or machine.instance_id or machine.head_reached_at is not None
    return at if made else None


@dataclass(frozen=True, slots=True)
class Orders:
    """Which orders go out now.

    Attributes:
        waiting: the names of the machines whose order waits for its turn.
        next_at: when the next may go out; None while none waits.
    """

    waiting: frozenset[str] = frozenset()
    next_at: datetime | None = None

    def words(self, guards: Guards) -> str:
        """Why orders wait, for people."""
        when = f"; the next goes out at {self.next_at:%H:%M:%S} UTC" if self.next_at is not None else ""
        return f"guards.max_launches = {guards.max_launches} in {guards.launch_interval_s:g} s is reached{when}"

    def warning(self, guards: Guards) -> list[Warn]:
        """The warning for people."""
        if not self.waiting:
            return []
        count = len(self.waiting)
        text = f"{counted(count, 'machine')} {'waits' if count == 1 else 'wait'} to be ordered: {self.words(guards)}"
        cure = "wait, or raise guards.max_launches, then `systemctl reload meshd`"
        return [Warn(SUBJECT, text, WarningCode.LAUNCHES_HELD, cure)]


def orders(
    guards: Guards, launches: Iterable[datetime], machines: Sequence[Machine], busy: Collection[str], now: datetime
) -> Orders:
    """The orders that go out now, and those that wait: in no `launch_interval_s` more than `max_launches` go out.

    Args:
        guards: the limit.
        launches: when each order of the last `launch_interval_s` went out (`ordered_at`).
        machines: those that are not GONE.
        busy: machines with a step in flight: the order of one that is REQUESTED goes out now.
        now: UTC.
    """
    most, interval = guards.max_launches, timedelta(seconds=guards.launch_interval_s)
    if most is None:
        return Orders()
    counts = sorted(at for at in launches if now - at < interval)
    requested = [
        m for m in machines if m.phase is Phase.REQUESTED and m.provider != PROVIDER and not (m.removal or m.held)
    ]
    room = most - len(counts) - sum(m.name in busy for m in requested)
    together: dict[tuple[str, ...], list[Machine]] = {}
    for m in sorted(requested, key=lambda m: (m.created_at, m.name)):
        if m.name not in busy:
            together.setdefault((m.pool, *m.for_jobs) if m.for_jobs else (m.gang or m.name,), []).append(m)
    waiting: list[str] = []
    lacking = 0
    for group in together.values():
        if waiting:  # whoever comes later waits as well, so that each has its turn
            waiting += [m.name for m in group]
            continue
        fits = len(group) if len(group) <= room else max(room, 0) if len(group) > most else 0
        room -= fits
        waiting += [m.name for m in group[fits:]]
        lacking = (len(group) if len(group) <= most else 1) - room
    next_at = counts[lacking - 1] + interval if waiting and 0 < lacking <= len(counts) else None
    return Orders(frozenset(waiting), next_at)


def leaving_room(guards: Guards, machines: Iterable[Machine], slurm: SlurmView | None) -> int | None:
    """How many more nodes may leave now without a person's order; None for any number.

    All that leave count, whoever ordered it, but not those that wait for a job: that may take days. Nor does a machine
    that its cloud does not end.
    """
    if guards.max_leaving is None:
        return None
    leave = sum(
        m.phase is Phase.TERMINATING
        or ((m.phase is Phase.DRAINING or (m.phase is Phase.READY and m.removal is not None)) and not _waits(m, slurm))
        for m in machines
        if not (m.held or m.baking)
    )
    return max(0, guards.max_leaving - leave)


def _waits(machine: Machine, slurm: SlurmView | None) -> bool:
    """Whether a machine that leaves waits for a job; where Slurm cannot be read, that is not known."""
    return not machine.left_slurm and slurm is not None and bool(slurm.running_on(machine.slot))


def asks_first(usd_per_hour_before: float, usd_per_hour_after: float, removes: int, guards: Guards) -> bool:
    """Whether people are asked before an order of theirs is carried out.

    Args:
        usd_per_hour_before: what all machines cost now.
        usd_per_hour_after: what they cost then.
        removes: how many machines it gives back.
        guards: up to `confirm_usd_per_hour` in all nobody is asked for the price.
    """
    dearer = usd_per_hour_after > usd_per_hour_before
    return bool(removes) or (dearer and usd_per_hour_after > guards.confirm_usd_per_hour)
