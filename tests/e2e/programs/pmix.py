#!/usr/bin/env python3
"""Exchanges data between all tasks of a Slurm step with PMIx, and checks itself. Needs libpmix (libpmix2) alone.

    srun --mpi=pmix -N3 --bcast=/tmp/pmix.py ./pmix.py

Each task puts a value and reads those of all others: first each from the node that has it (direct modex), then after a
fence that collects all of them. Each task prints one line. The exit code is 0 only if all values were right.
"""

from __future__ import annotations

import ctypes
import os
import sys

LIBRARY = "libpmix.so.2"

# From pmix_common.h, the same in the standard's versions 4 and 5.
NSPACE_BYTES, KEY_BYTES = 256, 512
RANK_WILDCARD = 0xFFFFFFFE
BOOL, UINT32, SCOPE_GLOBAL = 1, 14, 3
JOB_SIZE, COLLECT_DATA = b"pmix.job.size", b"pmix.collect"


class Proc(ctypes.Structure):
    """pmix_proc_t."""

    _fields_ = [("nspace", ctypes.c_char * NSPACE_BYTES), ("rank", ctypes.c_uint32)]


class Data(ctypes.Union):
    """The union in pmix_value_t: its largest members have two words."""

    _fields_ = [("flag", ctypes.c_bool), ("uint32", ctypes.c_uint32), ("words", ctypes.c_uint64 * 2)]


class Value(ctypes.Structure):
    """pmix_value_t."""

    _fields_ = [("type", ctypes.c_uint16), ("data", Data)]


class Info(ctypes.Structure):
    """pmix_info_t."""

    _fields_ = [("key", ctypes.c_char * KEY_BYTES), ("flags", ctypes.c_uint32), ("value", Value)]


pmix = ctypes.CDLL(LIBRARY)


def checked(name: str, *arguments: object) -> None:
    """Call a function of PMIx, which must succeed."""
    status = getattr(pmix, name)(*arguments)
    if status != 0:
        pmix.PMIx_Error_string.restype = ctypes.c_char_p
        raise SystemExit(f"{name}: {pmix.PMIx_Error_string(status).decode()} ({status})")


def put(key: bytes, number: int) -> None:
    """Publish a number to all tasks, with the next fence."""
    value = Value(UINT32)
    value.data.uint32 = number
    checked("PMIx_Put", ctypes.c_uint8(SCOPE_GLOBAL), key, ctypes.byref(value))
    checked("PMIx_Commit")


def get(proc: Proc, key: bytes) -> int:
    """The number that a task has published under a key."""
    found = ctypes.POINTER(Value)()
    checked("PMIx_Get", ctypes.byref(proc), key, None, ctypes.c_size_t(0), ctypes.byref(found))
    assert found.contents.type == UINT32, found.contents.type
    return int(found.contents.data.uint32)


def fence(everybody: Proc, collect: bool) -> None:
    """Wait for all tasks; with `collect`, each then has the data of all."""
    info = Info(COLLECT_DATA, 0, Value(BOOL))
    info.value.data.flag = collect
    checked("PMIx_Fence", ctypes.byref(everybody), ctypes.c_size_t(1), ctypes.byref(info), ctypes.c_size_t(1))


def main() -> int:
    """Exchange and check; the exit code."""
    me = Proc()
    checked("PMIx_Init", ctypes.byref(me), None, ctypes.c_size_t(0))
    everybody = Proc(me.nspace, RANK_WILDCARD)
    size = get(everybody, JOB_SIZE)
    assert size == int(os.environ["SLURM_NTASKS"]), f"PMIx says {size} tasks"
    seen: dict[bool, list[int]] = {}
    for collect in (False, True):
        key = b"test.collected" if collect else b"test.direct"
        put(key, 1000 * collect + me.rank)
        fence(everybody, collect)
        seen[collect] = [get(Proc(me.nspace, rank), key) for rank in range(size)]
    fence(everybody, False)  # nobody may leave while another still asks its node
    checked("PMIx_Finalize", None, ctypes.c_size_t(0))
    well = seen == {collect: [1000 * collect + rank for rank in range(size)] for collect in (False, True)}
    print(
        f"rank {me.rank} of {size} on {os.environ['SLURMD_NODENAME']}: {'ok' if well else 'FAILED'}, {seen}", flush=True
    )
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
