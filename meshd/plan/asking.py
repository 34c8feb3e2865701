"""A machine that its cloud's listing lacks: the cloud is asked for it by name before it is given up. PURE.

A listing may lag, and it never says why a machine is not in it. `Provider.get` does: it is what an accepted order came
to in the end (GCE), or the reason of an end that the listing has forgotten already.
"""

from __future__ import annotations

from datetime import timedelta

from meshd.model.failure import FailureCause
from meshd.model.machine import Machine, Phase
from meshd.model.plan import AskCloud, Step
from meshd.plan.causes import cause_of_end, counts_in_a_row
from meshd.plan.leaving import fail
from meshd.plan.signs import ended_by_cloud
from meshd.plan.world import World

MISSING_AFTER_S = 15.0
"""A listing that was begun so long after the order was accepted, and lacks the machine, is worth a question."""

AGAIN_AFTER_S = 30.0
"""An answer that settled nothing holds for so long."""


def ended_step(machine: Machine, world: World, when: str = "", guess: str = "") -> Step | None:
    """The step that follows from the cloud's word that the machine has ended; None while it says nothing like it.

    Args:
        machine: not on its way out yet.
        world: what was observed.
        when: words on how far it came, e.g. "before it asked to join".
        guess: what may be behind it, for a machine whose cloud does not say why it ended it.
    """
    ended = ended_by_cloud(machine, world)
    instance = world.instance(machine)
    if instance is None and (ended or _missing_early(machine, world)) and _may_ask(machine, world):
        return AskCloud(machine.name, f"{machine.provider} does not list it")
    if not ended:
        return None
    cause, words = FailureCause.ENDED, ""
    if instance is not None:
        words = instance.reason or instance.vendor_state or instance.state.value
        cause = cause_of_end(instance.state, words, joined=machine.facts is not None)
    return fail(machine, end_words(ended, when, guess, cause), cause, words)


def end_words(ended: str, when: str, guess: str, cause: FailureCause) -> str:
    """Why it is given up, for people. Who knows the cause needs no guess."""
    text = f"{ended} {when}".rstrip()
    return f"{text}. {guess}" if guess and counts_in_a_row(cause) else text


def _missing_early(machine: Machine, world: World) -> bool:
    """Accepted, and not in a listing of a while later: an order may have come to nothing."""
    at = world.listed_at.get(machine.provider)
    return (
        machine.phase is Phase.BOOTING
        and at is not None
        and world.peer(machine) is None
        and at > machine.phase_since + timedelta(seconds=MISSING_AFTER_S)
    )


def _may_ask(machine: Machine, world: World) -> bool:
    asked = machine.marks.get("asked_cloud")
    return bool(machine.instance_id) and (asked is None or (world.now - asked).total_seconds() >= AGAIN_AFTER_S)
