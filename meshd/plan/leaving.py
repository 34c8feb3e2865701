"""A machine's way out: from its end in the cloud, or the decision to give it up, until its device is gone. PURE.

Before a machine that its cloud does not list is given up, the cloud is asked for it by name. A listing may lag, and
does not say why a machine is not in it. `Provider.get` does: it knows what became of an accepted order (GCE), or the
reason of an end that the listing no longer shows.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from meshd.model.host import PROVIDER
from meshd.model.machine import IN_SLURM, FailureCause, Machine, Phase, Removal
from meshd.model.plan import Adopt, AskCloud, Drain, Leave, Move, RemoveDevice, Step, Terminate
from meshd.plan.failure_rules import cause_of_end, counts_in_a_row
from meshd.plan.liveness import age_s, dead, ended_by_cloud, surely_ended
from meshd.plan.lost_jobs import lost_jobs, unseen_jobs
from meshd.plan.plan_input import PlanInput
from meshd.plan.unclear_launch import made, surely_not_made
from meshd.provider_api import Instance, InstanceState


def fail(machine: Machine, failure: str, cause: FailureCause, vendor_words: str = "") -> Step:
    """Give a machine up: through DRAINING when jobs may be on it, else directly to TERMINATING.

    An owner may take a host away at any time: that is no fault of anybody.
    """
    if machine.provider == PROVIDER and cause in {FailureCause.ENDED, FailureCause.UNKNOWN, FailureCause.SCRIPT}:
        cause = FailureCause.AWAY
    return Move(machine.name, failure, way_out(machine), failure, cause, vendor_words)


def way_out(machine: Machine) -> Phase:
    """The next phase of a machine that is given up.

    Where slurmd was never told to start there is no job, so nothing is waited for, not even Slurm's answer. An adopted
    machine may have a line in Slurm, and jobs, from before.
    """
    known = machine.phase in IN_SLURM or machine.line_published
    return Phase.DRAINING if known and machine.may_run_jobs else Phase.TERMINATING


def draining(machine: Machine, given: PlanInput) -> Step | None:
    """The next step of a machine that leaves Slurm: drain it, wait for its jobs, then take it out."""
    if machine.left_slurm:
        return Move(machine.name, machine.reason, Phase.TERMINATING)
    if given.slurm is None or given.slurm_at is None:
        if machine.removal is Removal.FORCED and age_s(machine, given) > given.policy.publish_wait_max_s:
            return Move(machine.name, "removed by force while Slurm cannot be read", Phase.TERMINATING)
        return None  # unknown is not idle
    asked = machine.drained_at
    if asked is not None and given.slurm_at <= asked:
        return None  # Slurm was read before the node was drained
    if surely_ended(machine, given):
        return Leave(machine.name, "its cloud has ended it", machine.slot, dead=True)
    node = given.node(machine)
    if machine.removal is Removal.FORCED:
        return Leave(machine.name, "removed by force", machine.slot, forced=True)
    if node is not None and node.cloud and given.idle(machine) and (node.powering_up or node.powered_down):
        # No job can start there: slurmd has not registered, or Slurm has switched the node off.
        return Leave(machine.name, "no job is on it", machine.slot, silent=dead(machine, given))
    if node is not None and not node.drained:
        # Also a node that is DOWN: it takes jobs again as soon as its slurmd registers.
        return Drain(machine.name, machine.failure or machine.reason, machine.slot)
    if given.idle(machine):
        return Leave(machine.name, "no job is on it", machine.slot, silent=dead(machine, given))
    return lost_jobs(machine, given) or unseen_jobs(machine, given)


def terminating(machine: Machine, given: PlanInput) -> Step | None:
    """The next step of a machine that is out of Slurm: ask the cloud to end it until the cloud says that it is gone."""
    at = given.listed_at.get(machine.provider)
    instance = given.instance(machine)
    asked = machine.terminate_called_at
    if not machine.instance_id:
        return _terminating_without_id(machine, given)
    if at is not None and asked is not None and at > asked and _gone_from(instance, machine, given, at):
        return Move(machine.name, f"{machine.provider} says it is gone", Phase.GONE)
    waiting_for_slurm = (
        not given.cloud(machine)  # its address was taken when it left, and its line can follow
        and given.node_addrs.get(machine.slot) == machine.tailnet_ip != ""
        and age_s(machine, given) < given.policy.publish_wait_max_s
    )
    if waiting_for_slurm:
        return _drained_again(machine, given)  # its line leaves nodes.conf first
    if _at_work_again(machine, given):
        return None
    if asked is not None and (given.now - asked).total_seconds() < given.policy.terminate_again_s:
        return None
    if _overdue(machine, given):
        return _lost(machine, given)
    return Terminate(machine.name, machine.failure or machine.reason)


def _drained_again(machine: Machine, given: PlanInput) -> Step | None:
    """Drain a node that left Slurm and takes jobs again, so that its line can become a free slot.

    After a forced leave slurmd may still run. When it answers, slurmctld resumes the node that it held DOWN.
    """
    node, asked = given.node(machine), machine.drained_at
    seen_since = asked is None or (given.slurm_at is not None and given.slurm_at > asked)
    if node is None or node.drained or not node.up or not seen_since:
        return None
    return Drain(machine.name, machine.failure or machine.reason, machine.slot)


def _at_work_again(machine: Machine, given: PlanInput) -> bool:
    """Whether a job runs on it although it left Slurm: slurmd did not stop, and somebody resumed the node."""
    node = given.node(machine)
    return machine.removal is not Removal.FORCED and node is not None and node.up and bool(given.jobs.get(machine.slot))


def _gone_from(instance: Instance | None, machine: Machine, given: PlanInput, at: datetime) -> bool:
    """Whether the listing read at `at` shows its end. A new machine may be missing; one whose agent calls is alive."""
    spoke_since = machine.heartbeat_at is not None and machine.heartbeat_at > at
    if instance is not None:
        return instance.state is InstanceState.GONE and not spoke_since
    born = machine.launch_called_at or machine.created_at
    return (at - born).total_seconds() > given.policy.listing_lag_s and not spoke_since


def _overdue(machine: Machine, given: PlanInput) -> bool:
    return machine.phase is Phase.TERMINATING and age_s(machine, given) > given.policy.lost_after_s


def _lost(machine: Machine, given: PlanInput) -> Step:
    reason = f"{machine.provider} has not ended it within {given.policy.lost_after_s:g} s; meshd keeps asking"
    return Move(machine.name, reason, Phase.LOST)


def _terminating_without_id(machine: Machine, given: PlanInput) -> Step | None:
    """The next step for a machine whose create call stayed unclear: an instance with its name is this machine."""
    found = made(machine, given)
    if found is not None:
        return Adopt(machine.name, "found by its name", found)
    if surely_not_made(machine, given):
        return Move(machine.name, f"{machine.provider} never had it", Phase.GONE)
    return _lost(machine, given) if _overdue(machine, given) else None


def gone(machine: Machine, given: PlanInput) -> Step | None:
    """Remove the tailnet devices with the name of a machine that is gone, where there are any."""
    if machine.device_removed or not given.policy.may_change_devices or machine.provider == PROVIDER:
        return None  # the device of a host outlives its machines
    devices = given.devices_named(machine.name)
    return RemoveDevice(machine.name, "its machine is gone", devices) if devices else None


MISSING_AFTER_S = 15.0
"""The cloud is asked for a machine that a listing lacks this long after the order was accepted."""

AGAIN_AFTER_S = 30.0
"""The pause before the cloud is asked again."""


def ended_step(machine: Machine, given: PlanInput, when: str = "", guess: str = "") -> Step | None:
    """The step for a machine that its cloud has ended, or does not list; None for any other.

    Args:
        machine: not on its way out yet.
        given: the observed state.
        when: how far the machine came, e.g. "before it asked to join".
        guess: what the cause may be where the cloud does not say it.
    """
    ended = ended_by_cloud(machine, given)
    instance = given.instance(machine)
    if instance is None and (ended or _missing_early(machine, given)) and _may_ask(machine, given):
        return AskCloud(machine.name, f"{machine.provider} does not list it")
    if not ended:
        return None
    cause, words = FailureCause.ENDED, ""
    if instance is not None:
        words = instance.reason or instance.vendor_state or instance.state.value
        cause = cause_of_end(instance.state, words, joined=machine.facts is not None)
    return fail(machine, end_words(ended, when, guess, cause), cause, words)


def end_words(ended: str, when: str, guess: str, cause: FailureCause) -> str:
    """Why the machine is given up, for people. The guess is left out where the cause is known."""
    text = f"{ended} {when}".rstrip()
    return f"{text}. {guess}" if guess and counts_in_a_row(cause) else text


def _missing_early(machine: Machine, given: PlanInput) -> bool:
    """Whether a listing should have the machine by now: an accepted order may have failed."""
    at = given.listed_at.get(machine.provider)
    return (
        machine.phase is Phase.BOOTING
        and at is not None
        and given.peer(machine) is None
        and at > machine.phase_since + timedelta(seconds=MISSING_AFTER_S)
    )


def _may_ask(machine: Machine, given: PlanInput) -> bool:
    asked = machine.cloud_asked_at
    return bool(machine.instance_id) and (asked is None or (given.now - asked).total_seconds() >= AGAIN_AFTER_S)
