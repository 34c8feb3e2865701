"""PURE: checks before meshd writes a new nodes.conf, and the check that slurmctld uses it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from meshd.errors import SlurmError
from meshd.model.observed import SlurmNode, SlurmReservation, SlurmView
from meshd.slurm.nodes import Rendered, is_placeholder, node_records, read_node_addrs, read_slots
from meshd.slurm.retained import Leaving
from meshd.slurm.show import hostlist

SHAPE_KEYS = ("cpus", "boards", "socketsperboard", "corespersocket", "threadspercore", "realmemory", "gres")


def node_set_changes(wanted: Rendered, view: SlurmView, last_good: str) -> bool:
    """Whether the set of nodes in slurmctld would change."""
    new = set(wanted.slots)
    gone = set(read_slots(last_good)) - new
    return bool(new - view.nodes.keys() or gone & view.nodes.keys())


def shapes_differ(nodes_conf: str, last_good: str) -> bool:
    """Whether a slot that both texts declare has another shape (CPUs, memory, Gres) in each."""
    old, new = _shapes(last_good), _shapes(nodes_conf)
    return any(new[slot] != shape for slot, shape in old.items() if slot in new)


def refuse_if_garbled(wanted: Rendered) -> None:
    """Read the rendered text back, and compare.

    Raises:
        SlurmError: it declares other slots or addresses than `wanted` says.
    """
    if read_slots(wanted.nodes_conf) != wanted.slots or read_node_addrs(wanted.nodes_conf) != dict(wanted.node_addrs):
        raise SlurmError("the new nodes.conf does not read back as rendered: meshd does not write it")


def unsafe_slots(wanted: Rendered, view: SlurmView, last_good: str) -> dict[str, str]:
    """The slots whose change would end jobs, each with why. Check before writing anything.

    A node that may run a job must not be set DOWN, be removed, or become another machine. The same machine at another
    address keeps its jobs.
    """
    found: dict[str, str] = {}
    leaving = (set(read_slots(last_good)) | set(wanted.slots)) - wanted.node_addrs.keys()
    for slot in sorted(leaving & view.nodes.keys()):
        node = view.nodes[slot]
        jobs = view.jobs_on(slot)
        if node.busy or jobs:
            found[slot] = f"{slot} still has jobs ({', '.join(jobs) or 'ending'}): its line stays until they end"
        elif node.up and not node.drained:
            found[slot] = f"{slot} is open to jobs in Slurm: its line stays until meshd has drained it again"
    for slot, before in read_node_addrs(last_good).items():
        after = wanted.node_addrs.get(slot, before)
        jobs = view.jobs_on(slot)
        same = after == before or before in wanted.former_node_addrs.get(slot, ())
        if not same and slot in view.nodes and (jobs or view.nodes[slot].busy):
            found[slot] = f"{slot} still has jobs ({', '.join(jobs) or 'ending'}): it stays at {before} until they end"
    return found


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
    """The first part of the new content that slurmctld does not show yet; "" when it shows everything."""
    unknown = [slot for slot in wanted.slots if slot not in nodes]
    if unknown:
        return f"slurmctld does not show {', '.join(unknown[:5])}"
    for slot in wanted.slots:
        shown = nodes[slot].node_addr
        if slot not in wanted.node_addrs and not is_placeholder(shown):
            return f"slurmctld still shows {slot} at {shown}"
    for slot, address in wanted.node_addrs.items():
        shown = nodes[slot].node_addr
        if shown != address:
            return f"slurmctld shows {slot} at {shown}, not at {address}"
    return ""


def _shapes(nodes_conf: str) -> Mapping[str, tuple[str, ...]]:
    return {
        slot: tuple(record.get(key, "") for key in SHAPE_KEYS)
        for record in node_records(nodes_conf)
        for slot in hostlist(record["nodename"])
    }
