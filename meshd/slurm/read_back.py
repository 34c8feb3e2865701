"""PURE: reads what stands in a nodes.conf and gres.conf that meshd wrote.

A placeholder address tells a free slot from one that has a machine, whichever form its pool has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from ipaddress import IPv4Address

from meshd.errors import SlurmError
from meshd.model.ids import slot_name
from meshd.plan.slurm_lines import PLACEHOLDERS, is_free, slots_of
from meshd.slurm.conf import parse
from meshd.slurm.node_lines import CLOUD, Lines, placeholder
from meshd.slurm.show import hostlist


def read_lines(nodes_conf: str, gres_conf: str) -> dict[str, Lines]:
    """The lines of every slot that is not free, from the two files as `render` writes them."""
    return _read_lines(nodes_conf, gres_conf, None)


def read_free_lines(nodes_conf: str, gres_conf: str, slots: Collection[str]) -> dict[str, Lines]:
    """The lines of those of these slots that are free, as if each stood alone."""
    return _read_lines(nodes_conf, gres_conf, frozenset(slots))


def _read_lines(nodes_conf: str, gres_conf: str, free: frozenset[str] | None) -> dict[str, Lines]:
    """The lines of the joined slots, or of those of the `free` ones that are."""
    found: dict[str, Lines] = {}
    for line in nodes_conf.splitlines():
        if not line.startswith("NodeName="):
            continue
        name, addr, _ = line.split(" ", 2)  # meshd writes these two first
        names, address = name.partition("=")[2], addr.partition("=")[2]
        if free is None and not is_free(address):
            found[names] = Lines(address, line)
        elif free and is_free(address):
            own = line.replace(f"NodeAddr={address} ", f"NodeAddr={placeholder(0)} ", 1)
            for slot in free.intersection(_slots(names)):
                found[slot] = Lines(placeholder(0), own.replace(f"NodeName={names} ", f"NodeName={slot} ", 1))
    gres: dict[str, list[str]] = {}
    for line in gres_conf.splitlines():
        if line.startswith("NodeName=") and found:
            names, _, gpus = line.partition("=")[2].partition(" ")
            for slot in _slots(names) if "[" in names else (names,):
                if slot in found:
                    gres.setdefault(slot, []).append(f"NodeName={slot} {gpus}")
    return {slot: replace(own, gres=tuple(gres.get(slot, ()))) for slot, own in found.items()}


def _slots(names: str) -> Iterator[str]:
    """The slots of a line that meshd wrote: one, or a range."""
    pool, first, last = slots_of(names)
    return (slot_name(pool, index) for index in range(first, last + 1))


@lru_cache(maxsize=4)
def node_records(nodes_conf: str) -> tuple[Mapping[str, str], ...]:
    """The NodeName records of a nodes.conf. Cached: the texts are long, and callers read the same ones often."""
    return parse(nodes_conf).records("NodeName")


def read_slots(nodes_conf: str) -> tuple[str, ...]:
    """Every node that a nodes.conf declares, in order.

    Raises:
        SlurmError: a name occurs twice, or a host list cannot be read.
    """
    names = [name for record in node_records(nodes_conf) for name in hostlist(record["nodename"])]
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise SlurmError(f"nodes.conf declares {', '.join(twice[:5])} twice: slurmctld would not start")
    return tuple(names)


def read_node_addrs(nodes_conf: str) -> dict[str, str]:
    """The NodeAddr of every slot that is not free in a nodes.conf."""
    return {
        record["nodename"]: record.get("nodeaddr", "")
        for record in node_records(nodes_conf)
        if not is_free(record.get("nodeaddr", ""))
    }


def is_placeholder(address: str) -> bool:
    """Whether the address is a placeholder of free slots."""
    try:
        return IPv4Address(address) in PLACEHOLDERS
    except ValueError:
        return False


@lru_cache(maxsize=4)
def read_cloud_slots(nodes_conf: str) -> frozenset[str]:
    """The slots of a nodes.conf that Slurm's power saving opens, free or joined."""
    found: set[str] = set()
    for line in nodes_conf.splitlines():
        if line.startswith("NodeName=") and CLOUD in line.split():
            found.update(_slots(line.partition(" ")[0].partition("=")[2]))
    return frozenset(found)
