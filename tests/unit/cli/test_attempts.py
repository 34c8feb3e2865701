"""The lines that show each slot going from offer to offer."""

from __future__ import annotations

from meshd.api.schema import EventRow
from meshd.cli.target_wait import Attempts
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
    attempts = Attempts()
    assert attempts.lines([requested(offer=A)]) == [], "the first offer is nobody's replacement"
    assert attempts.lines([refused(), requested()]) == [f"h100-3: no capacity at {A}, trying {B}"]
    assert attempts.lines([refused("quota_exceeded"), requested()]) == [f"h100-3: over the quota at {A}, trying {B}"]
    assert attempts.lines([refused("invalid_request"), requested()]) == [f"h100-3: refused by {A}, trying {B}"]
    assert attempts.lines([]) == []


def test_the_next_offer_may_come_a_round_later() -> None:
    attempts = Attempts()
    assert attempts.lines([refused(), requested(slot="h100-4")]) == []
    assert attempts.lines([requested()]) == [f"h100-3: no capacity at {A}, trying {B}"]


def test_where_nothing_comes_next_the_clouds_words_are_told_once() -> None:
    attempts = Attempts()
    assert attempts.lines([refused()]) == []
    assert attempts.lines([]) == ["h100-3: gone: nothing was rented: aws launch: Insufficient..."]
    assert attempts.lines([requested()]) == []


def test_every_slot_has_attempts_of_its_own() -> None:
    attempts = Attempts()
    events = [refused(), refused(slot="h100-4"), requested(slot="h100-4"), requested(offer="x/y/z")]
    assert attempts.lines(events) == [
        f"h100-4: no capacity at {A}, trying {B}", f"h100-3: no capacity at {A}, trying x/y/z",
    ]  # fmt: skip


def test_what_is_no_refusal() -> None:
    attempts = Attempts()
    (line,) = attempts.lines([event("unclear", "cut", slot="h100-3", offer=A)])
    assert line.startswith("h100-3: ") and A in line
    boot = event("failure", "terminating: did not boot", slot="h100-3", offer=A, refusal="", phase="terminating")
    assert attempts.lines([boot]) == ["lab-h100-3-aaaaaa: terminating: did not boot"]
    assert attempts.lines([event("problem", "no offer", machine="")]) == ["meshd: no offer"]
    assert attempts.lines([event("phase", "booting", phase="booting", slot="h100-3", offer=A)]) == []
