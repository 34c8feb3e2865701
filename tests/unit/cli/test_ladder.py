"""The lines that show each slot going from offer to offer."""

from __future__ import annotations

from meshd.api.schema import EventRow
from meshd.cli.ladder import Ladder
from tests.unit.cli.test_commands import NOW

A, B = "aws/us-east-1a/p5.48xlarge", "gce/us-central1-b/a3-highgpu-8g"


def event(kind: str, text: str = "", machine: str = "lab-h100-3-aaaaaa", **fields: str) -> EventRow:
    return EventRow(id=1, at=NOW, kind=kind, text=text, machine=machine, fields=dict(fields))


def refused(kind: str = "no_capacity", slot: str = "h100-3", offer: str = A) -> EventRow:
    text = "gone: nothing was rented: aws launch: Insufficient..."
    return event("failure", text, phase="gone", slot=slot, offer=offer, refusal=kind)


def requested(slot: str = "h100-3", offer: str = B) -> EventRow:
    return event("phase", "requested: wanted", phase="requested", slot=slot, offer=offer)


def test_a_refusal_is_told_with_what_is_tried_next() -> None:
    ladder = Ladder()
    assert ladder.lines([requested(offer=A)]) == [], "the first offer is nobody's replacement"
    assert ladder.lines([refused(), requested()]) == [f"h100-3: no capacity at {A}, trying {B}"]
    assert ladder.lines([refused("quota_exceeded"), requested()]) == [f"h100-3: over the quota at {A}, trying {B}"]
    assert ladder.lines([refused("invalid_request"), requested()]) == [f"h100-3: refused by {A}, trying {B}"]
    assert ladder.lines([]) == []


def test_the_next_offer_may_come_a_round_later() -> None:
    ladder = Ladder()
    assert ladder.lines([refused(), requested(slot="h100-4")]) == []
    assert ladder.lines([requested()]) == [f"h100-3: no capacity at {A}, trying {B}"]


def test_where_nothing_comes_next_the_clouds_words_are_told_once() -> None:
    ladder = Ladder()
    assert ladder.lines([refused()]) == []
    assert ladder.lines([]) == ["h100-3: gone: nothing was rented: aws launch: Insufficient..."]
    assert ladder.lines([requested()]) == []


def test_every_slot_has_its_own_ladder() -> None:
    ladder = Ladder()
    events = [refused(), refused(slot="h100-4"), requested(slot="h100-4"), requested(offer="x/y/z")]
    assert ladder.lines(events) == [
        f"h100-4: no capacity at {A}, trying {B}", f"h100-3: no capacity at {A}, trying x/y/z",
    ]  # fmt: skip


def test_what_is_no_refusal() -> None:
    ladder = Ladder()
    assert ladder.lines([event("unclear", "cut", slot="h100-3", offer=A)]) == [
        f"h100-3: whether {A} was rented is not clear; it is looked for by its name"
    ]
    boot = event("failure", "terminating: did not boot", slot="h100-3", offer=A, refusal="", phase="terminating")
    assert ladder.lines([boot]) == ["lab-h100-3-aaaaaa: terminating: did not boot"]
    assert ladder.lines([event("problem", "no offer", machine="")]) == ["meshd: no offer"]
    assert ladder.lines([event("phase", "booting", phase="booting", slot="h100-3", offer=A)]) == []
