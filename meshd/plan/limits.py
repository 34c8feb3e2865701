"""PURE: Slurm's limits on a node: its numbers, its names, the device files of its GPUs.

The same functions decide in three places: whether a machine may join, whether its line is written, and whether root's
unit accepts the line. Only the standard library is used, since root's unit imports this module.

Sources: Slurm's src/common/read_config.c (`_parse_nodename`: the counts are uint16, a number that does not fit ends
slurmctld) and slurm/slurm.h (65534 and 65535 mean "not set" and "infinite").
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from meshd.model.hardware import GpuFact, NodeShape

COUNT_MAX = 65533
"""The largest number that Slurm's uint16 fields can hold."""

MEMORY_MIN_MIB = 16
MEMORY_MAX_MIB = 1 << 30
"""1 PiB. Slurm's own field is a uint64; no machine has that much."""

GPUS_MAX = 64
NODES_MAX = 10_000
"""Slots of one pool, as in the settings."""

POOL = re.compile(r"[a-z]([-a-z0-9]{0,18}[a-z0-9])?")
WORD = re.compile(r"[A-Za-z0-9_.-]{1,64}")
DEVICE = re.compile(r"/dev/nvidia(0|[1-9][0-9]{0,3})")


def shape_fault(shape: NodeShape) -> str:
    """Why a line of Slurm cannot have this hardware; "" when it can."""
    counts = {
        "CPUs": shape.cpus,
        "Boards": shape.boards,
        "SocketsPerBoard": shape.sockets_per_board,
        "CoresPerSocket": shape.cores_per_socket,
        "ThreadsPerCore": shape.threads_per_core,
    }
    for name, count in counts.items():
        if not 1 <= count <= COUNT_MAX:
            return f"{name} is {count}, and Slurm takes 1 to {COUNT_MAX}"
    if not MEMORY_MIN_MIB <= shape.memory_mib <= MEMORY_MAX_MIB:
        return f"the memory is {shape.memory_mib} MiB; {MEMORY_MIN_MIB} to {MEMORY_MAX_MIB} are possible"
    total = threads_of(shape)
    if total > COUNT_MAX:
        return f"it has {total} threads in all, and Slurm takes {COUNT_MAX}"
    if shape.cpus not in _products(shape) and not total <= 2 * shape.cpus <= 4 * total:
        return f"{shape.cpus} CPUs do not fit {total} threads (boards x sockets x cores x threads)"
    return ""


def cpus_of(shape: NodeShape) -> int:
    """The CPUs for the line: the reported number if it is that of the cores or of the threads, otherwise all threads.

    Machines with two kinds of cores report other numbers. Newer Slurm then counts all threads and logs an error;
    slurmctld 22.05 does not start.
    """
    return shape.cpus if shape.cpus in _products(shape) else threads_of(shape)


def threads_of(shape: NodeShape) -> int:
    """Boards x sockets x cores x threads."""
    return shape.boards * shape.sockets_per_board * shape.cores_per_socket * shape.threads_per_core


def gpus_fault(gpus: Sequence[GpuFact]) -> str:
    """Why gres.conf cannot have these GPUs; "" when it can."""
    if len(gpus) > GPUS_MAX:
        return f"it has {len(gpus)} GPUs, and at most {GPUS_MAX} are possible"
    for gpu in gpus:
        if not gpu.device:
            return f"GPU {gpu.index} ({gpu.name}) has no device file"
        if not DEVICE.fullmatch(gpu.device):
            return f"GPU {gpu.index} has {gpu.device!r}, which is no GPU's device file"
    if len({gpu.device for gpu in gpus}) != len(gpus):
        return "two GPUs have the same device file"
    return ""


def word_fault(what: str, text: str) -> str:
    """Why a text cannot be a name, feature or GPU type in Slurm's files; "" when it can."""
    if WORD.fullmatch(text):
        return ""
    return f"{what} {text[:70]!r}: only letters, digits, dots, dashes and underscores are possible in Slurm, 64 at most"


def partition_fault(name: str) -> str:
    """Why a partition cannot have this name; "" when it can. `DEFAULT`, in upper or lower case, is Slurm's own word."""
    if name.lower() == "default":
        return f"partition {name!r}: to Slurm the name means the defaults of the other partitions"
    return word_fault("partition", name)


def as_word(text: str) -> str:
    """The text as a feature: characters that Slurm does not take become dashes."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:64]


def memory_promised_mib(memory_mib: int, fraction: float) -> int:
    """RealMemory of the node's line, with a margin: a machine may show a little less memory after a boot."""
    return max(1, int(memory_mib * fraction))


def usable(gpus: Sequence[GpuFact], rented: int) -> tuple[GpuFact, ...]:
    """The GPUs that jobs may use: as many as were rented, by index. A machine may show more."""
    return tuple(sorted(gpus, key=lambda gpu: gpu.index)[:rented])


def _products(shape: NodeShape) -> tuple[int, int]:
    """The numbers of cores and of threads. With any other number of CPUs slurmctld 22.05 does not start."""
    cores = shape.boards * shape.sockets_per_board * shape.cores_per_socket
    return cores, cores * shape.threads_per_core
