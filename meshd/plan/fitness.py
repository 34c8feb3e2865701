"""Whether a node can do its work, and if not, why. PURE. The one place that decides it.

It judges from three sources: Slurm's state and reason, the agent's last report, and the tailnet. A source that cannot
be believed says nothing, neither good nor bad.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from meshd.model.machine import Machine, Phase, UnfitReason
from meshd.model.observed import SlurmNode
from meshd.plan.plan_input import ClusterView

OURS = "meshd:"
"""Drain reasons of meshd begin so; it lifts no other drain."""

PERSONS = "drained by "
"""Drain reasons of `meshctl drain` begin so."""

OFFLINE_SILENCE_S = 15.0
"""An agent on a device that went offline, and silent for so long since, is late. Else `heartbeat_late_s` decides."""

CLOCKS_DIFFER = timedelta(seconds=5)
"""Between the control server's clock and the head's."""

_SLURMS_WORDS = (
    "Kill task failed", "Epilog error", "Prolog error", "batch job complete failure", "Duplicate jobid",
    "Not responding", "Node unexpectedly rebooted", "Low RealMemory", "Low TmpDisk", "Low socket", "Low CPUs",
    "gres/", "Low gres", "NHC", "Step not running", "NO NETWORK ADDRESS FOUND", "reboot timed out", "reboot complete",
    "Health check failed", "Mismatch", "Secure node", "Slurm job suspend", "slurmd", "Node reboot",
)  # fmt: skip
"""How reasons begin that slurmctld, slurmd or a health check gives (slurm's src/slurmctld, src/slurmd; LBNL's NHC).
They decide only where root or SlurmUser gave them: both are a person's accounts too."""


DELIBERATE = frozenset({UnfitReason.BY_PERSON, UnfitReason.MAINTENANCE, UnfitReason.POWERED_DOWN})
"""Somebody's decision: nothing is repaired or replaced, and nobody is warned."""

REPLACEABLE = frozenset(
    {
        UnfitReason.SLURMD_DEAD, UnfitReason.MUNGE_DEAD, UnfitReason.GPU_FAULT, UnfitReason.INVALID, UnfitReason.DOWN,
        UnfitReason.NOT_RESPONDING, UnfitReason.UNREGISTERED,
        UnfitReason.DRAINED,
    }
)  # fmt: skip
"""Another machine may do better. Not SILENT: Slurm may be content with it, and where it is not, it is given up as dead.
Not ABSENT: that is a fault of Slurm's files."""

RESTART_HELPS = frozenset(
    {
        UnfitReason.SLURMD_DEAD,
        UnfitReason.INVALID,
        UnfitReason.DOWN,
        UnfitReason.NOT_RESPONDING,
        UnfitReason.UNREGISTERED,
    }
)
"""A restart of slurmd registers the node anew; running steps live on."""

_OUT_OF_REACH = frozenset(
    {
        UnfitReason.SILENT,
        UnfitReason.SLURMD_DEAD,
        UnfitReason.DOWN,
        UnfitReason.NOT_RESPONDING,
        UnfitReason.UNREGISTERED,
    }
)
"""Stages of one and the same trouble: the time goes on when one follows another."""

_WELL = frozenset({"IDLE", "ALLOCATED", "MIXED", "COMPLETING", "RESERVED", "PLANNED", "CLOUD", "DYNAMIC_NORM"})
"""A node in none but these states takes jobs, or is at work."""


@dataclass(frozen=True, slots=True)
class Unfit:
    """A verdict.

    Attributes:
        words: for people, in Slurm's own words where it has any.
        since: since when, without a break.
    """

    why: UnfitReason
    words: str
    since: datetime

    @property
    def deliberate(self) -> bool:
        """Somebody wants it so."""
        return self.why in DELIBERATE


def unfit(machine: Machine, view: ClusterView) -> Unfit | None:
    """Why a READY or TESTING node is not fit; None while it is, or nothing can be said.

    A TESTING node is judged by what would keep jobs off it for good: a drain, or a refused registration.
    """
    if machine.phase is Phase.TESTING:
        found = _closed(machine, view)
        return Unfit(found[0], found[1], machine.phase_since) if found else None
    if machine.phase is not Phase.READY:
        return None
    in_slurm = _in_slurm(machine, view)
    if in_slurm is not None and in_slurm[0] in {UnfitReason.BY_PERSON, UnfitReason.MAINTENANCE}:
        return _since_mark(machine, view, *in_slurm)
    if machine.rebooting:
        return _since_mark(machine, view, UnfitReason.MAINTENANCE, "it reboots, as its agent said when it was stopped")
    late = silent(machine, view)
    if late is not None:
        return late
    told = _told(machine, view)
    if told is not None:
        return told
    return _since_mark(machine, view, *in_slurm) if in_slurm else None


def is_ready(machine: Machine, view: ClusterView) -> bool:
    """READY, staying, and able to take jobs as far as is known."""
    return machine.phase is Phase.READY and not machine.removal and unfit(machine, view) is None


def by_person(node: SlurmNode, slurm_user: str) -> bool:
    """Whether a person closed the node, as far as the reason tells. In doubt it was one: a drain is never lifted.

    Slurm's own drains are given in the name of SlurmUser or root, both of which people use too.
    """
    if node.reason.startswith(OURS):
        return False
    if node.reason.startswith(PERSONS) or node.reason_by not in {"", "root", slurm_user}:
        return True
    if not node.reason:
        return node.drained and "INVALID_REG" not in node.states
    return not node.reason.startswith(_SLURMS_WORDS)


def _since_mark(
    machine: Machine, view: ClusterView, why: UnfitReason, words: str, since: datetime | None = None
) -> Unfit:
    """The verdict, since when the journal has known it; else since `since`, or now."""
    noted = machine.unfit_reason
    same = noted is why or (noted in _OUT_OF_REACH and why in _OUT_OF_REACH)
    return Unfit(why, words, (machine.unfit_since if same else since) or since or view.now)


def silent(machine: Machine, view: ClusterView) -> Unfit | None:
    """The verdict on a machine whose heartbeat is late, while the head could hear it, whatever else ails it."""
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


def _told(machine: Machine, view: ClusterView) -> Unfit | None:
    """What its agent reports for so long that it is no passing thing."""
    report = view.report(machine)
    if report is None:
        return None
    for why, since, words in (
        (UnfitReason.SLURMD_DEAD, report.slurmd_dead_since, "its agent finds no slurmd"),
        (UnfitReason.MUNGE_DEAD, report.munge_dead_since, "its munged does not answer its agent"),
        (UnfitReason.GPU_FAULT, report.gpu_fault_since, f"GPU fault: {report.gpu_fault}"),
    ):
        if since is not None and _lasts(since, view):
            return _since_mark(machine, view, why, words, since)
    return None


def _lasts(since: datetime, view: ClusterView) -> bool:
    return (view.now - since).total_seconds() >= view.policy.unfit_grace_s


def _in_slurm(machine: Machine, view: ClusterView) -> tuple[UnfitReason, str] | None:
    """What keeps jobs off it in Slurm. A word that is older than the phase tells of before."""
    if view.slurm is None or view.slurm_at is None or view.slurm_at <= machine.phase_since:
        return None
    node = view.node(machine)
    if node is None:
        other = view.slurm.nodes.get(machine.slot)
        where = f"has {machine.slot} at {other.node_addr}" if other else f"does not have {machine.slot}"
        return UnfitReason.ABSENT, f"Slurm {where}, and the machine is at {machine.tailnet_ip}"
    why = _state_why(node, view.slurm.slurm_user)
    if why in _OUT_OF_REACH and view.tailnet is None:
        return None  # a head that is off the tailnet reaches nobody, and neither does its slurmctld
    return (why, held(node)) if why else None


def _closed(machine: Machine, view: ClusterView) -> tuple[UnfitReason, str] | None:
    """What keeps jobs off a node that is being tested, for good."""
    node = view.node(machine)
    if node is None or view.slurm is None or view.slurm_at is None or view.slurm_at <= machine.phase_since:
        return None
    why = _state_why(node, view.slurm.slurm_user)
    if why is UnfitReason.DRAINED and before(node, machine):
        return None
    return (
        (why, held(node))
        if why in {UnfitReason.BY_PERSON, UnfitReason.MAINTENANCE, UnfitReason.INVALID, UnfitReason.DRAINED}
        else None
    )


def before(node: SlurmNode, machine: Machine) -> bool:
    """The slot was closed before this machine's slurmd was started: that tells of the machine that was there before."""
    started = machine.slurmd_start_ordered_at or machine.created_at
    return node.reason_at is not None and node.reason_at < started


def _state_why(node: SlurmNode, slurm_user: str) -> UnfitReason | None:
    states = node.states
    if states <= _WELL:
        return None  # nearly all, at each look
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


def held(node: SlurmNode) -> str:
    """How Slurm holds the node, in its own words, who said so and when."""
    text = f"Slurm holds it {'+'.join(sorted(node.states))}"
    if node.reason:
        text += f": {node.reason}"
    if node.reason_by and node.reason_at:
        text += f" ({node.reason_by}, {node.reason_at:%Y-%m-%d %H:%M:%S} UTC)"
    return text


def count(machines: Iterable[Machine], view: ClusterView) -> dict[tuple[str, UnfitReason], int]:
    """How many nodes are unfit, by pool and reason."""
    found: dict[tuple[str, UnfitReason], int] = {}
    for machine in machines:
        verdict = unfit(machine, view)
        if verdict is not None and machine.phase is Phase.READY and not machine.removal:
            key = (str(machine.pool), verdict.why)
            found[key] = found.get(key, 0) + 1
    return found
