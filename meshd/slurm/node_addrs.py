"""PURE: the addresses of CLOUD nodes in force. Slurm's files do not decide on these: `scontrol update` sets them.

24.11 keeps the address of a CLOUD node over each reconfigure and restart. 22.05 takes the file's for a node without a
job. So an address is set as soon as it is wanted, and looked after from then on.
"""

from __future__ import annotations

from collections.abc import Mapping

from meshd.model.observed import SlurmNode, SlurmView
from meshd.slurm.checks import jobs_by_slot, shape_of
from meshd.slurm.node_lines import Lines, placeholder
from meshd.slurm.nodes import Rendered, without
from meshd.slurm.read_back import is_placeholder, read_cloud_slots, read_free_lines, read_lines, read_node_addrs


def settable_addrs(wanted: Rendered, nodes_conf: str, gres_conf: str) -> Mapping[str, str]:
    """By slot, the address of each machine whose line needs nothing but its address to be as wanted.

    Args:
        wanted: the newest content.
        nodes_conf: the text in force.
        gres_conf: the text in force.
    """
    cloud = frozenset(slot for slot, own in wanted.lines.items() if own.cloud) & read_cloud_slots(nodes_conf)
    if not cloud:
        return {}
    old = read_lines(nodes_conf, gres_conf)
    old |= read_free_lines(nodes_conf, gres_conf, cloud - old.keys())
    return {
        slot: wanted.lines[slot].node_addr
        for slot in sorted(cloud)
        if old[slot].gres == wanted.lines[slot].gres and shape_of(old[slot]) == shape_of(wanted.lines[slot])
    }


def only_addrs(
    wanted: Rendered, before: Mapping[str, Lines], nodes_conf: str, gres_conf: str, settable: Mapping[str, str]
) -> frozenset[str]:
    """The slots that differ from the files in force, if Slurm can do without their new lines for a while.

    They are CLOUD nodes: the address of a machine that came is set by itself, and no job goes to one that left.

    Args:
        wanted: the newest content.
        before: the lines in force.
        nodes_conf: the text in force.
        gres_conf: the text in force.
        settable: see `settable_addrs`.

    Returns:
        Those slots; none when anything else differs too.
    """
    lines = wanted.lines
    differ = frozenset(slot for slot in lines.keys() | before.keys() if lines.get(slot) != before.get(slot))
    came = differ & lines.keys()
    if not differ <= read_cloud_slots(nodes_conf) or not came <= settable.keys():
        return frozenset()
    if any(before[slot].features - lines[slot].features for slot in came & before.keys()):
        return frozenset()  # a job could get a node that has not what the job asks for
    rest = without(wanted, before, differ)
    return differ if (rest.nodes_conf, rest.gres_conf) == (nodes_conf, gres_conf) else frozenset()


def addrs_off(wanted: Rendered, view: SlurmView, nodes_conf: str, settable: Mapping[str, str]) -> dict[str, str]:
    """The addresses of CLOUD nodes that are not as wanted and may be set now, by slot.

    A node that may run a job keeps its address, unless that is no machine's or an earlier one of the same machine. A
    machine that still has its line in force, and is to leave, keeps its address until the files change. Slurm itself
    puts the node's name there when it powers the node down. It must not stay: at a reconfigure slurmctld looks up that
    name with its locks held, for 10 s where no name server answers (24.11: measured).

    Args:
        wanted: the newest content.
        view: Slurm.
        nodes_conf: the text in force.
        settable: see `settable_addrs`.
    """
    running, _ = jobs_by_slot(view)
    in_force, found = read_node_addrs(nodes_conf), {}
    place = {slot: index for index, slot in enumerate(wanted.slots)}
    for slot in read_cloud_slots(nodes_conf):
        node = view.nodes.get(slot)
        if node is None or not node.cloud or slot not in place:
            continue
        shown, address = node.node_addr, wanted.node_addrs.get(slot)
        may_run = slot in running or node.busy
        if address is None:
            closed = not may_run and (node.drained or not node.up)
            if closed and not is_placeholder(shown) and (shown == slot or slot not in in_force):
                found[slot] = placeholder(place[slot])
        elif shown != address and address in (settable.get(slot), in_force.get(slot)):
            same = is_placeholder(shown) or shown == slot or shown in wanted.former_node_addrs.get(slot, ())
            if same or not may_run:
                found[slot] = address
    return found


def addrs_to_set(
    wanted: Rendered, nodes: Mapping[str, SlurmNode], before: Mapping[str, SlurmNode], last_good: str
) -> dict[str, str]:
    """The addresses of CLOUD nodes to set after a reconfigure, by slot. The files do not decide on these.

    24.11 keeps the address of each CLOUD node; 22.05 takes the file's for those without a job. An address that neither
    of the two files has was set by itself, for a machine whose line follows: it stays, and comes back where 22.05 lost
    it.

    Args:
        wanted: the new content.
        nodes: as slurmctld shows them now.
        before: as it showed them before.
        last_good: the nodes.conf before.
    """
    former, found = read_node_addrs(last_good), {}
    place = {slot: index for index, slot in enumerate(wanted.slots)}
    for slot in read_cloud_slots(wanted.nodes_conf):
        node = nodes.get(slot)
        if node is None or not node.cloud:
            continue
        shown, was = node.node_addr, before[slot].node_addr if slot in before else ""
        files = {former.get(slot), *wanted.former_node_addrs.get(slot, ())}
        nobodys = is_placeholder(shown) or shown in files or shown == slot
        address = wanted.node_addrs.get(slot)
        if address is not None:
            if shown != address and nobodys:
                found[slot] = address
        elif shown in files or shown == slot:
            found[slot] = placeholder(place[slot])
        elif is_placeholder(shown) and not is_placeholder(was) and was not in (*files, slot, ""):
            found[slot] = was
    return found
