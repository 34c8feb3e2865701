"""Liveness of one machine: how old its phase is, whether its agent calls, whether its cloud has ended it. PURE.

Unknown is not absent: a source that cannot be believed never shows that anything has ended.
"""

from __future__ import annotations

from datetime import datetime

from meshd.model.machine import Machine, Phase
from meshd.plan.plan_input import PlanInput
from meshd.provider_api import InstanceState

ENDED = frozenset({InstanceState.GONE, InstanceState.FAILED, InstanceState.PREEMPTED, InstanceState.STOPPED})
"""States in which nothing runs on a machine any more, if the cloud is right."""

SURE = frozenset({InstanceState.GONE, InstanceState.PREEMPTED})
"""Of these, the states that are believed as soon as the agent does not answer. In the others a machine may still work:
it is unhealthy, off for a moment, or being repaired (Lambda's `unhealthy`, RunPod's `ERROR`, GCE's `REPAIRING`)."""

REBOOTING = frozenset({"REBOOT_REQUESTED", "REBOOT_ISSUED", "REBOOT"})
"""Slurm's states of a node that reboots (`scontrol reboot`)."""

POWERING = frozenset({"POWERING_UP", "POWERING_DOWN", "POWER_UP"})
"""More of them, except of a CLOUD node: there they are power saving's."""

ANSWER_S = 5.0
"""How long to wait for an agent's answer. One that works answers within a round trip."""

ASK_AGAIN_S = 15.0


def age_s(machine: Machine, given: PlanInput, since: datetime | None = None) -> float:
    """How long the machine has been in its phase; from `since` on when that is later.

    `since` is when the source that shows progress became readable. So no deadline passes while that source cannot be
    read, or right after meshd started.
    """
    return (given.now - max(machine.phase_since, since or machine.phase_since)).total_seconds()


def both_since(given: PlanInput) -> datetime | None:
    """Since when tailnet and Slurm can both be read; None while one cannot, so that progress would not show."""
    if given.peers_since is None or given.slurm_since is None:
        return None
    return max(given.peers_since, given.slurm_since)


def rebooting(machine: Machine, given: PlanInput) -> bool:
    """Whether Slurm or its agent said that the machine reboots."""
    node = given.node(machine)
    if machine.rebooting or node is None:
        return machine.rebooting
    return bool(node.states & (REBOOTING if node.cloud else REBOOTING | POWERING))


def patience_s(machine: Machine, given: PlanInput) -> float:
    """How long the agent may be silent before the machine counts as lost; longer while the machine reboots."""
    policy = given.policy
    return max(policy.boot_timeout_s, policy.heartbeat_lost_s) if rebooting(machine, given) else policy.heartbeat_lost_s


def last_word(machine: Machine) -> datetime | None:
    """When its agent last called; None when it never did. An adopted machine counts from when it was adopted."""
    return machine.heartbeat_at or (machine.created_at if machine.launch_attempts == 0 else None)


def silent(machine: Machine, given: PlanInput) -> bool:
    """Whether its agent has been silent for longer than `patience_s` while the head could hear it."""
    spoke = last_word(machine)
    if spoke is None or given.peers_since is None:
        return spoke is None
    heard = max(spoke, given.peers_since)
    return (given.now - heard).total_seconds() > patience_s(machine, given)


def ended_by_cloud(machine: Machine, given: PlanInput) -> str:
    """Why the machine does not exist any more, in the cloud's words; "" while it exists or that is not certain.

    The cloud is believed when the machine's agent does not contradict it. A machine that is shutting down may still
    call. Missing from a listing proves little: a machine whose agent calls is not gone.
    """
    words = _said_ended(machine, given)
    return words if words and (_on_its_way_down(machine, given) or _agrees(machine, given)) else ""


def contradiction(machine: Machine, given: PlanInput) -> str:
    """The cloud's words on the end of a machine whose agent still calls; "" while they agree."""
    instance = given.instance(machine)
    if instance is None or instance.state not in ENDED or _agrees(machine, given):
        return ""
    return _said_ended(machine, given)


def to_be_asked(machine: Machine, given: PlanInput) -> bool:
    """Whether to ask its agent for a heartbeat: its cloud says that the machine has ended, and it may be wrong."""
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
    # The cloud's answer about this machine counts like a listing that has it.
    born = max(born, machine.cloud_confirmed_at or born)
    if (at - born).total_seconds() <= given.policy.listing_lag_s:
        return ""  # a listing lags, so a new machine may be missing from it
    return f"{machine.provider} no longer lists it"


def _on_its_way_down(machine: Machine, given: PlanInput) -> bool:
    instance = given.instance(machine)
    return instance is not None and instance.state is InstanceState.TERMINATING


def _agrees(machine: Machine, given: PlanInput) -> bool:
    """Whether the agent is as silent as that of a machine that has ended."""
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
    """Whether its agent was asked for a heartbeat and has not called since."""
    asked, spoke = machine.agent_asked_at, last_word(machine)
    if asked is None or spoke is None or spoke > asked or given.peers_since is None:
        return False
    return (given.now - max(asked, given.peers_since)).total_seconds() >= ANSWER_S


def surely_ended(machine: Machine, given: PlanInput) -> bool:
    """Whether nothing runs on it any more, so that no job can be killed. A machine that shuts down may have one."""
    ended = bool(ended_by_cloud(machine, given))
    return ended and (not _on_its_way_down(machine, given) or silent(machine, given))


def shown_alive(machine: Machine, given: PlanInput) -> bool:
    """Whether its cloud's listing, or its agent, shows that the machine is there now."""
    instance, report = given.instance(machine), given.view.report(machine)
    listed = instance is not None and instance.state not in ENDED and instance.state is not InstanceState.TERMINATING
    return listed or (report is not None and not silent(machine, given))


def in_doubt(machine: Machine, given: PlanInput) -> bool:
    """Whether a machine that was rented may have ended unseen: neither its cloud nor its agent shows it.

    It may be one that an older journal had. A new machine may be missing from a listing.
    """
    born = machine.launch_called_at or machine.created_at
    new = (given.now - born).total_seconds() <= given.policy.listing_lag_s
    return bool(machine.instance_id) and not new and not shown_alive(machine, given)


def may_have_jobs(machine: Machine, given: PlanInput) -> bool:
    """Whether an adopted machine may have jobs, whatever its phase is: the journal that knew them was lost.

    A machine with a line in Slurm does not count here: it is drained, and its jobs are waited for.
    """
    return machine.launch_attempts == 0 and not machine.line_published and not given.idle(machine)


def dead(machine: Machine, given: PlanInput) -> bool:
    """Whether its agent is silent, Slurm cannot reach it, and no job is on it. False while any of that is not known."""
    if machine.heartbeat_at is None or given.peers is None:
        return False  # a head that is off the tailnet hears no agent, and its Slurm reaches no node
    node = given.node(machine)
    return (
        silent(machine, given)
        and node is not None
        and bool(node.states & {"DOWN", "NOT_RESPONDING"})
        and given.idle(machine)
    )
