"""Events: filters, and waiting for them."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from meshd.api import endpoints as e
from meshd.api import schema as s
from meshd.api.faults import Unknown
from meshd.model.machine import Phase
from tests.head_room import HeadRoom
from tests.unit.daemon.munge_lab import MungeLab as MungeLab
from tests.unit.worlds import NOW, machine


async def test_events_are_waited_for(room: HeadRoom) -> None:
    last = room.journal.last_event_id()
    waiting = asyncio.create_task(room.head.call(e.EVENTS, s.EventsQuery(after_id=last, limit=10, wait_s=30)))
    await asyncio.sleep(0)
    room.journal.event(NOW, "test", "news")
    found = await asyncio.wait_for(waiting, 5)
    assert [e.text for e in found.events] == ["news"]


async def test_events_are_filtered_and_names_that_do_not_exist_are_refused(room: HeadRoom) -> None:
    m = room.journal.put(machine(Phase.READY), "phase", "one", NOW - timedelta(hours=2))
    room.journal.event(NOW - timedelta(hours=1), "prices", "two")
    room.journal.event(NOW, "block", "three", pool="h100")
    room.journal.event(NOW, "odd", "four")

    async def texts(**query: object) -> list[str]:
        view = await room.head.call(e.EVENTS, s.EventsQuery.model_validate(query))
        return [event.text for event in view.events]

    assert await texts() == ["one", "two", "three", "four"]
    assert await texts(since=NOW - timedelta(minutes=90)) == ["two", "three", "four"]
    assert await texts(kind=["prices", "odd"]) == ["two", "four"]
    assert await texts(pool="h100") == ["one", "three"]
    assert await texts(machine=[m.slot, m.name], after_id=0) == ["one"]
    assert await texts(kind="block", pool="h100", since=NOW) == ["three"]
    for wrong in ({"kind": "prcies"}, {"pool": "h10"}, {"machine": "h100-77"}):
        with pytest.raises(Unknown):
            await texts(**wrong)
