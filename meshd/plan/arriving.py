"""The next step of a machine that is not READY yet. PURE.

Each phase has a deadline, which counts only the time in which meshd could have seen progress.
"""

from __future__ import annotations

from datetime import timedelta

from meshd.model.cooldown import CooldownCause, CooldownKey
from meshd.model.machine import FailureCause, Machine, Phase
from meshd.model.plan import (
    Launch,
    MarkReady,
    Move,
    RecordPeer,
    RecordPublished,
    RestartSlurmd,
    StartSlurmd,
    Step,
)
from meshd.plan.devices import NO_IPV4, NO_IPV4_CURE
from meshd.plan.fitness import unfit
from meshd.plan.leaving import ended_step, fail, way_out
from meshd.plan.liveness import age_s, both_since, may_have_jobs, rebooting
from meshd.plan.node_settings import unapplied
from meshd.plan.paths import CURE, path_fault
from meshd.plan.plan_input import PlanInput
from meshd.plan.repair import record
from meshd.plan.unclear_launch import made

DEAD_KEY_CURE = "`meshctl rotate-key`; where meshd cannot mint, put a new reusable key in place first"

REGISTERS_WITHIN = timedelta(seconds=10)
"""Between the order to start slurmd and its registration in Slurm; many times what it takes on an idle machine."""


def requested(machine: Machine, given: PlanInput) -> Step | None:
    """Make the create call, unless the machine is not needed, waited too long, or its provider asked for a pause."""
    if made(machine, given) is not None:
        # An older journal was restored, or a create call that had no effect had one after all.
        return Move(machine.name, f"{machine.provider} has it already", Phase.LAUNCHING)
    if machine.removal:
        return Move(machine.name, "no longer needed; nothing was rented", Phase.GONE)
    since = machine.turn_since if given.orders_guarded else machine.created_at
    if since is not None and (given.now - since).total_seconds() > given.policy.boot_timeout_s:
        failure = f"{machine.provider} took no order within {given.policy.boot_timeout_s:g} s: {machine.reason}"
        return Move(machine.name, failure, Phase.GONE, failure, FailureCause.UNKNOWN)
    cooldown = given.cooldowns.get(CooldownKey.of_provider(machine.provider))
    if cooldown is not None and cooldown.until > given.now and cooldown.cause is CooldownCause.PAUSE:
        return None  # the provider said when to ask again
    return Launch(machine.name, machine.reason)


def booting(machine: Machine, given: PlanInput) -> Step | None:
    """Wait for the machine's device on the tailnet."""
    if machine.removal and not may_have_jobs(machine, given):
        return Move(machine.name, "no longer needed", way_out(machine))
    guess = f"{_key_guess(machine, given)} (docs/troubleshooting.md, auth key)"
    if step := ended_step(machine, given, "before it joined the tailnet", guess):
        return step
    peer = given.peer(machine)
    if peer is not None and not peer.tailnet_ip:
        return fail(machine, f"{NO_IPV4} ({NO_IPV4_CURE})", FailureCause.NO_IPV4)
    if peer is not None:
        return RecordPeer(machine.name, "seen on the tailnet", peer.tailnet_ip, peer.id, peer.path)
    if given.peers is None:
        return None  # without the tailnet meshd cannot see whether it is missing
    if age_s(machine, given, given.peers_since) > given.policy.boot_timeout_s and not may_have_jobs(machine, given):
        within = f"not seen on the tailnet within {given.policy.boot_timeout_s:g} s"
        if given.dead_key and not machine.own_key:
            return fail(machine, f"{within}: {given.dead_key}: {DEAD_KEY_CURE}", FailureCause.AUTH_KEY)
        return fail(
            machine,
            f"{within}: it did not boot, could not install tailscale, or its auth key was refused (expired or "
            "revoked). See its console, and check the key",
            FailureCause.TAILNET,
        )
    return None


def _key_guess(machine: Machine, given: PlanInput) -> str:
    """How the auth key may be the cause for a machine that did not join, and what to do."""
    refused = "If its console says that the auth key was refused"
    if machine.own_key:
        return f"{refused}, the key was used by another device, or it booted for too long: look at the devices"
    return f"{given.dead_key}: {DEAD_KEY_CURE}" if given.dead_key else f"{refused}: {DEAD_KEY_CURE}"


def joining(machine: Machine, given: PlanInput) -> Step | None:
    """Wait for the agent of a machine that is on the tailnet."""
    if machine.removal and not may_have_jobs(machine, given):
        return Move(machine.name, "no longer needed", way_out(machine))
    if step := ended_step(machine, given, "before it asked to join"):
        return step
    if given.peers is None:
        return None  # it cannot reach the head either
    if age_s(machine, given, given.peers_since) > given.policy.join_timeout_s and not may_have_jobs(machine, given):
        within = f"on the tailnet, but its node agent did not ask to join within {given.policy.join_timeout_s:g} s"
        if machine.problem:
            return fail(machine, f"not joined within {given.policy.join_timeout_s:g} s: {machine.problem}",
                        FailureCause.ADMISSION)  # fmt: skip
        if machine.head_reached_at is not None:
            text = f"{within}, though it reaches the head: see `journalctl -u meshd-node` there, and its console"
            return fail(machine, text, FailureCause.AGENT)
        return fail(
            machine,
            f"{within}: the tailnet's ACL must let machines reach the head's node API port",
            FailureCause.AGENT,
        )
    return None


def configuring(machine: Machine, given: PlanInput) -> Step | None:
    """Wait for munge, for the node settings and for the line in Slurm, then start slurmd."""
    if machine.removal:
        return Move(machine.name, "no longer needed", way_out(machine))
    if step := ended_step(machine, given):
        return step
    if step := published(machine, given):
        return step
    if machine.slurmd_started:
        return Move(machine.name, "slurmd was started", Phase.TESTING)
    wanted = given.view.sections.get(machine.name, {})
    lacks = unapplied(wanted, given.view.report(machine)) if machine.munge_ok else None
    if lacks is not None and lacks.final:
        return fail(machine, f"its node settings failed: {lacks.name}: {lacks.words}", FailureCause.SETTINGS)
    since, limit_s = both_since(given), given.policy.configure_timeout_s + sum(one.within_s for one in wanted.values())
    if since is not None and age_s(machine, given, since) > limit_s:
        missing = "munge was not proved" if not machine.munge_ok else "Slurm did not take its line"
        if machine.munge_ok and _line_suffices(machine, given):
            missing = "its agent did not start slurmd"
        missing = f"{lacks.name}: {lacks.words}" if lacks is not None else machine.problem or missing
        cause = FailureCause.SETTINGS if lacks is not None else FailureCause.CONFIGURE
        return fail(machine, f"not configured within {limit_s:g} s: {missing}", cause)
    if machine.munge_ok and _line_suffices(machine, given) and lacks is None:
        fault = path_fault(machine, given.view) if not machine.may_run_jobs else ""
        if fault:
            return Move(machine.name, f"slurmd waits for a direct path to the head: {fault}", Phase.TESTING)
        return _start_slurmd(machine, given, "munge is proved and its line fits")
    return None


def _start_slurmd(machine: Machine, given: PlanInput, why: str) -> StartSlurmd | None:
    """None while Slurm cannot be read: in a CLOUD slot slurmd has to tell of a new boot, or Slurm waits for one."""
    return StartSlurmd(machine.name, why, given.cloud(machine)) if given.slurm is not None else None


def published(machine: Machine, given: PlanInput) -> Step | None:
    """Record that Slurm uses the machine's line, which a CLOUD node does not wait for."""
    if not machine.line_published and given.node_addrs.get(machine.slot) == machine.tailnet_ip != "":
        return RecordPublished(machine.name, "its line is in force")
    return None


def _line_suffices(machine: Machine, given: PlanInput) -> bool:
    """Whether slurmd may start: Slurm has the machine's line, or the slot's line lacks nothing but the address."""
    return machine.line_published or (
        given.cloud(machine) and given.settable_addrs.get(machine.slot) == machine.tailnet_ip != ""
    )


def testing(machine: Machine, given: PlanInput) -> Step | None:
    """Wait until Slurm shows the node up. A node that is drained or refused does not become READY."""
    if machine.removal:
        return Move(machine.name, "no longer needed", way_out(machine))
    if step := ended_step(machine, given):
        return step
    if not machine.may_run_jobs:
        return _path_tested(machine, given)
    node = given.node(machine)
    if node is not None and "INVALID_REG" in node.states:
        text = f"Slurm refused its registration: {node.reason or 'no reason given'}"
        return fail(machine, text, FailureCause.TEST)
    closed = unfit(machine, given.view)
    if closed is not None and closed.deliberate:
        return record(machine, given, closed)  # a person drained the slot: wait until it is resumed, however long
    if closed is not None:
        return fail(machine, f"drained before it was READY: {closed.words}", FailureCause.TEST)
    if node is not None and node.up:
        return MarkReady(machine.name, "slurmd answers")
    if step := published(machine, given):
        return step
    if _missed(machine, given):
        return RestartSlurmd(machine.name, "Slurm has its node switched off: it registered while Slurm was doing that")
    since, limit_s = both_since(given), _test_limit_s(machine, given)
    if since is not None and age_s(machine, given, max(since, machine.slurmd_start_ordered_at or since)) > limit_s:
        states = "+".join(sorted(node.states)) if node else "unknown to Slurm"
        return fail(
            machine,
            f"not up in Slurm within {limit_s:g} s (state {states}): see slurmd's log "
            "on the machine; ports 6817 and 6818 must be open between head and machine in the tailnet's ACL",
            FailureCause.TEST,
        )
    return None


def _missed(machine: Machine, given: PlanInput) -> bool:
    """Whether slurmctld ignored the registration, as it does while it switches a node off. slurmd sends no other.

    The slot may have its placeholder's address again.
    """
    node, ordered_at = given.slurm.nodes.get(machine.slot) if given.slurm else None, machine.slurmd_start_ordered_at
    if node is None or given.slurm_at is None or ordered_at is None or not machine.slurmd_started:
        return False
    off = node.powered_down and not node.states & {"POWERING_DOWN", "POWERING_UP", "POWER_UP"}
    again = machine.slurmd_restarted_at is not None and machine.slurmd_restarted_at > ordered_at
    return off and not again and given.slurm_at > ordered_at + REGISTERS_WITHIN


def _path_tested(machine: Machine, given: PlanInput) -> Step | None:
    """Start slurmd when the pool accepts the path to the head; give the machine up when the path stays relayed.

    A path may be relayed at first, and direct some seconds later.
    """
    fault = path_fault(machine, given.view)
    if not fault:
        return _start_slurmd(machine, given, "its pool accepts its path to the head")
    since, limit_s = both_since(given), _test_limit_s(machine, given)
    if since is None or age_s(machine, given, since) <= limit_s:
        return None
    return fail(machine, f"no direct path to the head within {limit_s:g} s: {fault}: {CURE}", FailureCause.PATH)


def _test_limit_s(machine: Machine, given: PlanInput) -> float:
    """How long each of the tests may take; longer while the machine reboots."""
    policy = given.policy
    return max(policy.test_timeout_s, policy.boot_timeout_s) if rebooting(machine, given) else policy.test_timeout_s
