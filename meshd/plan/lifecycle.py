"""What the next step of one machine is. PURE.

One function for each phase; each phase has a deadline and says which way out there is. At most one step a machine
and tick: whatever was done, the next tick looks again.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from meshd.model.desired import Cause
from meshd.model.machine import DEVICE_GONE, IN_SLURM, Machine, Phase
from meshd.model.plan import (
    Accept,
    Adopt,
    DisableKeyExpiry,
    Drain,
    Launch,
    Leave,
    Move,
    NoteDevice,
    NotePeer,
    NotePublished,
    RemoveDevice,
    StartSlurmd,
    Step,
    Terminate,
)
from meshd.plan.world import World
from meshd.provider_api import Instance, InstanceState

DEAD_KEY_CURE = "`meshctl rotate-key`; where meshd cannot mint, put a new reusable key in place first"

ENDED = frozenset({InstanceState.GONE, InstanceState.FAILED, InstanceState.PREEMPTED, InstanceState.STOPPED})
"""States in which nothing runs on a machine any more."""


def next_step(machine: Machine, world: World) -> Step | None:
    """The one step that this machine needs now; None when it is well or has to wait."""
    return _BY_PHASE[machine.phase](machine, world) or _device(machine, world)


def _device(machine: Machine, world: World) -> Step | None:
    """A device that is gone while the machine runs is written down. It ends nothing: the machine logs in anew."""
    if machine.phase not in IN_SLURM or not machine.tailnet_id or world.devices is None:
        return None
    there, noted = machine.tailnet_id in world.devices, DEVICE_GONE in machine.marks
    if there and noted:
        return NoteDevice(machine.name, "its tailnet device is there again", gone=False)
    instance = world.instance(machine)
    if there or noted or instance is None or instance.state is not InstanceState.RUNNING:
        return None
    reason = f"its tailnet device {machine.tailnet_ip} was deleted, and {machine.provider} says that the machine runs"
    return NoteDevice(machine.name, reason, gone=True)


def _age_s(machine: Machine, world: World, since: datetime | None = None) -> float:
    """How long the machine has been in its phase; counted from `since` when that was later.

    `since` is when the source that would have shown progress came (back) into view: while it is away, and right after
    meshd itself was, no deadline passes.
    """
    return (world.now - max(machine.phase_since, since or machine.phase_since)).total_seconds()


def fail(machine: Machine, failure: str) -> Step:
    """Give a machine up for a reason: through DRAINING when Slurm may know it, else straight to its end."""
    return Move(machine.name, failure, way_out(machine), failure)


def way_out(machine: Machine) -> Phase:
    """The next phase of a machine that is given up.

    Where slurmd was never asked to start there can be no job: nothing has to be waited for, not even Slurm's answer.
    One that was adopted may have its line, and jobs, from before.
    """
    known = machine.phase in IN_SLURM or machine.line_published
    return Phase.DRAINING if known and machine.may_run_jobs else Phase.TERMINATING


def _silent(machine: Machine, world: World) -> bool:
    """Its agent has not spoken for long, while the head could hear it."""
    if machine.heartbeat_at is None or world.peers_since is None:
        return machine.heartbeat_at is None
    heard = max(machine.heartbeat_at, world.peers_since)
    return (world.now - heard).total_seconds() > world.policy.heartbeat_lost_s


def _ended_by_cloud(machine: Machine, world: World) -> str:
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
    if (at - born).total_seconds() <= world.policy.listing_lag_s:
        return ""  # a fresh machine may be missing from a listing that lags
    return f"{machine.provider} does not list it any more" if _silent(machine, world) else ""


def _surely_ended(machine: Machine, world: World) -> bool:
    """Nothing runs on it any more, so nothing can be killed: not merely on its way down."""
    instance = world.instance(machine)
    ending = instance is not None and instance.state is InstanceState.TERMINATING
    return bool(_ended_by_cloud(machine, world)) and (not ending or _silent(machine, world))


def _may_have_jobs(machine: Machine, world: World) -> bool:
    """A machine that was found again after the journal was lost may be at work, whatever its phase says.

    One whose line is in force need not be spared here: it is drained, and waited for.
    """
    return machine.launch_attempts == 0 and not machine.line_published and not world.idle(machine)


def _requested(machine: Machine, world: World) -> Step | None:
    if machine.removal:
        return Move(machine.name, "not wanted any more; nothing was rented", Phase.GONE)
    if (world.now - machine.created_at).total_seconds() > world.policy.boot_timeout_s:
        failure = f"{machine.provider} took no order within {world.policy.boot_timeout_s:g} s: {machine.reason}"
        return Move(machine.name, failure, Phase.GONE, failure)
    block = world.blocks.get(f"provider:{machine.provider}")
    if block is not None and block.until > world.now and block.cause is Cause.PAUSE:
        return None  # it said when to come again
    return Launch(machine.name, machine.reason)


def _launching(machine: Machine, world: World) -> Step | None:
    """Only reached when no create call is in flight: its outcome was unclear, or meshd died meanwhile."""
    called, at = machine.launch_called_at, world.listed_at.get(machine.provider)
    if _age_s(machine, world) > world.policy.boot_timeout_s:
        within = f"within {world.policy.boot_timeout_s:g} s"
        return fail(machine, f"{machine.provider} has not told {within} what became of it")
    if called is None or at is None or at <= called:
        return None
    found = world.by_token.get((machine.provider, machine.name), ())
    if found:
        oldest = min(found, key=lambda i: (i.launched_at is None, i.launched_at, i.id))
        return Adopt(machine.name, "an unclear create call did make it", oldest)
    if (at - called).total_seconds() < world.policy.launch_settle_s:
        return None
    if machine.launch_attempts >= world.policy.launch_attempts_max:
        failure = f"{machine.provider} gave no clear answer to {machine.launch_attempts} create calls"
        return Move(machine.name, failure, Phase.GONE, failure)
    return Move(machine.name, "the create call had no effect", Phase.REQUESTED)


def _booting(machine: Machine, world: World) -> Step | None:
    if machine.removal and not _may_have_jobs(machine, world):
        return Move(machine.name, "not wanted any more", way_out(machine))
    ended = _ended_by_cloud(machine, world)
    if ended:
        guess = _key_guess(machine, world)
        return fail(machine, f"{ended} before it joined the tailnet. {guess} (docs/troubleshooting.md, auth key)")
    peer = world.peer(machine)
    if peer is not None:
        return NotePeer(machine.name, "seen on the tailnet", peer.ipv4, peer.id, peer.path)
    if world.peers is None:
        return None  # who cannot look has not seen that it is missing
    if _age_s(machine, world, world.peers_since) > world.policy.boot_timeout_s and not _may_have_jobs(machine, world):
        within = f"not seen on the tailnet within {world.policy.boot_timeout_s:g} s"
        if world.dead_key and not machine.own_key:
            return fail(machine, f"{within}: {world.dead_key}: {DEAD_KEY_CURE}")
        return fail(
            machine,
            f"{within}: it did not boot, could not install tailscale, or its auth key was refused (expired or "
            "revoked). See its console, and check the key",
        )
    return None


def _key_guess(machine: Machine, world: World) -> str:
    """What the auth key may have to do with a machine that did not join, and what to do then."""
    refused = "If its console says that the auth key was refused"
    if machine.own_key:
        return f"{refused}, the key was used by another device, or it booted for too long: look at the devices"
    return f"{world.dead_key}: {DEAD_KEY_CURE}" if world.dead_key else f"{refused}: {DEAD_KEY_CURE}"


def _joining(machine: Machine, world: World) -> Step | None:
    if machine.removal and not _may_have_jobs(machine, world):
        return Move(machine.name, "not wanted any more", way_out(machine))
    ended = _ended_by_cloud(machine, world)
    if ended:
        return fail(machine, f"{ended} before it asked to join")
    if world.peers is None:
        return None  # it cannot reach the head either
    if _age_s(machine, world, world.peers_since) > world.policy.join_timeout_s and not _may_have_jobs(machine, world):
        if machine.problem:
            return fail(machine, machine.problem)
        return fail(
            machine,
            f"on the tailnet, but its node agent did not ask to join within {world.policy.join_timeout_s:g} s: the "
            "tailnet's ACL must let machines reach the head's node API port",
        )
    return None


def _both_since(world: World) -> datetime | None:
    """Since when tailnet and Slurm are both in view; None while a machine that gets on could not be seen to."""
    if world.peers_since is None or world.slurm_since is None:
        return None
    return max(world.peers_since, world.slurm_since)


def _configuring(machine: Machine, world: World) -> Step | None:
    if machine.removal:
        return Move(machine.name, "not wanted any more", way_out(machine))
    ended = _ended_by_cloud(machine, world)
    if ended:
        return fail(machine, ended)
    if not machine.line_published and world.published.get(machine.slot) == machine.tailnet_ip:
        return NotePublished(machine.name, "its line is in force")
    if machine.slurmd_started:
        return Move(machine.name, "slurmd was started", Phase.TESTING)
    since = _both_since(world)
    if since is not None and _age_s(machine, world, since) > world.policy.configure_timeout_s:
        missing = "munge was not proved" if not machine.munge_ok else "Slurm did not take its line"
        if machine.munge_ok and machine.line_published:
            missing = "its agent did not start slurmd"
        missing = machine.problem or missing
        return fail(machine, f"not configured within {world.policy.configure_timeout_s:g} s: {missing}")
    if machine.munge_ok and machine.line_published:
        return StartSlurmd(machine.name, "munge is proved and Slurm knows its address")
    return None


def _testing(machine: Machine, world: World) -> Step | None:
    if machine.removal:
        return Move(machine.name, "not wanted any more", Phase.DRAINING)
    ended = _ended_by_cloud(machine, world)
    if ended:
        return fail(machine, ended)
    node = world.node(machine)
    if node is not None and node.up:
        return Accept(machine.name, "slurmd answers")
    if node is not None and "INVALID_REG" in node.states:
        return fail(machine, f"Slurm refused its registration: {node.reason or 'no reason given'}")
    since = _both_since(world)
    if since is not None and _age_s(machine, world, since) > world.policy.test_timeout_s:
        states = "+".join(sorted(node.states)) if node else "unknown to Slurm"
        return fail(
            machine,
            f"not up in Slurm within {world.policy.test_timeout_s:g} s (state {states}): see slurmd's log "
            "on the machine; ports 6817 and 6818 must be open between head and machine in the tailnet's ACL",
        )
    return None


def _ready(machine: Machine, world: World) -> Step | None:
    if machine.removal:
        return Move(machine.name, machine.reason or "not wanted any more", Phase.DRAINING)
    ended = _ended_by_cloud(machine, world)
    if ended:
        return fail(machine, ended)
    peer = world.peer(machine)
    if peer is not None and peer.path and peer.path != machine.path:
        return NotePeer(machine.name, "its path changed", peer.ipv4, peer.id, peer.path)
    if _dead(machine, world):
        why = ", since its tailnet device was deleted" if DEVICE_GONE in machine.marks else ""
        return fail(
            machine,
            f"no word from it for over {world.policy.heartbeat_lost_s:g} s{why}, and Slurm does not reach it either",
        )
    return _lasting_key(machine, world)


def _lasting_key(machine: Machine, world: World) -> Step | None:
    """An untagged device's node key expires: the machine is off the tailnet then. Only its own is changed."""
    peer = world.peer(machine)
    if peer is None or peer.key_expiry is None or peer.id != machine.tailnet_id or not world.policy.may_change_devices:
        return None
    asked = machine.marks.get("key_expiry")
    if asked is not None and (world.now - asked).total_seconds() < world.policy.key_expiry_again_s:
        return None
    return DisableKeyExpiry(machine.name, f"its node key would end on {peer.key_expiry:%Y-%m-%d}", peer.id)


def _dead(machine: Machine, world: World) -> bool:
    """No heartbeat, Slurm cannot reach it and no job is on it. Any doubt says False."""
    if machine.heartbeat_at is None or world.peers is None:
        return False  # a head that is off the tailnet hears nobody, and its Slurm reaches nobody
    node = world.node(machine)
    return (
        _silent(machine, world)
        and node is not None
        and bool(node.states & {"DOWN", "NOT_RESPONDING"})
        and world.idle(machine)
    )


def _draining(machine: Machine, world: World) -> Step | None:
    if machine.left_slurm:
        return Move(machine.name, machine.reason, Phase.TERMINATING)
    if world.slurm is None or world.slurm_at is None:
        if machine.removal == "forced" and _age_s(machine, world) > world.policy.publish_wait_max_s:
            return Move(machine.name, "removed by force while Slurm cannot be asked", Phase.TERMINATING)
        return None  # unknown is not idle
    asked = machine.marks.get("drained")
    if asked is not None and world.slurm_at <= asked:
        return None  # what was seen is older than what was done
    if _surely_ended(machine, world):
        return Leave(machine.name, "the machine is dead", machine.slot, dead=True)
    node = world.node(machine)
    if machine.removal == "forced":
        return Leave(machine.name, "removed by force", machine.slot, forced=True)
    if node is not None and not node.drained:
        # A node that is DOWN as well: it comes back by itself when its slurmd registers again.
        return Drain(machine.name, machine.failure or machine.reason, machine.slot)
    if world.idle(machine):
        return Leave(machine.name, "no job is on it", machine.slot, silent=_dead(machine, world))
    return None


def _terminating(machine: Machine, world: World) -> Step | None:
    at = world.listed_at.get(machine.provider)
    instance = world.instance(machine)
    asked = machine.marks.get("terminate_called")
    if not machine.instance_id:
        return _terminating_without_id(machine, world, at)
    if at is not None and asked is not None and at > asked and _gone_from(instance, machine, world, at):
        return Move(machine.name, f"{machine.provider} says it is gone", Phase.GONE)
    waiting_for_slurm = (
        world.published.get(machine.slot) == machine.tailnet_ip != ""
        and _age_s(machine, world) < world.policy.publish_wait_max_s
    )
    if waiting_for_slurm:
        return None  # its line leaves nodes.conf first
    if _at_work_again(machine, world):
        return None
    if asked is not None and (world.now - asked).total_seconds() < world.policy.terminate_again_s:
        return None
    if _overdue(machine, world):
        return _lost(machine, world)
    return Terminate(machine.name, machine.failure or machine.reason)


def _at_work_again(machine: Machine, world: World) -> bool:
    """Its slurmd did not stop, somebody opened its node anew after it had left, and now a job runs on it."""
    node = world.node(machine)
    return machine.removal != "forced" and node is not None and node.up and bool(world.jobs.get(machine.slot))


def _gone_from(instance: Instance | None, machine: Machine, world: World, at: datetime) -> bool:
    """Whether the listing of `at` shows its end: a fresh machine may be missing, one that still speaks is alive."""
    if instance is not None:
        return instance.state is InstanceState.GONE
    born = machine.launch_called_at or machine.created_at
    spoke_since = machine.heartbeat_at is not None and machine.heartbeat_at > at
    return (at - born).total_seconds() > world.policy.listing_lag_s and not spoke_since


def _overdue(machine: Machine, world: World) -> bool:
    return machine.phase is Phase.TERMINATING and _age_s(machine, world) > world.policy.lost_after_s


def _lost(machine: Machine, world: World) -> Step:
    reason = f"{machine.provider} has not ended it within {world.policy.lost_after_s:g} s; asked again for ever"
    return Move(machine.name, reason, Phase.LOST)


def _terminating_without_id(machine: Machine, world: World, at: datetime | None) -> Step | None:
    """A machine whose create call stayed unclear: whatever bears its name is it."""
    found = world.by_token.get((machine.provider, machine.name), ())
    if found:
        return Adopt(machine.name, "found by its name", found[0])
    called = machine.launch_called_at or machine.created_at
    if at is not None and (at - called).total_seconds() > world.policy.launch_settle_s:
        return Move(machine.name, f"{machine.provider} never had it", Phase.GONE)
    return _lost(machine, world) if _overdue(machine, world) else None


def _gone(machine: Machine, world: World) -> Step | None:
    if machine.device_removed or not world.policy.may_change_devices:
        return None
    peer = world.peer(machine)
    if peer is not None:
        return RemoveDevice(machine.name, "its machine is gone", peer.id)
    return None


_BY_PHASE: dict[Phase, Callable[[Machine, World], Step | None]] = {
    Phase.REQUESTED: _requested,
    Phase.LAUNCHING: _launching,
    Phase.BOOTING: _booting,
    Phase.JOINING: _joining,
    Phase.CONFIGURING: _configuring,
    Phase.TESTING: _testing,
    Phase.READY: _ready,
    Phase.DRAINING: _draining,
    Phase.TERMINATING: _terminating,
    Phase.LOST: _terminating,
    Phase.GONE: _gone,
}
