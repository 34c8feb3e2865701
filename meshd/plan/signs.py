"""What the world says of one machine: how old its phase is, whether it still speaks, whether it has ended. PURE.

Unknown is not absent: a source that cannot be believed gives no sign that anything has ended.
"""

from __future__ import annotations

from datetime import datetime

from meshd.model.machine import Machine, Phase
from meshd.plan.world import World
from meshd.provider_api import InstanceState

ENDED = frozenset({InstanceState.GONE, InstanceState.FAILED, InstanceState.PREEMPTED, InstanceState.STOPPED})
"""States in which nothing runs on a machine any more."""


def age_s(machine: Machine, world: World, since: datetime | None = None) -> float:
    """How long the machine has been in its phase; counted from `since` when that was later.

    `since` is when the source that would have shown progress came (back) into view: while it is away, and right after
    meshd itself was, no deadline passes.
    """
    return (world.now - max(machine.phase_since, since or machine.phase_since)).total_seconds()


def both_since(world: World) -> datetime | None:
    """Since when tailnet and Slurm are both in view; None while a machine that gets on could not be seen to."""
    if world.peers_since is None or world.slurm_since is None:
        return None
    return max(world.peers_since, world.slurm_since)


def silent(machine: Machine, world: World) -> bool:
    """Its agent has not spoken for long, while the head could hear it."""
    if machine.heartbeat_at is None or world.peers_since is None:
        return machine.heartbeat_at is None
    heard = max(machine.heartbeat_at, world.peers_since)
    return (world.now - heard).total_seconds() > world.policy.heartbeat_lost_s


def ended_by_cloud(machine: Machine, world: World) -> str:
    """Why the machine does not exist any more as the cloud tells it; "" while it does or that is not known.

    Missing from a listing is a weak word: a machine that still speaks is not gone.
    """
    at = world.listed_at.get(machine.provider)
    if at is None or (machine.phase is Phase.BOOTING and at <= machine.phase_since):
        return ""
    instance = world.instance(machine)
    if instance is not None:
        if instance.state not in ENDED and instance.state is not InstanceState.TERMINATING:
            return ""
        words = instance.reason or instance.vendor_state or instance.state.value
        return f"{machine.provider} ended it: {words}"
    born = machine.launch_called_at or machine.created_at
    # The cloud's word on the machine itself, when it was asked, is as good as a listing that has it.
    born = max(born, machine.marks.get("told_alive", born))
    if (at - born).total_seconds() <= world.policy.listing_lag_s:
        return ""  # a fresh machine may be missing from a listing that lags
    return f"{machine.provider} does not list it any more" if silent(machine, world) else ""


def surely_ended(machine: Machine, world: World) -> bool:
    """Nothing runs on it any more, so nothing can be killed: not merely on its way down."""
    instance = world.instance(machine)
    ending = instance is not None and instance.state is InstanceState.TERMINATING
    return bool(ended_by_cloud(machine, world)) and (not ending or silent(machine, world))


def may_have_jobs(machine: Machine, world: World) -> bool:
    """A machine that was found again after the journal was lost may be at work, whatever its phase says.

    One whose line is in force need not be spared here: it is drained, and waited for.
    """
    return machine.launch_attempts == 0 and not machine.line_published and not world.idle(machine)


def dead(machine: Machine, world: World) -> bool:
    """No heartbeat, Slurm cannot reach it and no job is on it. Any doubt says False."""
    if machine.heartbeat_at is None or world.peers is None:
        return False  # a head that is off the tailnet hears nobody, and its Slurm reaches nobody
    node = world.node(machine)
    return (
        silent(machine, world)
        and node is not None
        and bool(node.states & {"DOWN", "NOT_RESPONDING"})
        and world.idle(machine)
    )
