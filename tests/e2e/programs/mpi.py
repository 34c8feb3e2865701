#!/usr/bin/env python3
"""Sums and sends with Open MPI over all tasks of a Slurm step, and checks itself. Needs mpi4py.

srun --mpi=pmix -N3 --bcast=/tmp/mpi.py ./mpi.py
"""

from __future__ import annotations

import os
import sys

SETTINGS = {
    "pml": "ob1",
    "btl": "tcp,self",
    "btl_tcp_if_include": "tailscale0",  # the interface that reaches every node
    "btl_tcp_disable_family": "6",  # it reads IPv6 addresses in /proc, where a pod does not have the tailnet's
    "reachable": "weighted",  # by addresses, not by the kernel's routes: a pod has none to the tailnet
}
for name, value in SETTINGS.items():
    os.environ.setdefault(f"OMPI_MCA_{name}", value)

from mpi4py import MPI  # noqa: E402

MESSAGE_BYTES = 1 << 20


def main() -> int:
    """Communicate and check; the exit code."""
    world = MPI.COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    assert size == int(os.environ["SLURM_NTASKS"]), f"Open MPI says {size} tasks: was srun called with --mpi=pmix?"
    total = world.allreduce(rank, op=MPI.SUM)
    sent = bytes([rank]) * MESSAGE_BYTES
    received = world.sendrecv(sent, dest=(rank + 1) % size, source=(rank - 1) % size)
    well = total == size * (size - 1) // 2 and received == bytes([(rank - 1) % size]) * MESSAGE_BYTES
    print(f"rank {rank} of {size} on {os.environ['SLURMD_NODENAME']}: {'ok' if well else 'FAILED'}", flush=True)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
