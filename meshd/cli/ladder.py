"""What becomes of each slot's search for an offer, one line for each rung, out of the events. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

from meshd.api.schema import EventRow

_REFUSALS = {
    "no_capacity": "no capacity at",
    "not_found": "no such offer any more at",
    "quota_exceeded": "over the quota at",
    "auth_failed": "the credential was refused by",
}


class Ladder:
    """Feed it every event once, in order; it remembers which slot was refused what."""

    def __init__(self) -> None:
        self._refused: dict[str, EventRow] = {}

    def lines(self, events: Sequence[EventRow]) -> list[str]:
        """What to tell after these events.

        A refusal is told together with the offer that is tried in its place. It waits for that one round: where no
        other is tried by then, it is told alone, with the cloud's words.
        """
        waiting = set(self._refused)
        told = [line for event in events for line in self._line(event)]
        for slot in sorted(waiting & self._refused.keys()):
            event = self._refused.pop(slot)
            told.append(f"{slot}: {event.text}")
        return told

    def _line(self, event: EventRow) -> list[str]:
        slot, offer = str(event.fields.get("slot") or ""), str(event.fields.get("offer") or "")
        if event.kind == "failure" and event.fields.get("refusal") and slot:
            self._refused[slot] = event
        elif event.kind == "unclear" and slot:
            return [f"{slot}: whether {offer} was rented is not clear; it is looked for by its name"]
        elif event.kind == "phase" and event.fields.get("phase") == "requested" and slot in self._refused:
            refused = self._refused.pop(slot)
            why = _REFUSALS.get(str(refused.fields["refusal"]), "refused by")
            return [f"{slot}: {why} {refused.fields.get('offer')}, trying {offer}"]
        elif event.kind in {"failure", "problem"}:
            return [f"{event.machine or event.pool or 'meshd'}: {event.text}"]
        return []
