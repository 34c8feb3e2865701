"""Whether a node can do its work, and if not, why. PURE. Nothing else decides that.

There are three sources: Slurm's state and reason, the agent's last report, and the tailnet. A source that cannot be
believed does not count, neither for the node nor against it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from meshd.model.machine import Machine, Phase, UnfitReason
from meshd.model.observed import SlurmNode
from meshd.plan.node_settings import unfit_faults
from meshd.plan.plan_input import ClusterView

OURS = "meshd:"
"""How the reasons of meshd's own drains begin. meshd lifts no other drain."""

PERSONS = "drained by "
"""How the drain reasons of `meshctl drain` begin."""

OFFLINE_SILENCE_S = 15.0
"""An agent on an offline device is late when it has been silent this long. Otherwise `heartbeat_late_s` decides."""

CLOCKS_DIFFER = timedelta(seconds=5)
"""The largest expected difference between the control server's clock and the head's."""

_SLURMS_WORDS = (
    "Kill task failed", "Epilog error", "Prolog error", "batch job complete failure", "Duplicate jobid",
    "Not responding", "Node unexpectedly rebooted", "Low RealMemory", "Low TmpDisk", "Low socket", "Low CPUs",
    "gres/", "Low gres", "NHC", "Step not running", "NO NETWORK ADDRESS FOUND", "reboot timed out", "reboot complete",
    "Health check failed", "Mismatch", "ResumeTimeout", "Secure node", "Slurm job suspend", "slurmd", "Node reboot",
)  # fmt: skip
"""How the reasons of slurmctld, slurmd and health checks begin (Slurm's src/slurmctld and src/slurmd; LBNL's NHC).
They decide only where root or SlurmUser gave the reason, since people use these accounts too."""


DELIBERATE = frozenset({UnfitReason.BY_PERSON, UnfitReason.MAINTENANCE, UnfitReason.POWERED_DOWN})
"""Somebody decided it: meshd neither repairs nor replaces the node, and shows no warning."""

REPLACEABLE = frozenset(
    {
        UnfitReason.SLURMD_DEAD, UnfitReason.MUNGE_DEAD, UnfitReason.GPU_FAULT, UnfitReason.INVALID, UnfitReason.DOWN,
        UnfitReason.NOT_RESPONDING, UnfitReason.UNREGISTERED,
        UnfitReason.DRAINED,
    }
)  # fmt: skip
"""Another machine may do better. Not SILENT: the node may still work, and is given up as dead if Slurm cannot
reach it either. Not ABSENT: that is a fault of Slurm's files."""

KEEPS_JOBS_OFF = frozenset({UnfitReason.GPU_FAULT, UnfitReason.SHARE_LOST, UnfitReason.ACCOUNT_CLASH})
"""Jobs that start on the node would fail: meshd drains it, and lifts its drain when the fault is over."""

RESTART_HELPS = frozenset(
    {
        UnfitReason.SLURMD_DEAD,
        UnfitReason.INVALID,
        UnfitReason.DOWN,
        UnfitReason.NOT_RESPONDING,
        UnfitReason.UNREGISTERED,
    }
)
"""A restarted slurmd registers the node again. Running job steps go on."""

_OUT_OF_REACH = frozenset(
    {
        UnfitReason.SILENT,
        UnfitReason.SLURMD_DEAD,
        UnfitReason.DOWN,
        UnfitReason.NOT_RESPONDING,
        UnfitReason.UNREGISTERED,
    }
)
"""Stages of one fault: when one of these reasons follows another, `since` stays."""

_WELL = frozenset({"IDLE", "ALLOCATED", "MIXED", "COMPLETING", "RESERVED", "PLANNED", "CLOUD", "DYNAMIC_NORM"})
"""A node that has only these states takes jobs or runs them."""


@dataclass(frozen=True, slots=True)
class Unfit:
    """The verdict that a node is unfit.

    Attributes:
        words: for people; Slurm's own words where there are any.
        since: when it became unfit, without a break since.
    """

    why: UnfitReason
    words: str
    since: datetime

    @property
    def deliberate(self) -> bool:
        """Whether somebody decided it."""
        return self.why in DELIBERATE


def unfit(machine: Machine, view: ClusterView) -> Unfit | None:
    """Why a READY or TESTING node is unfit; None when it is fit or that is not known.

    A TESTING node is unfit only for what does not pass by itself: a drain, or a refused registration.
    """
    if machine.phase is Phase.TESTING:
        found = _drained_while_testing(machine, view)
        return Unfit(found[0], found[1], machine.phase_since) if found else None
    if machine.phase is not Phase.READY:
        return None
    in_slurm = _in_slurm(machine, view)
    if in_slurm is not None and in_slurm[0] in {UnfitReason.BY_PERSON, UnfitReason.MAINTENANCE}:
        return _since_recorded(machine, view, *in_slurm)
    if machine.rebooting:
        return _since_recorded(
            machine, view, UnfitReason.MAINTENANCE, "it reboots, as its agent said when it was stopped"
        )
    late = silent(machine, view)
    if late is not None:
        return late
    if machine.preempted_at is not None:
        words = f"its cloud takes it back at {machine.preempted_at:%H:%M:%S} UTC"
        return Unfit(UnfitReason.SPOT_NOTICE, words, machine.drained_at or view.now)
    reported = _reported(machine, view)
    if reported is not None:
        return reported
    return _since_recorded(machine, view, *in_slurm) if in_slurm else None


def is_ready(machine: Machine, view: ClusterView) -> bool:
    """Whether it is READY, not to be given back, and not known to be unfit."""
    return machine.phase is Phase.READY and not machine.removal and unfit(machine, view) is None


def by_person(node: SlurmNode, slurm_user: str) -> bool:
    """Whether a person drained the node or set it DOWN, as its reason shows. If unclear, yes: then it stays drained.

    Slurm's own drains are made in the name of SlurmUser or root, accounts that people use too.
    """
    if node.reason.startswith(OURS):
        return False
    if node.reason.startswith(PERSONS) or node.reason_by not in {"", "root", slurm_user}:
        return True
    if not node.reason:
        return node.drained and "INVALID_REG" not in node.states
    return not node.reason.startswith(_SLURMS_WORDS)


def _since_recorded(
    machine: Machine, view: ClusterView, why: UnfitReason, words: str, since: datetime | None = None
) -> Unfit:
    """The verdict. Its time is the one in the journal if the reason is the same; otherwise `since`, or now."""
    recorded = machine.unfit_reason
    same = recorded is why or (recorded in _OUT_OF_REACH and why in _OUT_OF_REACH)
    return Unfit(why, words, (machine.unfit_since if same else since) or since or view.now)


def silent(machine: Machine, view: ClusterView) -> Unfit | None:
    """The verdict SILENT if the heartbeat is late although the head could hear the agent; None otherwise."""
    if machine.heartbeat_at is None or view.tailnet is None:
        return None
    heard = max(machine.heartbeat_at, view.tailnet_since)
    silent_s = (view.now - heard).total_seconds()
    if silent_s < min(OFFLINE_SILENCE_S, view.policy.heartbeat_late_s):
        return None
    peer = view.peer(machine)
    late_s, words = view.policy.heartbeat_late_s, f"no heartbeat for {silent_s:.0f} s"
    if peer is not None and not peer.online and peer.last_seen is not None:
        words += f", tailnet offline since {peer.last_seen:%H:%M:%S} UTC"
        if machine.heartbeat_at <= peer.last_seen + CLOCKS_DIFFER:
            late_s = min(late_s, OFFLINE_SILENCE_S)
    return Unfit(UnfitReason.SILENT, words, heard) if silent_s >= late_s else None


def _reported(machine: Machine, view: ClusterView) -> Unfit | None:
    """The verdict on a fault that the agent has reported for `unfit_grace_s`; None when there is none."""
    report = view.report(machine)
    if report is None:
        return None
    for why, since, words in (
        # A share comes before slurmd: after a reboot slurmd waits for it, and another machine would wait as well.
        *((why, fault.since, f"{fault.section}: {fault.detail}") for why, fault in unfit_faults(report.faults)),
        (UnfitReason.SLURMD_DEAD, report.slurmd_dead_since, "its agent finds no slurmd"),
        (UnfitReason.MUNGE_DEAD, report.munge_dead_since, "its munged does not answer its agent"),
        (UnfitReason.GPU_FAULT, report.gpu_fault_since, f"GPU fault: {report.gpu_fault}"),
    ):
        if since is not None and _lasts(since, view):
            return _since_recorded(machine, view, why, words, since)
    return None


def _lasts(since: datetime, view: ClusterView) -> bool:
    return (view.now - since).total_seconds() >= view.policy.unfit_grace_s


def _in_slurm(machine: Machine, view: ClusterView) -> tuple[UnfitReason, str] | None:
    """What keeps jobs off the node in Slurm. Slurm's answer does not count when it is older than the phase."""
    if view.slurm is None or view.slurm_at is None or view.slurm_at <= machine.phase_since:
        return None
    node = view.node(machine)
    if node is None:
        other = view.slurm.nodes.get(machine.slot)
        if other is not None and other.cloud and other.powered_down:  # Slurm took its address then
            return UnfitReason.POWERED_DOWN, slurm_words(other)
        where = f"has {machine.slot} at {other.node_addr}" if other else f"does not have {machine.slot}"
        return UnfitReason.ABSENT, f"Slurm {where}, and the machine is at {machine.tailnet_ip}"
    why = _state_why(node, view.slurm.slurm_user)
    if why in _OUT_OF_REACH and view.tailnet is None:
        return None  # a head that is off the tailnet reaches no node, and neither does its slurmctld
    return (why, slurm_words(node)) if why else None


def _drained_while_testing(machine: Machine, view: ClusterView) -> tuple[UnfitReason, str] | None:
    """What keeps jobs off a TESTING node and does not pass by itself."""
    node = view.node(machine)
    if node is None or view.slurm is None or view.slurm_at is None or view.slurm_at <= machine.phase_since:
        return None
    why = _state_why(node, view.slurm.slurm_user)
    if why is UnfitReason.DRAINED and drained_before_start(node, machine):
        return None
    return (
        (why, slurm_words(node))
        if why in {UnfitReason.BY_PERSON, UnfitReason.MAINTENANCE, UnfitReason.INVALID, UnfitReason.DRAINED}
        else None
    )


def drained_before_start(node: SlurmNode, machine: Machine) -> bool:
    """Whether the reason is older than this machine's slurmd: the drain was of the machine before it."""
    started = machine.slurmd_start_ordered_at or machine.created_at
    return node.reason_at is not None and node.reason_at < started


def _state_why(node: SlurmNode, slurm_user: str) -> UnfitReason | None:
    states = node.states
    if states <= _WELL:
        return None  # the usual case, so it is checked first
    if states & {"DRAIN", "DOWN", "FAIL", "FAILING"} and by_person(node, slurm_user):
        return UnfitReason.BY_PERSON
    if states & {"MAINT", "MAINTENANCE", "REBOOT", "REBOOT_REQUESTED", "REBOOT_ISSUED"}:
        return UnfitReason.MAINTENANCE
    if states & {"POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN"}:
        return UnfitReason.POWERED_DOWN
    if "INVALID_REG" in states:
        return UnfitReason.INVALID
    if states & {"DOWN", "ERROR"}:
        return UnfitReason.DOWN
    if states & {"NOT_RESPONDING", "NO_RESPOND"}:
        return UnfitReason.NOT_RESPONDING
    if states & {"UNKNOWN", "FUTURE", "POWERING_UP"}:
        return UnfitReason.UNREGISTERED
    if states & {"DRAIN", "FAIL", "FAILING"}:
        return UnfitReason.BY_MESHD if node.reason.startswith(OURS) else UnfitReason.DRAINED
    return None


def slurm_words(node: SlurmNode) -> str:
    """The node's states and reason in Slurm's words, with who gave the reason and when."""
    text = f"Slurm holds it {'+'.join(sorted(node.states))}"
    if node.reason:
        text += f": {node.reason}"
    if node.reason_by and node.reason_at:
        text += f" ({node.reason_by}, {node.reason_at:%Y-%m-%d %H:%M:%S} UTC)"
    return text


def count(machines: Iterable[Machine], view: ClusterView) -> dict[tuple[str, UnfitReason], int]:
    """The number of unfit READY nodes by pool and reason."""
    found: dict[tuple[str, UnfitReason], int] = {}
    for machine in machines:
        verdict = unfit(machine, view)
        if verdict is not None and machine.phase is Phase.READY and not machine.removal:
            key = (str(machine.pool), verdict.why)
            found[key] = found.get(key, 0) + 1
    return found
