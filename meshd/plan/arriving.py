"""A machine's way in: the next step of one that is not READY yet. PURE.

Each phase has a deadline. It counts only the time in which progress could have been seen.
"""

from __future__ import annotations

from meshd.model.desired import Cause
from meshd.model.failure import FailureCause
from meshd.model.machine import REACHED, Machine, Phase
from meshd.model.plan import Accept, Launch, Move, NotePeer, NotePublished, StartSlurmd, Step
from meshd.plan.asking import ended_step
from meshd.plan.fitness import unfit
from meshd.plan.ipv4 import NO_IPV4, NO_IPV4_CURE
from meshd.plan.leaving import fail, way_out
from meshd.plan.repair import note
from meshd.plan.signs import age_s, both_since, may_have_jobs, rebooting
from meshd.plan.world import World

DEAD_KEY_CURE = "`meshctl rotate-key`; where meshd cannot mint, put a new reusable key in place first"


def requested(machine: Machine, world: World) -> Step | None:
    """Nothing was ordered yet."""
    if machine.removal:
        return Move(machine.name, "not wanted any more; nothing was rented", Phase.GONE)
    if (world.now - machine.created_at).total_seconds() > world.policy.boot_timeout_s:
        failure = f"{machine.provider} took no order within {world.policy.boot_timeout_s:g} s: {machine.reason}"
        return Move(machine.name, failure, Phase.GONE, failure, FailureCause.UNKNOWN)
    block = world.blocks.get(f"provider:{machine.provider}")
    if block is not None and block.until > world.now and block.cause is Cause.PAUSE:
        return None  # it said when to come again
    return Launch(machine.name, machine.reason)


def booting(machine: Machine, world: World) -> Step | None:
    """It was ordered, and is waited for on the tailnet."""
    if machine.removal and not may_have_jobs(machine, world):
        return Move(machine.name, "not wanted any more", way_out(machine))
    guess = f"{_key_guess(machine, world)} (docs/troubleshooting.md, auth key)"
    if step := ended_step(machine, world, "before it joined the tailnet", guess):
        return step
    peer = world.peer(machine)
    if peer is not None and not peer.ipv4:
        return fail(machine, f"{NO_IPV4} ({NO_IPV4_CURE})", FailureCause.NO_IPV4)
    if peer is not None:
        return NotePeer(machine.name, "seen on the tailnet", peer.ipv4, peer.id, peer.path)
    if world.peers is None:
        return None  # who cannot look has not seen that it is missing
    if age_s(machine, world, world.peers_since) > world.policy.boot_timeout_s and not may_have_jobs(machine, world):
        within = f"not seen on the tailnet within {world.policy.boot_timeout_s:g} s"
        if world.dead_key and not machine.own_key:
            return fail(machine, f"{within}: {world.dead_key}: {DEAD_KEY_CURE}", FailureCause.AUTH_KEY)
        return fail(
            machine,
            f"{within}: it did not boot, could not install tailscale, or its auth key was refused (expired or "
            "revoked). See its console, and check the key",
            FailureCause.TAILNET,
        )
    return None


def _key_guess(machine: Machine, world: World) -> str:
    """What the auth key may have to do with a machine that did not join, and what to do then."""
    refused = "If its console says that the auth key was refused"
    if machine.own_key:
        return f"{refused}, the key was used by another device, or it booted for too long: look at the devices"
    return f"{world.dead_key}: {DEAD_KEY_CURE}" if world.dead_key else f"{refused}: {DEAD_KEY_CURE}"


def joining(machine: Machine, world: World) -> Step | None:
    """It is on the tailnet, and its agent is waited for."""
    if machine.removal and not may_have_jobs(machine, world):
        return Move(machine.name, "not wanted any more", way_out(machine))
    if step := ended_step(machine, world, "before it asked to join"):
        return step
    if world.peers is None:
        return None  # it cannot reach the head either
    if age_s(machine, world, world.peers_since) > world.policy.join_timeout_s and not may_have_jobs(machine, world):
        within = f"on the tailnet, but its node agent did not ask to join within {world.policy.join_timeout_s:g} s"
        if machine.problem:
            return fail(machine, f"not joined within {world.policy.join_timeout_s:g} s: {machine.problem}",
                        FailureCause.ADMISSION)  # fmt: skip
        if REACHED in machine.marks:
            text = f"{within}, though it reaches the head: see `journalctl -u meshd-node` there, and its console"
            return fail(machine, text, FailureCause.AGENT)
        return fail(
            machine,
            f"{within}: the tailnet's ACL must let machines reach the head's node API port",
            FailureCause.AGENT,
        )
    return None


def configuring(machine: Machine, world: World) -> Step | None:
    """It was accepted: munge and its line in Slurm come first, slurmd last."""
    if machine.removal:
        return Move(machine.name, "not wanted any more", way_out(machine))
    if step := ended_step(machine, world):
        return step
    if not machine.line_published and world.published.get(machine.slot) == machine.tailnet_ip:
        return NotePublished(machine.name, "its line is in force")
    if machine.slurmd_started:
        return Move(machine.name, "slurmd was started", Phase.TESTING)
    since = both_since(world)
    if since is not None and age_s(machine, world, since) > world.policy.configure_timeout_s:
        missing = "munge was not proved" if not machine.munge_ok else "Slurm did not take its line"
        if machine.munge_ok and machine.line_published:
            missing = "its agent did not start slurmd"
        missing = machine.problem or missing
        text = f"not configured within {world.policy.configure_timeout_s:g} s: {missing}"
        return fail(machine, text, FailureCause.CONFIGURE)
    if machine.munge_ok and machine.line_published:
        return StartSlurmd(machine.name, "munge is proved and Slurm knows its address")
    return None


def testing(machine: Machine, world: World) -> Step | None:
    """Slurmd was started, and has to answer; a node that is drained or refused is not accepted."""
    if machine.removal:
        return Move(machine.name, "not wanted any more", Phase.DRAINING)
    if step := ended_step(machine, world):
        return step
    node = world.node(machine)
    if node is not None and "INVALID_REG" in node.states:
        text = f"Slurm refused its registration: {node.reason or 'no reason given'}"
        return fail(machine, text, FailureCause.TEST)
    closed = unfit(machine, world.sight)
    if closed is not None and closed.deliberate:
        return note(machine, world, closed)  # the slot is a person's: it waits until it is opened, however long
    if closed is not None:
        return fail(machine, f"closed before it was READY: {closed.words}", FailureCause.TEST)
    if node is not None and node.up:
        return Accept(machine.name, "slurmd answers")
    since = both_since(world)
    limit_s = world.policy.test_timeout_s
    if rebooting(machine, world):
        limit_s = max(limit_s, world.policy.boot_timeout_s)
    if since is not None and age_s(machine, world, since) > limit_s:
        states = "+".join(sorted(node.states)) if node else "unknown to Slurm"
        return fail(
            machine,
            f"not up in Slurm within {limit_s:g} s (state {states}): see slurmd's log "
            "on the machine; ports 6817 and 6818 must be open between head and machine in the tailnet's ACL",
            FailureCause.TEST,
        )
    return None
