"""PURE: checks before meshd writes a new nodes.conf, and the check that slurmctld uses it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from meshd.errors import SlurmError
from meshd.model.observed import SlurmNode, SlurmReservation, SlurmView
from meshd.plan.slurm_lines import is_free
from meshd.slurm.node_lines import Lines
from meshd.slurm.nodes import Rendered
from meshd.slurm.read_back import (
    is_placeholder,
    node_records,
    read_cloud_slots,
    read_free_lines,
    read_lines,
    read_node_addrs,
    read_slots,
)
from meshd.slurm.retained import Leaving
from meshd.slurm.show import hostlist

SHAPE_KEYS = ("cpus", "boards", "socketsperboard", "corespersocket", "threadspercore", "realmemory", "gres")


@dataclass(frozen=True, slots=True)
class Kept:
    """The slots whose change would end jobs, or open or close what jobs use.

    Attributes:
        reasons: by slot, for people.
        lines: by slot, the lines that it has until then.
    """

    reasons: dict[str, str] = field(default_factory=dict)
    lines: dict[str, Lines] = field(default_factory=dict)

    def add(self, slot: str, lines: Lines, reason: str) -> None:
        """Keep these lines."""
        self.reasons[slot], self.lines[slot] = reason, lines


def node_set_changes(wanted: Rendered, view: SlurmView, last_good: str) -> bool:
    """Whether the set of nodes in slurmctld would change."""
    new = set(wanted.slots)
    gone = set(read_slots(last_good)) - new
    return bool(new - view.nodes.keys() or gone & view.nodes.keys())


def shapes_differ(nodes_conf: str, last_good: str) -> bool:
    """Whether a slot that both texts declare has another shape (CPUs, memory, Gres) in each."""
    old, new = _shapes(last_good), _shapes(nodes_conf)
    return any(new[slot] != shape for slot, shape in old.items() if slot in new)


def leaves_power_saving(nodes_conf: str, last_good: str) -> bool:
    """Whether a slot that both texts declare is a CLOUD node in the last one alone."""
    return bool((read_cloud_slots(last_good) - read_cloud_slots(nodes_conf)) & set(read_slots(nodes_conf)))


def refuse_if_garbled(wanted: Rendered) -> None:
    """Read the rendered text back, and compare.

    Raises:
        SlurmError: it declares other slots or addresses than `wanted` says.
    """
    if read_slots(wanted.nodes_conf) != wanted.slots or read_node_addrs(wanted.nodes_conf) != dict(wanted.node_addrs):
        raise SlurmError("the new nodes.conf does not read back as rendered: meshd does not write it")


def kept_slots(wanted: Rendered, view: SlurmView, nodes_conf: str, gres_conf: str) -> Kept:
    """The slots that keep their lines, or the shape in them, for now. Check before writing anything.

    - A node that may run a job must not be set DOWN, be removed, or become another machine. The same machine at another
      address keeps its jobs.
    - A CLOUD node whose job waits for its machine may have another address, but must stay a CLOUD node of its shape:
      with another one Slurm requeues the job. Nor does a job that runs lose its shape when its pool's form changes.

    Args:
        wanted: the new content.
        view: Slurm.
        nodes_conf: the text in force.
        gres_conf: the text in force.
    """
    running, waiting = jobs_by_slot(view)
    old, new = read_lines(nodes_conf, gres_conf), read_lines(wanted.nodes_conf, wanted.gres_conf)
    declared, wanted_slots = set(read_slots(nodes_conf)), set(wanted.slots)
    with_jobs = running.keys() | waiting.keys() | {name for name, node in view.nodes.items() if node.held}
    looked_at = (with_jobs | (old.keys() - new.keys()) | (declared - wanted_slots)) & declared & view.nodes.keys()
    old |= read_free_lines(nodes_conf, gres_conf, looked_at - old.keys())
    new |= read_free_lines(wanted.nodes_conf, wanted.gres_conf, looked_at - new.keys())
    kept = Kept()
    for slot in sorted(looked_at):
        node, was, now = view.nodes[slot], old[slot], new.get(slot)
        jobs = ", ".join((*running.get(slot, ()), *waiting.get(slot, ())))
        if not (jobs or node.held):
            leaves = now is None or (is_free(now.node_addr) and not is_free(was.node_addr))
            if leaves and node.up and not node.drained:
                kept.add(slot, was, f"{slot} is open to jobs in Slurm: its line stays until meshd has drained it again")
        elif was.cloud and node.cloud and slot in waiting and slot not in running and _waits_for_power(node):
            _keep_shape(kept, slot, was, now, f"a job waits for it ({jobs})")
        else:
            former = wanted.former_node_addrs.get(slot, ())
            _keep_machine(kept, slot, was, now, former, f"still has jobs ({jobs or 'ending'})")
    return kept


def _keep_machine(kept: Kept, slot: str, was: Lines, now: Lines | None, former: Iterable[str], why: str) -> None:
    """A job may run on the slot."""
    if not is_free(was.node_addr):
        if now is None or is_free(now.node_addr):
            kept.add(slot, was, f"{slot} {why}: its line stays until they end")
            return
        if now.node_addr != was.node_addr and was.node_addr not in former:
            kept.add(slot, was, f"{slot} {why}: it stays at {was.node_addr} until they end")
            return
    elif now is None or (is_free(now.node_addr) and not now.cloud):
        kept.add(slot, was, f"{slot} {why}: its line stays until they end")
        return
    if (was.cloud or now.cloud) and shape_of(was) != shape_of(now):
        kept.add(slot, was.at(now.node_addr), f"{slot} {why}: it keeps its shape until they end")


def _keep_shape(kept: Kept, slot: str, was: Lines, now: Lines | None, why: str) -> None:
    """A job waits for the slot's machine."""
    if now is None:
        kept.add(slot, was, f"{slot}: {why}: its line stays")
    elif not now.cloud or shape_of(was) != shape_of(now):
        kept.add(slot, was.at(now.node_addr), f"{slot}: {why}: it keeps its shape")


def _waits_for_power(node: SlurmNode) -> bool:
    """Whether no slurmd of the node has registered since Slurm wanted it, and no job is just ending there."""
    off = node.powering_up or node.states & {"POWERED_DOWN", "POWERING_DOWN"}
    return bool(off) and "COMPLETING" not in node.states


def jobs_by_slot(view: SlurmView) -> tuple[Mapping[str, tuple[str, ...]], Mapping[str, tuple[str, ...]]]:
    """By slot, the ids of the jobs that may run there, and of those that wait for their nodes."""
    running: dict[str, tuple[str, ...]] = defaultdict(tuple)
    waiting: dict[str, tuple[str, ...]] = defaultdict(tuple)
    for job in view.jobs:
        for slot in job.nodes:
            of = waiting if job.configuring else running
            of[slot] = (*of[slot], job.id)
    return dict(running), dict(waiting)


def shape_of(lines: Lines) -> tuple[object, ...]:
    """CPUs, memory, Gres, and how many GPUs gres.conf has for it."""
    pairs = (pair.partition("=") for pair in lines.node.split())
    shape = [(key, value) for key, _, value in pairs if key.lower() in SHAPE_KEYS]
    return *shape, sum(len(hostlist(line.rpartition(" File=")[2])) for line in lines.gres)


def refuse_if_named(leaving: Leaving, view: SlurmView, reservations: Iterable[SlurmReservation]) -> None:
    """Refuse a change that would end a job or delete a reservation.

    Raises:
        SlurmError: a job or a reservation names a partition or slot in `leaving`.
    """
    what = ", ".join(sorted(leaving.partitions) + sorted(leaving.slots)[:5])
    jobs = [job.id for job in view.jobs if leaving.named_by_job(job)]
    if jobs:
        raise SlurmError(f"jobs {', '.join(jobs[:10])} name what would go ({what}): it stays until they end")
    named = [one.name for one in reservations if leaving.named_by_reservation(one)]
    if named:
        raise SlurmError(f"reservations {', '.join(named[:10])} name what would go ({what}): it stays until they end")


def missing_in_force(wanted: Rendered, nodes: Mapping[str, SlurmNode]) -> str:
    """The first part of the new content that slurmctld does not show yet; "" when it shows everything.

    The addresses of CLOUD nodes are no part of it: see `node_addrs`.
    """
    unknown = [slot for slot in wanted.slots if slot not in nodes]
    if unknown:
        return f"slurmctld does not show {', '.join(unknown[:5])}"
    cloud = read_cloud_slots(wanted.nodes_conf)
    for slot in wanted.slots:
        node = nodes[slot]
        if slot in cloud:
            if not node.cloud:
                return f"slurmctld does not show {slot} as a CLOUD node"
            continue
        address = wanted.node_addrs.get(slot)
        if address is None and not is_placeholder(node.node_addr):
            return f"slurmctld still shows {slot} at {node.node_addr}"
        if address is not None and node.node_addr != address:
            return f"slurmctld shows {slot} at {node.node_addr}, not at {address}"
    return ""


def _shapes(nodes_conf: str) -> Mapping[str, tuple[str, ...]]:
    return {
        slot: tuple(record.get(key, "") for key in SHAPE_KEYS)
        for record in node_records(nodes_conf)
        for slot in hostlist(record["nodename"])
    }
