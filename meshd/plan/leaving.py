"""A machine's way out: from its end in the cloud, or the decision to give it up, until its device is gone. PURE.

Before a machine that its cloud does not list is given up, the cloud is asked for it by name. A listing may lag, and
does not say why a machine is not in it. `Provider.get` does: it knows what became of an accepted order (GCE), or the
reason of an end that the listing no longer shows.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from meshd.model.machine import IN_SLURM, FailureCause, Machine, Phase, Removal
from meshd.model.plan import Adopt, AskCloud, Drain, Leave, Move, RemoveDevice, Step, Terminate
from meshd.plan.failure_rules import cause_of_end, counts_in_a_row
from meshd.plan.liveness import age_s, dead, ended_by_cloud, surely_ended
from meshd.plan.plan_input import PlanInput
from meshd.plan.unclear_launch import made, surely_not_made
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


def draining(machine: Machine, given: PlanInput) -> Step | None:
    """Out of Slurm, once no job is on it or nothing can be killed any more."""
    if machine.left_slurm:
        return Move(machine.name, machine.reason, Phase.TERMINATING)
    if given.slurm is None or given.slurm_at is None:
        if machine.removal is Removal.FORCED and age_s(machine, given) > given.policy.publish_wait_max_s:
            return Move(machine.name, "removed by force while Slurm cannot be asked", Phase.TERMINATING)
        return None  # unknown is not idle
    asked = machine.drained_at
    if asked is not None and given.slurm_at <= asked:
        return None  # what was seen is older than what was done
    if surely_ended(machine, given):
        return Leave(machine.name, "the machine is dead", machine.slot, dead=True)
    node = given.node(machine)
    if machine.removal is Removal.FORCED:
        return Leave(machine.name, "removed by force", machine.slot, forced=True)
    if node is not None and not node.drained:
        # A node that is DOWN as well: it comes back by itself when its slurmd registers again.
        return Drain(machine.name, machine.failure or machine.reason, machine.slot)
    if given.idle(machine):
        return Leave(machine.name, "no job is on it", machine.slot, silent=dead(machine, given))
    return None


def terminating(machine: Machine, given: PlanInput) -> Step | None:
    """Ended at the cloud, asked for again until the cloud says that it is gone."""
    at = given.listed_at.get(machine.provider)
    instance = given.instance(machine)
    asked = machine.terminate_called_at
    if not machine.instance_id:
        return _terminating_without_id(machine, given)
    if at is not None and asked is not None and at > asked and _gone_from(instance, machine, given, at):
        return Move(machine.name, f"{machine.provider} says it is gone", Phase.GONE)
    waiting_for_slurm = (
        given.node_addrs.get(machine.slot) == machine.tailnet_ip != ""
        and age_s(machine, given) < given.policy.publish_wait_max_s
    )
    if waiting_for_slurm:
        return _closed_again(machine, given)  # its line leaves nodes.conf first
    if _at_work_again(machine, given):
        return None
    if asked is not None and (given.now - asked).total_seconds() < given.policy.terminate_again_s:
        return None
    if _overdue(machine, given):
        return _lost(machine, given)
    return Terminate(machine.name, machine.failure or machine.reason)


def _closed_again(machine: Machine, given: PlanInput) -> Step | None:
    """A node that is on its way out and open to jobs is drained once more, so that its line can become a free slot.

    slurmctld opens a node that it held DOWN when its slurmd, which a forced leave did not wait for, answers once more.
    """
    node, asked = given.node(machine), machine.drained_at
    seen_since = asked is None or (given.slurm_at is not None and given.slurm_at > asked)
    if node is None or node.drained or not node.up or not seen_since:
        return None
    return Drain(machine.name, machine.failure or machine.reason, machine.slot)


def _at_work_again(machine: Machine, given: PlanInput) -> bool:
    """Its slurmd did not stop, somebody opened its node anew after it had left, and now a job runs on it."""
    node = given.node(machine)
    return machine.removal is not Removal.FORCED and node is not None and node.up and bool(given.jobs.get(machine.slot))


def _gone_from(instance: Instance | None, machine: Machine, given: PlanInput, at: datetime) -> bool:
    """Whether the listing of `at` shows its end: a fresh machine may be missing, one that still speaks is alive."""
    spoke_since = machine.heartbeat_at is not None and machine.heartbeat_at > at
    if instance is not None:
        return instance.state is InstanceState.GONE and not spoke_since
    born = machine.launch_called_at or machine.created_at
    return (at - born).total_seconds() > given.policy.listing_lag_s and not spoke_since


def _overdue(machine: Machine, given: PlanInput) -> bool:
    return machine.phase is Phase.TERMINATING and age_s(machine, given) > given.policy.lost_after_s


def _lost(machine: Machine, given: PlanInput) -> Step:
    reason = f"{machine.provider} has not ended it within {given.policy.lost_after_s:g} s; asked again for ever"
    return Move(machine.name, reason, Phase.LOST)


def _terminating_without_id(machine: Machine, given: PlanInput) -> Step | None:
    """A machine whose create call stayed unclear: whatever bears its name is it."""
    found = made(machine, given)
    if found is not None:
        return Adopt(machine.name, "found by its name", found)
    if surely_not_made(machine, given):
        return Move(machine.name, f"{machine.provider} never had it", Phase.GONE)
    return _lost(machine, given) if _overdue(machine, given) else None


def gone(machine: Machine, given: PlanInput) -> Step | None:
    """Nothing is left but its device, where there is one."""
    if machine.device_removed or not given.policy.may_change_devices:
        return None
    peer = given.peer(machine)
    if peer is not None:
        return RemoveDevice(machine.name, "its machine is gone", peer.id)
    return None


MISSING_AFTER_S = 15.0
"""A listing that was begun so long after the order was accepted, and lacks the machine, is worth a question."""

AGAIN_AFTER_S = 30.0
"""An answer that settled nothing holds for so long."""


def ended_step(machine: Machine, given: PlanInput, when: str = "", guess: str = "") -> Step | None:
    """The step that follows from the cloud's word that the machine has ended; None while it says nothing like it.

    Args:
        machine: not on its way out yet.
        given: what was observed.
        when: words on how far it came, e.g. "before it asked to join".
        guess: what may be behind it, for a machine whose cloud does not say why it ended it.
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
    """Why it is given up, for people. Who knows the cause needs no guess."""
    text = f"{ended} {when}".rstrip()
    return f"{text}. {guess}" if guess and counts_in_a_row(cause) else text


def _missing_early(machine: Machine, given: PlanInput) -> bool:
    """Accepted, and not in a listing of a while later: an order may have come to nothing."""
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
