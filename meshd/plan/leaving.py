"""A machine's way out, from the moment it is given up until its device is gone. PURE."""

from __future__ import annotations

from datetime import datetime

from meshd.model.failure import FailureCause
from meshd.model.machine import IN_SLURM, Machine, Phase
from meshd.model.plan import Adopt, Drain, Leave, Move, RemoveDevice, Step, Terminate
from meshd.plan.doubt import made, surely_not_made
from meshd.plan.signs import age_s, dead, surely_ended
from meshd.plan.world import World
from meshd.provider_api import Instance, InstanceState


def fail(machine: Machine, failure: str, cause: FailureCause, vendor_words: str = "") -> Step:
    """Give a machine up for a reason: through DRAINING when Slurm may know it, else straight to its end."""
    return Move(machine.name, failure, way_out(machine), failure, cause, vendor_words)


def way_out(machine: Machine) -> Phase:
    """The next phase of a machine that is given up.

    Where slurmd was never asked to start there can be no job: nothing has to be waited for, not even Slurm's answer.
    One that was adopted may have its line, and jobs, from before.
    """
    known = machine.phase in IN_SLURM or machine.line_published
    return Phase.DRAINING if known and machine.may_run_jobs else Phase.TERMINATING


def draining(machine: Machine, world: World) -> Step | None:
    """Out of Slurm, once no job is on it or nothing can be killed any more."""
    if machine.left_slurm:
        return Move(machine.name, machine.reason, Phase.TERMINATING)
    if world.slurm is None or world.slurm_at is None:
        if machine.removal == "forced" and age_s(machine, world) > world.policy.publish_wait_max_s:
            return Move(machine.name, "removed by force while Slurm cannot be asked", Phase.TERMINATING)
        return None  # unknown is not idle
    asked = machine.marks.get("drained")
    if asked is not None and world.slurm_at <= asked:
        return None  # what was seen is older than what was done
    if surely_ended(machine, world):
        return Leave(machine.name, "the machine is dead", machine.slot, dead=True)
    node = world.node(machine)
    if machine.removal == "forced":
        return Leave(machine.name, "removed by force", machine.slot, forced=True)
    if node is not None and not node.drained:
        # A node that is DOWN as well: it comes back by itself when its slurmd registers again.
        return Drain(machine.name, machine.failure or machine.reason, machine.slot)
    if world.idle(machine):
        return Leave(machine.name, "no job is on it", machine.slot, silent=dead(machine, world))
    return None


def terminating(machine: Machine, world: World) -> Step | None:
    """Ended at the cloud, asked for again until the cloud says that it is gone."""
    at = world.listed_at.get(machine.provider)
    instance = world.instance(machine)
    asked = machine.marks.get("terminate_called")
    if not machine.instance_id:
        return _terminating_without_id(machine, world)
    if at is not None and asked is not None and at > asked and _gone_from(instance, machine, world, at):
        return Move(machine.name, f"{machine.provider} says it is gone", Phase.GONE)
    waiting_for_slurm = (
        world.published.get(machine.slot) == machine.tailnet_ip != ""
        and age_s(machine, world) < world.policy.publish_wait_max_s
    )
    if waiting_for_slurm:
        return _closed_again(machine, world)  # its line leaves nodes.conf first
    if _at_work_again(machine, world):
        return None
    if asked is not None and (world.now - asked).total_seconds() < world.policy.terminate_again_s:
        return None
    if _overdue(machine, world):
        return _lost(machine, world)
    return Terminate(machine.name, machine.failure or machine.reason)


def _closed_again(machine: Machine, world: World) -> Step | None:
    """A node that is on its way out and open to jobs is drained once more, so that its line can become a free slot.

    slurmctld opens a node that it held DOWN when its slurmd, which a forced leave did not wait for, answers once more.
    """
    node, asked = world.node(machine), machine.marks.get("drained")
    seen_since = asked is None or (world.slurm_at is not None and world.slurm_at > asked)
    if node is None or node.drained or not node.up or not seen_since:
        return None
    return Drain(machine.name, machine.failure or machine.reason, machine.slot)


def _at_work_again(machine: Machine, world: World) -> bool:
    """Its slurmd did not stop, somebody opened its node anew after it had left, and now a job runs on it."""
    node = world.node(machine)
    return machine.removal != "forced" and node is not None and node.up and bool(world.jobs.get(machine.slot))


def _gone_from(instance: Instance | None, machine: Machine, world: World, at: datetime) -> bool:
    """Whether the listing of `at` shows its end: a fresh machine may be missing, one that still speaks is alive."""
    spoke_since = machine.heartbeat_at is not None and machine.heartbeat_at > at
    if instance is not None:
        return instance.state is InstanceState.GONE and not spoke_since
    born = machine.launch_called_at or machine.created_at
    return (at - born).total_seconds() > world.policy.listing_lag_s and not spoke_since


def _overdue(machine: Machine, world: World) -> bool:
    return machine.phase is Phase.TERMINATING and age_s(machine, world) > world.policy.lost_after_s


def _lost(machine: Machine, world: World) -> Step:
    reason = f"{machine.provider} has not ended it within {world.policy.lost_after_s:g} s; asked again for ever"
    return Move(machine.name, reason, Phase.LOST)


def _terminating_without_id(machine: Machine, world: World) -> Step | None:
    """A machine whose create call stayed unclear: whatever bears its name is it."""
    found = made(machine, world)
    if found is not None:
        return Adopt(machine.name, "found by its name", found)
    if surely_not_made(machine, world):
        return Move(machine.name, f"{machine.provider} never had it", Phase.GONE)
    return _lost(machine, world) if _overdue(machine, world) else None


def gone(machine: Machine, world: World) -> Step | None:
    """Nothing is left but its device, where there is one."""
    if machine.device_removed or not world.policy.may_change_devices:
        return None
    peer = world.peer(machine)
    if peer is not None:
        return RemoveDevice(machine.name, "its machine is gone", peer.id)
    return None
