"""PURE: whether a job that has its nodes may start: all of them are up, have its user, and know each other's names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from meshd.model.observed import Fresh, Observation, SlurmView

NOT_UP = frozenset(
    {
        "POWERING_UP", "POWER_UP", "POWERED_DOWN", "POWERING_DOWN", "NOT_RESPONDING", "DOWN", "UNKNOWN", "FUTURE",
        "NO_RESPOND",
    }
)  # fmt: skip
"""States with which a node does not run jobs now. One that is to be powered down after its jobs still does."""

OLD = timedelta(seconds=10)
"""What Slurm said longer ago does not tell of a node that has long been up."""

GONE_AFTER = timedelta(seconds=2)
"""slurmctld starts the prolog, and shows the job with its nodes, in either order."""

NAMES_WAIT = timedelta(seconds=5)
"""All nodes are up: so long a job waits for nodes to learn names. Then it starts anyway: an agent may be away."""

USER_WAIT = timedelta(seconds=60)
"""All nodes are up: so long a job waits for one that does not have its user. Then it starts, and fails there."""


class Starts(StrEnum):
    """Why it starts; for logs."""

    UP = "up"
    NO_SLOTS = "no_slots"
    NAMES_LATE = "names_late"
    USER_LATE = "user_late"
    GONE = "gone"
    LIMIT = "limit"


@dataclass(frozen=True, slots=True)
class WaitingProlog:
    """A PrologSlurmctld that waits for the nodes of its job.

    Attributes:
        job: as `squeue` names it: 7, or 5_12 for a task of an array.
        nodes: its nodes; () where they are not known yet.
        since: when it began to wait.
        up_since: when all nodes were first seen up; None: they were not.
        limit: how long it may wait.
    """

    job: str
    nodes: tuple[str, ...]
    since: datetime
    up_since: datetime | None
    limit: timedelta


def nodes_of(waiting: WaitingProlog, slurm: Observation[SlurmView]) -> tuple[str, ...]:
    """The nodes of the job: those that its prolog told, or Slurm's."""
    if waiting.nodes or not isinstance(slurm, Fresh):
        return waiting.nodes
    return next((one.nodes for one in slurm.value.jobs if one.id == waiting.job), ())


def user_of(waiting: WaitingProlog, slurm: Observation[SlurmView]) -> str:
    """The name of the job's user, as Slurm shows it; "" where it does not show the job."""
    jobs = slurm.value.jobs if isinstance(slurm, Fresh) else ()
    return next((one.user for one in jobs if one.id == waiting.job), "")


def all_up(nodes: Sequence[str], view: SlurmView) -> bool:
    """Whether Slurm shows each node up."""
    return all(name in view.nodes and not view.nodes[name].states & NOT_UP for name in nodes)


def why_start(
    waiting: WaitingProlog,
    slurm: Observation[SlurmView],
    now: datetime,
    *,
    is_slot: Callable[[str], bool],
    is_ready: Callable[[str], bool],
    know_each_other: Callable[[Sequence[str]], bool],
    have_user: Callable[[Sequence[str]], bool],
) -> Starts | None:
    """Why a job starts now; None: it waits on.

    Args:
        waiting: the job.
        slurm: what Slurm said last.
        now: the time.
        is_slot: whether a node is meshd's. Other nodes do not hold a job up.
        is_ready: whether a slot's machine has long been in Slurm.
        know_each_other: whether the machines of these slots have each other's names.
        have_user: whether the machines of these slots have the job's user.
    """
    if now - waiting.since >= waiting.limit:
        return Starts.LIMIT
    nodes = nodes_of(waiting, slurm)
    slots = [name for name in nodes if is_slot(name)]
    if nodes and not slots:
        return Starts.NO_SLOTS
    if not isinstance(slurm, Fresh):
        return None
    read_since = slurm.at >= waiting.since
    if slots and all_up(slots, slurm.value) and (read_since or (now - slurm.at <= OLD and all(map(is_ready, slots)))):
        up_for = timedelta() if waiting.up_since is None else now - waiting.up_since
        if not have_user(slots):
            return Starts.USER_LATE if up_for >= USER_WAIT else None
        if len(slots) == 1 or know_each_other(slots):
            return Starts.UP
        return Starts.NAMES_LATE if up_for >= NAMES_WAIT else None
    if slurm.at >= waiting.since + GONE_AFTER and not _holds(slurm.value, waiting.job, nodes):
        return Starts.GONE
    return None


def _holds(view: SlurmView, job: str, nodes: Sequence[str]) -> bool:
    """Whether a job waits for these nodes. Slurm's names of the jobs of a heterogeneous one differ: the nodes count."""
    wanted = set(nodes)
    return any(one.id == job or (wanted and wanted <= set(one.nodes)) for one in view.jobs if one.configuring)
