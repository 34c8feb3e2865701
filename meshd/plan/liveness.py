"""What the world says of one machine: how old its phase is, whether it still speaks, whether it has ended. PURE.

Unknown is not absent: a source that cannot be believed gives no sign that anything has ended.
"""

from __future__ import annotations

from datetime import datetime

from meshd.model.machine import Machine, Phase
from meshd.plan.plan_input import PlanInput
from meshd.provider_api import InstanceState

ENDED = frozenset({InstanceState.GONE, InstanceState.FAILED, InstanceState.PREEMPTED, InstanceState.STOPPED})
"""States in which nothing runs on a machine any more, if the word is true."""

SURE = frozenset({InstanceState.GONE, InstanceState.PREEMPTED})
"""Of these, those that are believed as soon as the agent does not answer. The others are words for a machine that is
ill, off for a moment, or being repaired (Lambda's `unhealthy`, RunPod's `ERROR`, GCE's `REPAIRING`): it may work on."""

REBOOTING = frozenset({"REBOOT_REQUESTED", "REBOOT_ISSUED", "REBOOT", "POWERING_UP", "POWERING_DOWN", "POWER_UP"})
"""Slurm's words for a node that is away and comes back (`scontrol reboot`)."""

ANSWER_S = 5.0
"""An agent that is there answers a question within a round trip; so long is waited."""

ASK_AGAIN_S = 15.0


def age_s(machine: Machine, given: PlanInput, since: datetime | None = None) -> float:
    """How long the machine has been in its phase; counted from `since` when that was later.

    `since` is when the source that would have shown progress came (back) into view: while it is away, and right after
    meshd itself was, no deadline passes.
    """
    return (given.now - max(machine.phase_since, since or machine.phase_since)).total_seconds()


def both_since(given: PlanInput) -> datetime | None:
    """Since when tailnet and Slurm are both in view; None while a machine that gets on could not be seen to."""
    if given.peers_since is None or given.slurm_since is None:
        return None
    return max(given.peers_since, given.slurm_since)


def rebooting(machine: Machine, given: PlanInput) -> bool:
    """Slurm says so, or its agent did before it went down."""
    node = given.node(machine)
    return machine.rebooting or (node is not None and bool(node.states & REBOOTING))


def patience_s(machine: Machine, given: PlanInput) -> float:
    """How long a machine may be silent before it counts as lost: one that reboots, as long as a boot may take."""
    policy = given.policy
    return max(policy.boot_timeout_s, policy.heartbeat_lost_s) if rebooting(machine, given) else policy.heartbeat_lost_s


def last_word(machine: Machine) -> datetime | None:
    """When its agent spoke; None when it never did. One that was found again may have, before: it counts from then."""
    return machine.heartbeat_at or (machine.created_at if machine.launch_attempts == 0 else None)


def silent(machine: Machine, given: PlanInput) -> bool:
    """Its agent has not spoken for long, while the head could hear it."""
    spoke = last_word(machine)
    if spoke is None or given.peers_since is None:
        return spoke is None
    heard = max(spoke, given.peers_since)
    return (given.now - heard).total_seconds() > patience_s(machine, given)


def ended_by_cloud(machine: Machine, given: PlanInput) -> str:
    """Why the machine does not exist any more as the cloud tells it; "" while it does or that is not sure.

    A cloud's word is believed when the machine does not contradict it. One that is on its way down may still speak.
    Missing from a listing is a weak word: a machine that still speaks is not gone.
    """
    words = _said_ended(machine, given)
    return words if words and (_on_its_way_down(machine, given) or _agrees(machine, given)) else ""


def contradiction(machine: Machine, given: PlanInput) -> str:
    """What the cloud says of a machine that still speaks, in the cloud's words; "" while they agree."""
    instance = given.instance(machine)
    if instance is None or instance.state not in ENDED or _agrees(machine, given):
        return ""
    return _said_ended(machine, given)


def to_be_asked(machine: Machine, given: PlanInput) -> bool:
    """Its agent shall give a sign of life now: its cloud says that it has ended, and that it is silent is not known."""
    instance = given.instance(machine)
    if instance is None or instance.state not in SURE or not contradiction(machine, given):
        return False
    asked = machine.agent_asked_at
    return given.peers_since is not None and (
        asked is None or (given.now - asked).total_seconds() >= ASK_AGAIN_S
    )  # fmt: skip


def _said_ended(machine: Machine, given: PlanInput) -> str:
    at = given.listed_at.get(machine.provider)
    if at is None or (machine.phase is Phase.BOOTING and at <= machine.phase_since):
        return ""
    instance = given.instance(machine)
    if instance is not None:
        if instance.state not in ENDED and instance.state is not InstanceState.TERMINATING:
            return ""
        words = instance.reason or instance.vendor_state or instance.state.value
        return f"{machine.provider} ended it: {words}"
    born = machine.launch_called_at or machine.created_at
    # The cloud's word on the machine itself, when it was asked, is as good as a listing that has it.
    born = max(born, machine.cloud_confirmed_at or born)
    if (at - born).total_seconds() <= given.policy.listing_lag_s:
        return ""  # a fresh machine may be missing from a listing that lags
    return f"{machine.provider} does not list it any more"


def _on_its_way_down(machine: Machine, given: PlanInput) -> bool:
    instance = given.instance(machine)
    return instance is not None and instance.state is InstanceState.TERMINATING


def _agrees(machine: Machine, given: PlanInput) -> bool:
    """The machine is as silent as one that has ended."""
    instance = given.instance(machine)
    if last_word(machine) is None:
        return True
    if instance is not None and instance.state in SURE:
        return silent(machine, given) or _unanswered(machine, given)
    if not silent(machine, given) or given.slurm is None:
        return False
    node = given.node(machine)
    return node is None or not node.up or (instance is None and given.idle(machine))


def _unanswered(machine: Machine, given: PlanInput) -> bool:
    """Its agent was asked, and has not spoken since."""
    asked, spoke = machine.agent_asked_at, last_word(machine)
    if asked is None or spoke is None or spoke > asked or given.peers_since is None:
        return False
    return (given.now - max(asked, given.peers_since)).total_seconds() >= ANSWER_S


def surely_ended(machine: Machine, given: PlanInput) -> bool:
    """Nothing runs on it any more, so nothing can be killed: not merely on its way down."""
    ended = bool(ended_by_cloud(machine, given))
    return ended and (not _on_its_way_down(machine, given) or silent(machine, given))


def may_have_jobs(machine: Machine, given: PlanInput) -> bool:
    """A machine that was found again after the journal was lost may be at work, whatever its phase says.

    One whose line is in force need not be spared here: it is drained, and waited for.
    """
    return machine.launch_attempts == 0 and not machine.line_published and not given.idle(machine)


def dead(machine: Machine, given: PlanInput) -> bool:
    """No heartbeat, Slurm cannot reach it and no job is on it. Any doubt says False."""
    if machine.heartbeat_at is None or given.peers is None:
        return False  # a head that is off the tailnet hears nobody, and its Slurm reaches nobody
    node = given.node(machine)
    return (
        silent(machine, given)
        and node is not None
        and bool(node.states & {"DOWN", "NOT_RESPONDING"})
        and given.idle(machine)
    )
