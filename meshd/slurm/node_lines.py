"""PURE: the lines of one slot in nodes.conf and gres.conf, free or with a machine.

A pool has one of two forms. meshd opens the slots of a hand-driven one: a free slot is DOWN, a joined one has its
machine's own hardware. Slurm's power saving opens the slots of a queue-driven one: all are CLOUD nodes of one promised
shape, and a joined line differs from a free one only in its address, its machine's features and, where the machine has
other device files, its line in gres.conf. So the shape of a slot never changes while a job waits for its machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from ipaddress import IPv4Address

from ClusterShell.NodeSet import NodeSet

from meshd.errors import SlurmError
from meshd.model.hardware import GpuFact, NodeShape
from meshd.model.ids import slot_name
from meshd.plan.limits import cpus_of, gpus_fault, memory_promised_mib, shape_fault, word_fault
from meshd.plan.slurm_lines import NODE_PLAIN, PLACEHOLDERS, gres_line_fault, node_line_fault

FREE_REASON = "meshd: free slot"
CLOUD = "State=CLOUD"
_PLAIN = tuple(f"{key}={value}" for key, value in NODE_PLAIN.items())


@dataclass(frozen=True, slots=True)
class PoolLine:
    """The part of a pool that nodes.conf needs.

    Attributes:
        partition: several pools may share one.
        gpu: the Gres type that jobs ask for; "" for GPUs without a type.
        gpus_per_node, cpus_min, memory_min_mib: what a free slot promises; where `from_queue`, what each slot does.
        features: of every slot, free or joined: a job that asks for one is accepted while all slots are free.
        leaving: the settings no longer have its partition, so it takes no new jobs (`retained`).
        from_queue: Slurm's power saving opens its slots.
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
    from_queue: bool = False


@dataclass(frozen=True, slots=True)
class JoinedNode:
    """A machine on its slot.

    Attributes:
        node_addr: its tailnet IPv4 address.
        features: those of this machine (provider, region, GPU model, spot, pod), in addition to the pool's.
        memory_fraction: the part of `shape.memory_mib` that meshd promises: slurmd sees a little less after each boot.
        former_node_addrs: earlier addresses of the same machine: its line may change from one of them while jobs run.
    """

    slot: str
    node_addr: str
    shape: NodeShape
    devices: tuple[GpuFact, ...] = ()
    features: tuple[str, ...] = ()
    memory_fraction: float = 0.95
    former_node_addrs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines of one slot in the two files.

    Attributes:
        node_addr: the machine's; a placeholder where a free slot's line is kept.
        gres: its lines in gres.conf, of it alone; none without GPUs.
    """

    node_addr: str
    node: str
    gres: tuple[str, ...] = ()

    @property
    def cloud(self) -> bool:
        """Whether Slurm's power saving opens the slot."""
        return CLOUD in self.node.split()

    @property
    def features(self) -> frozenset[str]:
        """What jobs may ask for by `--constraint`."""
        words = (word.partition("=") for word in self.node.split())
        return frozenset(name for key, _, value in words if key == "Feature" for name in value.split(","))

    def at(self, node_addr: str) -> Lines:
        """The same lines with another address."""
        slot, _, rest = self.node.split(" ", 2)
        return replace(self, node_addr=node_addr, node=f"{slot} NodeAddr={node_addr} {rest}")


def lines_of(pool: PoolLine, node: JoinedNode, was: Lines | None, *, shapes_fixed: bool) -> Lines:
    """A machine's lines. Lines that are in force already (`was`) are not checked again.

    Raises:
        SlurmError: a value that cannot be written to Slurm's files.
    """
    own = Lines(node.node_addr, _joined_line(pool, node, shapes_fixed=shapes_fixed), _gres_lines(pool, node))
    if own == was:
        return was
    for fault in (node_line_fault(own.node), *(gres_line_fault(line) for line in own.gres)):
        if fault:
            raise SlurmError(fault)
    return own


def free_line(pool: PoolLine, run: Sequence[int], offset: int) -> str:
    """One line for consecutive free slots.

    Args:
        pool: the pool of the slots.
        run: their indexes.
        offset: the number of slots before them in the file; it determines their placeholder addresses.
    """
    names = slot_range(pool, run[0], run[-1])
    addresses = _address_ranges(int(PLACEHOLDERS.network_address) + offset, len(run))
    features = _features(pool, ())
    return " ".join(
        [
            f"NodeName={names} NodeAddr={addresses} {_minimal_shape(pool)}",
            *_gres_field(pool.gpu, pool.gpus_per_node),
            *([f"Feature={features}"] if features else []),
            *_PLAIN,
            CLOUD if pool.from_queue else f'State=DOWN Reason="{FREE_REASON}"',
        ]
    )


def placeholder(offset: int) -> str:
    """The address of a free slot that has this many slots before it in the file."""
    return str(PLACEHOLDERS[offset])


def gpus_of_free_slot(pool: PoolLine) -> str:
    """What gres.conf says of a free slot after its name; "" for nothing.

    slurmd reads gres.conf for its own node. slurmctld reads it for CLOUD nodes: 22.05 refuses a registration, and
    requeues the job, when the line of a node appears only after a job has got the node.
    """
    if not pool.from_queue or not pool.gpus_per_node:
        return ""
    return _gpus(pool, tuple(f"/dev/nvidia{index}" for index in range(pool.gpus_per_node)))


def _joined_line(pool: PoolLine, node: JoinedNode, *, shapes_fixed: bool) -> str:
    _check_address(node)
    if len(node.devices) < pool.gpus_per_node:
        raise SlurmError(f"{len(node.devices)} GPUs, but the pool promises {pool.gpus_per_node}")
    promised = shapes_fixed or pool.from_queue
    count = pool.gpus_per_node if promised else len(node.devices)
    features = _features(pool, node.features)
    return " ".join(
        [
            f"NodeName={node.slot} NodeAddr={node.node_addr}",
            _minimal_shape(pool) if promised else _shape(node),
            *_gres_field(pool.gpu, count),
            *([f"Feature={features}"] if features else []),
            *_PLAIN,
            CLOUD if pool.from_queue else "State=UNKNOWN",
        ]
    )


def _minimal_shape(pool: PoolLine) -> str:
    return f"CPUs={pool.cpus_min} RealMemory={pool.memory_min_mib}"


def _shape(node: JoinedNode) -> str:
    shape = node.shape
    if fault := shape_fault(shape):
        raise SlurmError(fault)
    return (
        f"CPUs={cpus_of(shape)} Boards={shape.boards} SocketsPerBoard={shape.sockets_per_board} "
        f"CoresPerSocket={shape.cores_per_socket} ThreadsPerCore={shape.threads_per_core} "
        f"RealMemory={memory_promised_mib(shape.memory_mib, node.memory_fraction)}"
    )


def _gres_field(kind: str, count: int) -> list[str]:
    if count == 0:
        return []
    return [f"Gres=gpu:{_word('GPU type', kind)}:{count}" if kind else f"Gres=gpu:{count}"]


def slot_range(pool: PoolLine, first: int, last: int) -> str:
    """Consecutive slots as a Slurm host list."""
    return slot_name(pool.name, first) if first == last else f"{pool.name}-[{first}-{last}]"


@lru_cache(maxsize=256)
def _folded(files: tuple[str, ...]) -> str:
    return str(NodeSet.fromlist(files))


def _gres_lines(pool: PoolLine, node: JoinedNode) -> tuple[str, ...]:
    """The gres.conf line with the device files. slurmd accepts only GPUs with a File."""
    if not node.devices:
        return ()
    if fault := gpus_fault(node.devices):
        raise SlurmError(fault)
    files = tuple(fact.device for fact in sorted(node.devices, key=lambda fact: fact.index))
    if pool.from_queue:
        files = files[: pool.gpus_per_node]
    return (f"NodeName={node.slot} {_gpus(pool, files)}",) if files else ()


def _gpus(pool: PoolLine, files: tuple[str, ...]) -> str:
    typed = f" Type={_word('GPU type', pool.gpu)}" if pool.gpu else ""
    return f"Name=gpu{typed} File={_folded(files)}"


def _features(pool: PoolLine, own: Sequence[str]) -> str:
    """The pool's GPU model and features, then the machine's, without repetitions."""
    names = [*([pool.gpu] if pool.gpu else []), *pool.features, *own]
    return ",".join(dict.fromkeys(_word("feature", name) for name in names if name))


def _check_address(node: JoinedNode) -> None:
    try:
        address = IPv4Address(node.node_addr)
    except ValueError as error:
        raise SlurmError(f"{node.node_addr!r} is not an IPv4 address") from error
    if address in PLACEHOLDERS:
        raise SlurmError(f"{address} is a placeholder for free slots, not a machine's address")


def _word(what: str, text: str) -> str:
    """The text itself, checked.

    Raises:
        SlurmError: it has characters with another meaning in Slurm's files.
    """
    if fault := word_fault(what, text):
        raise SlurmError(fault)
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
