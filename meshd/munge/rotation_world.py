"""PURE: what a rotation of the munge key is told of head and nodes, and whom it waits for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from meshd.munge.rotation import Rotation, Stage

SILENT = "it is silent, but Slurm does not hold it down, or jobs are on it"


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as the head knows it just now.

    Attributes:
        reachable: its agent has spoken since it was due to.
        offline: it cannot be reached, Slurm holds it down, and no job is on it: nothing is lost while it is away.
        key: the munge key in place there; "" when not known.
        staged: the key laid beside it; "" for none.
        proved: munge was proved both ways with the head, by the key in place.
        slurmd: its slurmd answers, or shall not run.
        busy: it was told to switch and has not answered: its key is about to be another one.
        problem: why not, in its agent's words.
    """

    machine: str
    slot: str
    reachable: bool
    offline: bool = False
    key: str = ""
    staged: str = ""
    proved: bool = False
    slurmd: bool = True
    busy: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True)
class HeadView:
    """The head's munge.

    Attributes:
        key: the key in place, as the unit that may see it told last; "" when it was not asked yet.
        staged: the key laid beside it.
        busy: the unit was asked for something and has not answered.
        failure: why its last answer was no.
        moment: for which moment it is, or was last, asked to change; None: it was asked to stage.
        works: munge encodes and decodes there, and slurmctld answers.
    """

    key: str = ""
    staged: str = ""
    busy: bool = False
    failure: str = ""
    moment: datetime | None = None
    works: bool = False


@dataclass(frozen=True, slots=True)
class World:
    """All that is looked at. `keys` are those whose files lie in meshd's state directory."""

    head: HeadView
    nodes: Mapping[str, NodeView] = field(default_factory=dict)
    keys: frozenset[str] = frozenset()


def waits_for(rotation: Rotation, world: World) -> dict[str, str]:
    """The machines that the present stage waits for, with the reason of each."""
    found = {}
    for name, node in sorted(world.nodes.items()):
        if name in rotation.waived or (not node.reachable and node.offline):
            continue
        if rotation.stage is Stage.STAGE:
            reason = _not_staged(node, rotation.new)
        elif rotation.stage in {Stage.VERIFY, Stage.CHECK}:
            concerned = name in rotation.taking_part or node.key not in {"", rotation.target}
            reason = not_confirmed(node, rotation.target) if concerned and name not in rotation.confirmed else ""
        else:
            reason = ""
        if reason:
            found[name] = f"{reason}: {node.problem}" if node.problem else reason
    return found


def standing(rotation: Rotation, node: NodeView) -> str:
    """One word for `meshctl rotate-key --status`."""
    if node.machine in rotation.confirmed:
        return "confirmed"
    if node.machine in rotation.waived:
        return "waived"
    if not node.reachable:
        return "offline" if node.offline else "silent"
    if rotation.stage not in {Stage.GENERATE, Stage.STAGE} and node.key == rotation.target:
        return "switched"
    return "staged" if rotation.new and node.staged == rotation.new else "waiting"


def _not_staged(node: NodeView, key: str) -> str:
    if not node.reachable:
        return SILENT
    if not node.key:
        return "its agent does not tell its key: it is of an older meshd"
    return "" if node.staged == key else "it has not stored the new key yet"


def not_confirmed(node: NodeView, key: str) -> str:
    """Why a node does not count as proved with this key; "" when it does."""
    if not node.reachable:
        return SILENT
    if node.key != key:
        return "it has another key than the head"
    if not node.proved:
        return "munge is not proved with the head"
    return "" if node.slurmd else "its slurmd does not answer Slurm"
