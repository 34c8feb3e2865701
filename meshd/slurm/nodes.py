"""PURE: renders pools and joined machines as nodes.conf and as meshd's part of gres.conf. `read_back` reads them.

nodes.conf declares every slot of a pool up to max_nodes, so that the node set stays the same while machines come and
go. A free slot has a placeholder address, a joined one the machine's tailnet address: that tells them apart, whichever
form their pool has (`node_lines`). The output depends only on the arguments: meshd compares contents by their hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from meshd.errors import SlurmError
from meshd.model.ids import slot_index, slot_name
from meshd.plan.limits import (
    COUNT_MAX,
    GPUS_MAX,
    MEMORY_MAX_MIB,
    NODES_MAX,
    POOL,
    partition_fault,
    word_fault,
)
from meshd.plan.slurm_lines import PARTITION_PLAIN, PLACEHOLDERS, is_free
from meshd.slurm.node_lines import FREE_REASON as FREE_REASON
from meshd.slurm.node_lines import JoinedNode as JoinedNode
from meshd.slurm.node_lines import Lines, free_line, gpus_of_free_slot, lines_of, placeholder, slot_range
from meshd.slurm.node_lines import PoolLine as PoolLine

NODES = "nodes.conf"
GRES = "gres.conf"
"""The names of meshd's two files."""

HEADER = """\
# Written by meshd, whole, whenever a machine joins or leaves. Do not edit: an edit is reported and overwritten.
# Pools are changed in /etc/meshd/meshd.toml, machines with `meshctl scale` and `meshctl remove`.
"""


@dataclass(frozen=True, slots=True)
class RenderInput:
    """The arguments of `render`, kept to render again with some slots unchanged."""

    pools: tuple[PoolLine, ...]
    joined: tuple[JoinedNode, ...]
    shapes_fixed: bool
    before: Mapping[str, Lines]


@dataclass(frozen=True, slots=True)
class Rendered:
    """Both files' text.

    Attributes:
        slots: every declared slot, in the order of the file.
        node_addrs: the address of each slot that is not free.
        former_node_addrs: earlier addresses of the same machine, for slots whose machine had another one.
        lines: of each slot that is not free.
        left_out: by slot, why its machine's line cannot be written. Such a slot keeps its old line, or is free.
        digest: SHA-256 over both texts, hex.
    """

    nodes_conf: str
    gres_conf: str
    slots: tuple[str, ...]
    node_addrs: Mapping[str, str]
    former_node_addrs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lines: Mapping[str, Lines] = field(default_factory=dict, compare=False, repr=False)
    left_out: Mapping[str, str] = field(default_factory=dict)
    digest: str = field(init=False)
    source: RenderInput | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", digest_of(self.nodes_conf, self.gres_conf))


def digest_of(nodes_conf: str, gres_conf: str) -> str:
    """SHA-256 over both texts, hex. Texts that differ only in bytes that are not UTF-8 get different digests."""
    return hashlib.sha256(f"{nodes_conf}\0{gres_conf}".encode("utf-8", "surrogateescape")).hexdigest()


def render(
    pools: Sequence[PoolLine],
    joined: Iterable[JoinedNode],
    *,
    shapes_fixed: bool,
    before: Mapping[str, Lines] | None = None,
    hold: Collection[str] = (),
) -> Rendered:
    """The files for these pools and machines.

    `render` leaves a machine out when its line cannot be written, and adds its slot to `left_out`. The slot keeps its
    line in `before` if that is this machine's; otherwise it is free.

    Args:
        pools: in any order; the output is sorted by name.
        joined: at most one a slot, each on a slot of a pool.
        shapes_fixed: a joined slot keeps the pool's smallest shape (Slurm before 23.11).
        before: the lines that are in force, by slot.
        hold: these slots keep their lines from `before`, whichever machine has them now.

    Raises:
        SlurmError: a pool that cannot be written, or more slots than placeholder addresses.
    """
    joined, before = tuple(joined), before or {}
    _check_pools(pools)
    left_out: dict[str, str] = {}
    lines = _lines_of(pools, joined, before, left_out, shapes_fixed=shapes_fixed)
    lines |= {slot: before[slot] for slot in hold if slot in before}
    body: list[str] = []
    gres: list[str] = []
    slots: list[str] = []
    rest = dict(lines)
    for pool in sorted(pools, key=lambda p: p.name):
        for run in _runs(pool, lines):
            own = rest.pop(slot_name(pool.name, run[0]), None)
            body.append(free_line(pool, run, len(slots)) if own is None else _line_at(own, len(slots)))
            slots.extend(slot_name(pool.name, index) for index in run)
        gres.extend(_gres_of(pool, lines))
    for slot, own in sorted(rest.items()):  # held, although no pool has this slot
        body.append(_line_at(own, len(slots)))
        gres.extend(own.gres)
        slots.append(slot)
    former = {node.slot: node.former_node_addrs for node in joined if node.former_node_addrs and node.slot in lines}
    return Rendered(
        nodes_conf=HEADER + "".join(f"{line}\n" for line in [*body, *_partitions(pools)]),
        gres_conf=HEADER + "".join(f"{line}\n" for line in gres),
        slots=tuple(slots),
        node_addrs={slot: own.node_addr for slot, own in sorted(lines.items()) if not is_free(own.node_addr)},
        former_node_addrs=dict(sorted(former.items())),
        lines={slot: own for slot, own in lines.items() if not is_free(own.node_addr)},
        left_out=dict(sorted(left_out.items())),
        source=RenderInput(tuple(pools), joined, shapes_fixed, before),
    )


def holding(wanted: Rendered, before: Mapping[str, Lines], slots: Collection[str]) -> Rendered:
    """The same content, but these slots keep their lines in `before`.

    Raises:
        SlurmError: `render` did not make it.
    """
    of = wanted.source
    if of is None:
        raise SlurmError("a content that was not rendered cannot keep lines")
    return render(of.pools, of.joined, shapes_fixed=of.shapes_fixed, before={**of.before, **before}, hold=slots)


def without(wanted: Rendered, before: Mapping[str, Lines], slots: Collection[str]) -> Rendered:
    """The same content, but these slots have their lines in `before`, or are free where they have none.

    Raises:
        SlurmError: `render` did not make it.
    """
    of = wanted.source
    if of is None:
        raise SlurmError("a content that was not rendered cannot be rendered again")
    joined = [node for node in of.joined if node.slot not in slots]
    held = [slot for slot in slots if slot in before]
    return render(of.pools, joined, shapes_fixed=of.shapes_fixed, before={**of.before, **before}, hold=held)


def _check_pools(pools: Sequence[PoolLine]) -> None:
    for pool in pools:
        _check_pool(pool)
    if sum(pool.max_nodes for pool in pools) > PLACEHOLDERS.num_addresses:
        raise SlurmError(f"the pools have more than {PLACEHOLDERS.num_addresses} slots in all")
    names = [pool.name for pool in pools]
    if len(set(names)) != len(names):
        raise SlurmError("two pools share a name")


def _lines_of(
    pools: Sequence[PoolLine],
    joined: Sequence[JoinedNode],
    before: Mapping[str, Lines],
    left_out: dict[str, str],
    *,
    shapes_fixed: bool,
) -> dict[str, Lines]:
    """The lines of the machines, by slot. Adds to `left_out` why a machine has none."""
    by_pool = {pool.name: pool for pool in pools}
    of_before = {own.node_addr: slot for slot, own in before.items()}
    lines: dict[str, Lines] = {}
    taken: set[str] = set()
    # If two machines claim one address or slot, the one that has it already wins.
    for node in sorted(joined, key=lambda n: of_before.get(n.node_addr) != n.slot):
        was = before.get(node.slot)
        try:
            if node.slot in lines:
                raise SlurmError("another machine has this slot too")
            if node.node_addr in taken:
                raise SlurmError(f"another machine has the address {node.node_addr} too")
            own = lines_of(_pool_of(node, by_pool), node, was, shapes_fixed=shapes_fixed)
        except SlurmError as error:
            left_out[node.slot] = str(error)
            if was is None or was.node_addr not in (node.node_addr, *node.former_node_addrs) or node.slot in lines:
                continue
            own = was
        lines[node.slot] = own
        taken.add(own.node_addr)
    return lines


def _pool_of(node: JoinedNode, pools: Mapping[str, PoolLine]) -> PoolLine:
    pool = pools.get(node.slot.rpartition("-")[0])
    index = slot_index(pool.name, node.slot) if pool is not None else None
    if pool is None or index is None or index > pool.max_nodes:
        raise SlurmError("no pool has this slot now")
    return pool


def _runs(pool: PoolLine, joined: Mapping[str, object]) -> Iterator[list[int]]:
    """The pool's indexes in order: each joined one on its own, consecutive free ones together."""
    run: list[int] = []
    for index in range(1, pool.max_nodes + 1):
        if slot_name(pool.name, index) in joined:
            if run:
                yield run
            yield [index]
            run = []
        else:
            run.append(index)
    if run:
        yield run


def _line_at(own: Lines, offset: int) -> str:
    """The line; one of a free slot that is kept gets the placeholder of its place in the file."""
    return own.at(placeholder(offset)).node if is_free(own.node_addr) else own.node


def _gres_of(pool: PoolLine, lines: Mapping[str, Lines]) -> Iterator[str]:
    """The pool's part of gres.conf. One line stands for consecutive slots with the same device files."""
    free = gpus_of_free_slot(pool)
    if not free:
        own = (lines.get(slot_name(pool.name, index)) for index in range(1, pool.max_nodes + 1))
        yield from (line for one in own if one is not None for line in one.gres)
        return
    first, before = 1, ""
    for index in range(1, pool.max_nodes + 2):
        own_lines = lines.get(slot_name(pool.name, index))
        gpus = free if own_lines is None else "".join(line.partition(" ")[2] for line in own_lines.gres[:1])
        gpus = gpus if index <= pool.max_nodes else ""
        if gpus != before:
            if before:
                yield f"NodeName={slot_range(pool, first, index - 1)} {before}"
            first, before = index, gpus


def _partitions(pools: Iterable[PoolLine]) -> list[str]:
    members: dict[str, list[PoolLine]] = {}
    for pool in sorted(pools, key=lambda p: p.name):
        members.setdefault(pool.partition or pool.name, []).append(pool)
    lines = []
    for name, of in sorted(members.items()):
        nodes = ",".join(slot_range(pool, 1, pool.max_nodes) for pool in of)
        default = "YES" if any(pool.default for pool in of) else "NO"
        state = "DRAIN" if all(pool.leaving for pool in of) else "UP"
        plain = " ".join(f"{key}={value}" for key, value in PARTITION_PLAIN.items())
        lines.append(f"PartitionName={name} Nodes={nodes} Default={default} MaxTime=INFINITE State={state} {plain}")
    return lines


def _check_pool(pool: PoolLine) -> None:
    if not POOL.fullmatch(pool.name):
        raise SlurmError(f"pool {pool.name!r}: only small letters, digits and dashes are possible, 20 at most")
    for what, word in (("GPU type", pool.gpu), *(("feature", one) for one in pool.features)):
        if word and (fault := word_fault(what, word)):
            raise SlurmError(f"pool {pool.name}: {fault}")
    if fault := partition_fault(pool.partition or pool.name):
        raise SlurmError(f"pool {pool.name}: {fault}")
    limits = {"nodes": (pool.max_nodes, NODES_MAX), "CPUs": (pool.cpus_min, COUNT_MAX)}
    limits["memory in MiB"] = (pool.memory_min_mib, MEMORY_MAX_MIB)
    for what, (number, most) in limits.items():
        if not 1 <= number <= most:
            raise SlurmError(f"pool {pool.name}: {what} must be 1 to {most}, not {number}")
    if not 0 <= pool.gpus_per_node <= GPUS_MAX:
        raise SlurmError(f"pool {pool.name}: 0 to {GPUS_MAX} GPUs are possible in a node")
