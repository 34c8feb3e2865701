"""From what somebody asks for to a filter of events: names that do not exist are refused, not answered with nothing."""

from __future__ import annotations

from difflib import get_close_matches

from meshd.api import schema as s
from meshd.api.faults import Unknown
from meshd.daemon.head_api.machines import MachineService
from meshd.model.desired import Desired
from meshd.store.events import EventFilter
from meshd.store.journal import Journal

KINDS = frozenset({
    "adopted", "auth_key", "block", "clock", "copy", "device", "device_removed", "drain", "failure", "fit", "force",
    "kept", "login", "metadata", "munge", "munge_key", "orphan", "phase", "prices", "problem", "published", "reboot",
    "refused", "rejoined", "remove", "rotation", "slurmd_restarted", "surplus", "target", "ticket", "token", "unclear",
    "undrain", "undrained", "unfit",
})  # fmt: skip
"""Kinds that may be asked for before there is an event of them; others are known once one is in the journal."""


def event_filter(query: s.EventsQuery, desired: Desired, journal: Journal, machines: MachineService) -> EventFilter:
    """What the query matches.

    Raises:
        Unknown: there is no such machine, slot, pool or kind; names those that are near.
        Refused: a slot never had a machine.
    """
    names = tuple(machines.name_of(name, also_gone=True) for name in query.machine)
    if query.pool and query.pool not in desired.pools and not journal.machines_of_pool(query.pool, 1):
        raise _unknown("pool", query.pool, desired.pools)
    kinds = KINDS | journal.event_kinds() if query.kind else KINDS
    for kind in query.kind:
        if kind not in kinds:
            raise _unknown("kind of event", kind, kinds)
    return EventFilter(machines=names, kinds=query.kind, pool=query.pool, since=query.since)


def _unknown(what: str, name: str, known: object) -> Unknown:
    names = sorted(known) if isinstance(known, (set, frozenset)) else list(known)  # type: ignore[call-overload]
    near = get_close_matches(name, names, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(names) or 'none'}"
    return Unknown(f"there is no {what} {name}", hint)
