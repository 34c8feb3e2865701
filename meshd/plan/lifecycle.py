"""The next step of one machine. PURE.

There is one function for each phase: before READY in `arriving`, an unclear create call in `unclear_launch`, after
READY in `leaving`. Each phase has a deadline, and one way out when it has passed. A machine has at most one step in a
tick; the next tick observes what came of it.
"""

from __future__ import annotations

from collections.abc import Callable

from meshd.codes import WarningCode
from meshd.model.machine import IN_SLURM, FailureCause, Machine, Phase, UnfitReason
from meshd.model.plan import AskAgent, DisableKeyExpiry, Move, RecordDevice, RecordPeer, Step, Warn
from meshd.plan import arriving, baking, leaving, unclear_launch
from meshd.plan.leaving import ended_step, fail
from meshd.plan.liveness import contradiction, dead, patience_s, to_be_asked
from meshd.plan.lost_jobs import lost_jobs, unseen_jobs
from meshd.plan.plan_input import PlanInput
from meshd.plan.preemption import noticed
from meshd.plan.repair import repair
from meshd.provider_api import InstanceState


def next_step(machine: Machine, given: PlanInput) -> Step | None:
    """The step that this machine needs now; None when it needs none or has to wait."""
    if machine.baking:
        return baking.next_step(machine, given)
    step = _BY_PHASE[machine.phase](machine, given)
    if machine.phase in {Phase.CONFIGURING, Phase.TESTING} or (step is None and machine.phase is Phase.DRAINING):
        # It is not worth starting; or its jobs are waited for, and its cloud does not wait.
        step = noticed(machine, given) or step
    return step or _ask(machine, given) or _device(machine, given)


def contradiction_warning(machine: Machine, given: PlanInput) -> Warn | None:
    """A warning about a machine that works although its cloud says that it has ended; None when they agree."""
    words = contradiction(machine, given) if machine.phase in IN_SLURM else ""
    if not words:
        return None
    return Warn(
        machine.name,
        f"{words}; but its agent spoke {given.silence_s(machine):.0f} s ago, so it is kept, and its jobs go on",
        WarningCode.CLOUD_SAYS_ENDED,
        f"look at {machine.instance_id} in {machine.provider}'s console; `meshctl remove {machine.name}` gives it back "
        "once its jobs have ended",
    )


def _ask(machine: Machine, given: PlanInput) -> Step | None:
    if machine.phase not in IN_SLURM or not to_be_asked(machine, given):
        return None
    return AskAgent(machine.name, f"{machine.provider} says that it has ended")


def _device(machine: Machine, given: PlanInput) -> Step | None:
    """Record that a running machine's device is gone. That ends nothing: the machine logs in again."""
    if machine.phase not in IN_SLURM or not machine.tailnet_id or given.devices is None:
        return None
    there, noted = machine.tailnet_id in given.devices, machine.device_gone_since is not None
    if there and noted:
        return RecordDevice(machine.name, "its tailnet device is there again", gone=False)
    instance = given.instance(machine)
    if there or noted or instance is None or instance.state is not InstanceState.RUNNING:
        return None
    reason = f"its tailnet device {machine.tailnet_ip} was deleted, and {machine.provider} says that the machine runs"
    return RecordDevice(machine.name, reason, gone=True)


def _ready(machine: Machine, given: PlanInput) -> Step | None:
    if machine.removal:
        return Move(machine.name, machine.reason or "no longer needed", Phase.DRAINING)
    if step := ended_step(machine, given):
        return step
    peer = given.peer(machine)
    if peer is not None and peer.path and peer.path != machine.path:
        return RecordPeer(machine.name, "its path changed", peer.tailnet_ip, peer.id, peer.path)
    if dead(machine, given):
        why = ", since its tailnet device was deleted" if machine.device_gone_since is not None else ""
        return fail(
            machine,
            f"silent for over {patience_s(machine, given):g} s{why}, and Slurm does not reach it either",
            FailureCause.UNKNOWN,
        )
    if machine.preempted_at is not None:
        return noticed(machine, given)
    return (
        arriving.published(machine, given)
        or _device(machine, given)
        or _powered_down(machine, given)
        or lost_jobs(machine, given)
        or unseen_jobs(machine, given)
        or repair(machine, given)
        or _lasting_key(machine, given)
    )


def _powered_down(machine: Machine, given: PlanInput) -> Step | None:
    """Give a machine back whose CLOUD node Slurm has switched off, which a person decided.

    Its agent must see no job either: a slurmctld that lost its state begins with all CLOUD nodes switched off.
    """
    report, since = given.view.report(machine), machine.unfit_since
    node = given.slurm.nodes.get(machine.slot) if given.slurm else None
    off = machine.unfit_reason is UnfitReason.POWERED_DOWN and node is not None and node.cloud and node.powered_down
    if not off or since is None or report is None or report.jobs or report.at <= since or not given.idle(machine):
        return None
    if (given.now - since).total_seconds() < given.policy.unfit_grace_s:
        return None
    return Move(machine.name, "Slurm has powered its node down", Phase.DRAINING)


def _lasting_key(machine: Machine, given: PlanInput) -> Step | None:
    """Disable the expiry of an untagged device's node key: with an expired one the machine drops off the tailnet."""
    peer = given.peer(machine)
    if peer is None or peer.key_expiry is None or peer.id != machine.tailnet_id or not given.policy.may_change_devices:
        return None
    asked = machine.key_expiry_asked_at
    if asked is not None and (given.now - asked).total_seconds() < given.policy.key_expiry_again_s:
        return None
    return DisableKeyExpiry(machine.name, f"its node key would end on {peer.key_expiry:%Y-%m-%d}", peer.id)


_BY_PHASE: dict[Phase, Callable[[Machine, PlanInput], Step | None]] = {
    Phase.REQUESTED: arriving.requested,
    Phase.LAUNCHING: unclear_launch.launching,
    Phase.BOOTING: arriving.booting,
    Phase.JOINING: arriving.joining,
    Phase.CONFIGURING: arriving.configuring,
    Phase.TESTING: arriving.testing,
    Phase.READY: _ready,
    Phase.DRAINING: leaving.draining,
    Phase.TERMINATING: leaving.terminating,
    Phase.LOST: leaving.terminating,
    Phase.GONE: leaving.gone,
}
