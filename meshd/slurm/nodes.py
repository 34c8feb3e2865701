"""PURE: pools and joined machines as the text of nodes.conf and of meshd's part of gres.conf.

Every slot of a pool is declared, up to its max, so that the set of nodes stays the same as machines come and go: a free
slot is DOWN with a placeholder address, a joined one has the machine's tailnet address. The output depends on nothing
but the arguments: it is compared by its hash.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network

from ClusterShell.NodeSet import NodeSet

from meshd.errors import SlurmError
from meshd.model.hardware import GpuFact, NodeShape
from meshd.model.ids import slot_name
from meshd.slurm.conf import parse
from meshd.slurm.show import hostlist

NODES = "nodes.conf"
GRES = "gres.conf"
"""The names of meshd's two files in its own directory."""

PLACEHOLDERS = IPv4Network("239.192.0.0/14")
"""Where free slots point: multicast inside an organisation (RFC 2365); 262,144 addresses.

No program can connect to one, and the kernel says so at once. With an address that swallows packets slurmctld's pings
of free slots hang, and each reconfigure waits 2 to 3 s for them ("agent_fini: left 12 agent threads active").
"""

FREE_REASON = "meshd: free slot"

HEADER = """\
# Written by meshd, whole, whenever a machine joins or leaves. Do not edit: an edit is reported and overwritten.
# Pools are changed in /etc/meshd/meshd.toml, machines with `meshctl scale` and `meshctl remove`.
"""

_WORD = re.compile(r"[A-Za-z0-9_.-]+")
_DEVICE = re.compile(r"/dev/[A-Za-z0-9_./-]+")


@dataclass(frozen=True, slots=True)
class PoolLine:
    """A pool as Slurm needs it.

    Attributes:
        partition: several pools may share one.
        gpu: the Gres type that jobs ask for; "" for GPUs without a type.
        cpus_min: what a free slot promises, as is memory_min_mib.
        features: of every slot, free or joined: a job that asks for one is accepted while all slots are free.
        leaving: the settings no longer have its partition: it takes no new jobs (`retained`).
    """

    name: str
    partition: str
    max_nodes: int
    gpu: str
    gpus_per_node: int
    cpus_min: int
    memory_min_mib: int
    features: tuple[str, ...] = ()
    default: bool = False
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class JoinedNode:
    """A machine on its slot.

    Attributes:
        address: its tailnet IPv4 address.
        features: those of this machine (provider, region, GPU model, spot), in addition to the pool's.
        memory_fraction: the part of `shape.memory_mib` that is promised: slurmd sees a little less after each boot.
        former_addresses: those that this very machine had before: its line may move on from them while jobs run.
    """

    slot: str
    address: str
    shape: NodeShape
    devices: tuple[GpuFact, ...] = ()
    features: tuple[str, ...] = ()
    memory_fraction: float = 0.95
    former_addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rendered:
    """Both files' text.

    Attributes:
        slots: every declared slot, in the order of the file.
        joined: the address of each slot that is not free.
        former: earlier addresses of the same machine, for the slots whose machine had another one.
        digest: SHA-256 over both texts, hex.
    """

    nodes_conf: str
    gres_conf: str
    slots: tuple[str, ...]
    joined: Mapping[str, str]
    former: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", digest_of(self.nodes_conf, self.gres_conf))


def digest_of(nodes_conf: str, gres_conf: str) -> str:
    """SHA-256 over both texts, hex: what they are compared by. Bytes that are not UTF-8 are told apart too."""
    return hashlib.sha256(f"{nodes_conf}\0{gres_conf}".encode("utf-8", "surrogateescape")).hexdigest()


def render(pools: Sequence[PoolLine], joined: Iterable[JoinedNode], *, shapes_fixed: bool) -> Rendered:
    """The files for these pools and machines.

    Args:
        pools: in any order; the output is by name.
        joined: at most one a slot, each on a slot of a pool.
        shapes_fixed: a joined slot keeps the pool's smallest shape (Slurm before 23.11).

    Raises:
        SlurmError: a name, feature or address that cannot stand in the file, a slot that no pool has or that is
            taken twice, two machines with one address, more slots than placeholder addresses.
    """
    by_slot = _by_slot(joined)
    addresses = {slot: node.address for slot, node in sorted(by_slot.items())}
    former = {slot: node.former_addresses for slot, node in sorted(by_slot.items()) if node.former_addresses}
    body: list[str] = []
    gres: list[str] = []
    slots: list[str] = []
    for pool in sorted(pools, key=lambda p: p.name):
        _check_pool(pool)
        if len(slots) + pool.max_nodes > PLACEHOLDERS.num_addresses:
            raise SlurmError(f"the pools have more than {PLACEHOLDERS.num_addresses} slots in all")
        for run in _runs(pool, by_slot):
            first = by_slot.pop(slot_name(pool.name, run[0]), None)
            if first is None:
                body.append(_free_line(pool, run, len(slots)))
            else:
                body.append(_joined_line(pool, first, shapes_fixed=shapes_fixed))
                gres.extend(_gres_lines(pool, first))
            slots.extend(slot_name(pool.name, index) for index in run)
    if by_slot:
        raise SlurmError(f"no pool has the slots {', '.join(sorted(by_slot))}: their machines must leave first")
    names = [pool.name for pool in pools]
    if len(set(names)) != len(names) or len(set(slots)) != len(slots):
        raise SlurmError("two pools share a name")
    return Rendered(
        nodes_conf=HEADER + "".join(f"{line}\n" for line in [*body, *_partitions(pools)]),
        gres_conf=HEADER + "".join(f"{line}\n" for line in gres),
        slots=tuple(slots),
        joined=addresses,
        former=former,
    )


@lru_cache(maxsize=4)
def node_records(nodes_conf: str) -> tuple[Mapping[str, str], ...]:
    """The NodeName records of a nodes.conf. The last few texts are remembered: they are long and asked for often."""
    return parse(nodes_conf).records("NodeName")


def read_slots(nodes_conf: str) -> tuple[str, ...]:
    """Every node that a nodes.conf declares, in order.

    Raises:
        SlurmError: a name stands twice, or a host list cannot be read.
    """
    names = [name for record in node_records(nodes_conf) for name in hostlist(record["nodename"])]
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise SlurmError(f"nodes.conf declares {', '.join(twice[:5])} twice: slurmctld would not start")
    return tuple(names)


def read_joined(nodes_conf: str) -> dict[str, str]:
    """The address of every slot that is not free, read back from a nodes.conf."""
    return {
        record["nodename"]: record.get("nodeaddr", "")
        for record in node_records(nodes_conf)
        if record.get("state", "").upper() != "DOWN"
    }


def is_placeholder(address: str) -> bool:
    """The address is one of those that free slots have."""
    try:
        return IPv4Address(address) in PLACEHOLDERS
    except ValueError:
        return False


def _by_slot(joined: Iterable[JoinedNode]) -> dict[str, JoinedNode]:
    by_slot: dict[str, JoinedNode] = {}
    addresses: set[str] = set()
    for node in joined:
        if node.slot in by_slot:
            raise SlurmError(f"slot {node.slot} is taken by two machines")
        if node.address in addresses:
            raise SlurmError(f"slot {node.slot}: another slot has the address {node.address} too")
        by_slot[node.slot] = node
        addresses.add(node.address)
    return by_slot


def _runs(pool: PoolLine, joined: Mapping[str, JoinedNode]) -> Iterator[list[int]]:
    """The pool's indexes in order: a joined one alone, free neighbours together."""
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


def _free_line(pool: PoolLine, run: Sequence[int], offset: int) -> str:
    names = _slot_range(pool, run[0], run[-1])
    addresses = _address_ranges(int(PLACEHOLDERS.network_address) + offset, len(run))
    features = _features(pool, ())
    return " ".join(
        [
            f"NodeName={names} NodeAddr={addresses} CPUs={pool.cpus_min} RealMemory={pool.memory_min_mib}",
            *_gres_field(pool.gpu, pool.gpus_per_node),
            *([f"Feature={features}"] if features else []),
            f'State=DOWN Reason="{FREE_REASON}"',
        ]
    )


def _joined_line(pool: PoolLine, node: JoinedNode, *, shapes_fixed: bool) -> str:
    _check_address(node)
    if len(node.devices) < pool.gpus_per_node:
        raise SlurmError(f"slot {node.slot}: {len(node.devices)} GPUs, but the pool promises {pool.gpus_per_node}")
    count = pool.gpus_per_node if shapes_fixed else len(node.devices)
    features = _features(pool, node.features)
    return " ".join(
        [
            f"NodeName={node.slot} NodeAddr={node.address}",
            _minimal_shape(pool) if shapes_fixed else _shape(node),
            *_gres_field(pool.gpu, count),
            *([f"Feature={features}"] if features else []),
            "State=UNKNOWN",
        ]
    )


def _minimal_shape(pool: PoolLine) -> str:
    return f"CPUs={pool.cpus_min} RealMemory={pool.memory_min_mib}"


def _shape(node: JoinedNode) -> str:
    shape = node.shape
    memory_mib = int(shape.memory_mib * node.memory_fraction)
    numbers = (shape.cpus, shape.boards, shape.sockets_per_board, shape.cores_per_socket, shape.threads_per_core)
    if min(*numbers, memory_mib) < 1:
        raise SlurmError(f"slot {node.slot}: its hardware was reported with a zero: {shape}")
    return (
        f"CPUs={shape.cpus} Boards={shape.boards} SocketsPerBoard={shape.sockets_per_board} "
        f"CoresPerSocket={shape.cores_per_socket} ThreadsPerCore={shape.threads_per_core} RealMemory={memory_mib}"
    )


def _gres_field(kind: str, count: int) -> list[str]:
    if count == 0:
        return []
    return [f"Gres=gpu:{_word('GPU type', kind)}:{count}" if kind else f"Gres=gpu:{count}"]


def _slot_range(pool: PoolLine, first: int, last: int) -> str:
    return slot_name(pool.name, first) if first == last else f"{pool.name}-[{first}-{last}]"


@lru_cache(maxsize=256)
def _folded(files: tuple[str, ...]) -> str:
    return str(NodeSet.fromlist(files))


def _gres_lines(pool: PoolLine, node: JoinedNode) -> list[str]:
    """The device files: slurmd takes only GPUs that have a File. slurmctld needs no line, so free slots have none."""
    if not node.devices:
        return []
    for fact in node.devices:
        if not _DEVICE.fullmatch(fact.device):
            raise SlurmError(f"slot {node.slot}: {fact.device!r} is not a GPU's device file")
    files = tuple(fact.device for fact in sorted(node.devices, key=lambda fact: fact.index))
    if len(set(files)) != len(files):
        raise SlurmError(f"slot {node.slot}: two GPUs have the same device file")
    typed = f" Type={_word('GPU type', pool.gpu)}" if pool.gpu else ""
    return [f"NodeName={node.slot} Name=gpu{typed} File={_folded(files)}"]


def _features(pool: PoolLine, own: Sequence[str]) -> str:
    """The pool's GPU model and features, then the machine's; each once."""
    names = [*([pool.gpu] if pool.gpu else []), *pool.features, *own]
    return ",".join(dict.fromkeys(_word("feature", name) for name in names if name))


def _partitions(pools: Iterable[PoolLine]) -> list[str]:
    members: dict[str, list[PoolLine]] = {}
    for pool in sorted(pools, key=lambda p: p.name):
        members.setdefault(pool.partition or pool.name, []).append(pool)
    lines = []
    for name, of in sorted(members.items()):
        nodes = ",".join(_slot_range(pool, 1, pool.max_nodes) for pool in of)
        default = "YES" if any(pool.default for pool in of) else "NO"
        state = "DRAIN" if all(pool.leaving for pool in of) else "UP"
        lines.append(
            f"PartitionName={_word('partition', name)} Nodes={nodes} Default={default} MaxTime=INFINITE State={state}"
        )
    return lines


def _check_pool(pool: PoolLine) -> None:
    _word("pool", pool.name)
    if min(pool.max_nodes, pool.cpus_min, pool.memory_min_mib) < 1 or pool.gpus_per_node < 0:
        raise SlurmError(f"pool {pool.name}: nodes, CPUs and memory must be at least 1")


def _check_address(node: JoinedNode) -> None:
    try:
        address = IPv4Address(node.address)
    except ValueError as error:
        raise SlurmError(f"slot {node.slot}: {node.address!r} is not an IPv4 address") from error
    if address in PLACEHOLDERS:
        raise SlurmError(f"slot {node.slot}: {address} is a placeholder for free slots, not a machine's address")


def _word(what: str, text: str) -> str:
    """The text, if it can stand in the file.

    Raises:
        SlurmError: it has characters that Slurm would read as something else.
    """
    if not _WORD.fullmatch(text):
        raise SlurmError(f"{what} {text!r}: only letters, digits, dots, dashes and underscores are possible in Slurm")
    return text


def _address_ranges(first: int, count: int) -> str:
    """`count` addresses from `first` on, as Slurm's host list: `239.192.0.[254-255],239.192.1.0`."""
    parts: list[str] = []
    while count:
        low = first & 0xFF
        size = min(count, 256 - low)
        prefix = str(IPv4Address(first)).rpartition(".")[0]
        parts.append(f"{prefix}.{low}" if size == 1 else f"{prefix}.[{low}-{low + size - 1}]")
        first, count = first + size, count - size
    return ",".join(parts)
